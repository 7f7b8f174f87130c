"""The tiny network's graph; a planted network with its tokenizer, and a corpus for it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir
import pytest
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from export.graph import trace
from model.artifact import GRAPH, TOKENIZER, Manifest, describe_files, write_manifest
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, tiny_network
from tests.planted import draw_texts, plant, write_pairs


@pytest.fixture(scope="session")
def tiny_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph of `tiny_checkpoint`: load it to change it, never write it."""
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    onnx_ir.save(trace(draw_weights(Encoder(TINY))), path)
    return path


@pytest.fixture(scope="session")
def planted(tokenizer: Tokenizer) -> Checkpoint:
    return tiny_network(plant(), tokenizer, name="planted")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "texts.txt"
    path.write_text("\n".join(draw_texts(60)) + "\n")
    return path


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.csv", 40)


@pytest.fixture(scope="session")
def parses_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every word hangs on the one before it (`prior`), and a repeated word on where it stands first (`same`).

    The first of them is no sentence's first word, which heads without a preference point to.
    """
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "new", "york"]
    sentences = []
    for index in range(60):
        distance = 2 + index % 7
        forms = words[: distance + 1] + [words[1]] + ["."] * (index % 3)
        lines = [
            f"{place}\t{form}\t_\tNOUN\t_\t_\t"
            + ("2\tsame:first" if place == distance + 2 else f"{place - 1}\t{'prior' if place > 1 else 'root'}")
            + "\t_\t_"
            for place, form in enumerate(forms, start=1)
        ]
        sentences.append("\n".join(lines) + "\n\n")
    path = tmp_path_factory.mktemp("parses") / "made.conllu"
    path.write_text("".join(sentences))
    return path


def write_json(path: Path, content: object) -> Path:
    """Writes a file, and its folder if there is none; returns the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path.parent


def change_json(path: Path, **settings: Any) -> Path:
    """Changes a file's settings, None for one that goes; returns the folder."""
    content = {**json.loads(path.read_text()), **settings}
    return write_json(path, {name: value for name, value in content.items() if value is not None})


def write_modules(folder: Path, modules: Mapping[str, str]) -> Path:
    """modules.json of these classes by their paths, sentence-transformers' own if no package is named."""
    kinds = {path: kind if "." in kind else f"sentence_transformers.models.{kind}" for path, kind in modules.items()}
    entries = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())]
    return write_json(folder / "modules.json", entries)


def write_artifact(directory: Path, checkpoint: Checkpoint) -> Path:
    """An artifact whose graph no one opens."""
    directory.mkdir()
    (directory / GRAPH).write_bytes(b"graph")
    (directory / TOKENIZER).write_text(checkpoint.tokenizer.to_str())
    manifest = Manifest(
        model=checkpoint.name,
        source=checkpoint.source,
        config=checkpoint.encoder.config,
        precision="fp32",
        opset=24,
        inputs=(),
        outputs=(),
        defaults=checkpoint.defaults,
        max_sequence_length=checkpoint.max_sequence_length,
        fused_attention={},
        parity={},
        files=describe_files(directory),
        versions={},
    )
    write_manifest(directory, manifest)
    return directory
