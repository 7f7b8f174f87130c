"""`polyhead info` and `polyhead verify`: what an artifact is, and whether it is whole."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.artifact import TOKENIZER, Artifact, ArtifactError, Manifest, read_manifest
from polyhead.output import write
from service.errors import one_line
from service.inference.openvino_backend import load_backend
from service.tokenization.tokenizer import Tokenizer

MIB = 2**20
OUTPUTS = {"multi_vector": "a vector a token", "token_classification": "labels of tokens"}


def info(directory: Path, *, as_json: bool) -> None:
    """Prints what the manifest says; nothing is loaded and no hash is computed."""
    manifest = read_manifest(directory)
    if as_json:
        write(json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False).encode() + b"\n")
    else:
        write("".join(f"{name + ':':<12}{value}\n" for name, value in describe(manifest).items()))


def verify(directory: Path) -> None:
    """Hashes every file and loads the graph; says that all is well, or raises `ArtifactError`."""
    artifact = Artifact.open(directory)
    try:
        longest = artifact.manifest.max_sequence_length
        Tokenizer.load(artifact.path(TOKENIZER), longest, threads=1).close()
        load_backend(artifact, workers=1, intra_op_threads=1, provider="cpu").close()
    except ArtifactError:
        raise
    except Exception as error:  # whatever a library raises: the artifact cannot be used
        raise ArtifactError(f"{directory} does not load: {one_line(error)}") from error
    write(f"{directory}: {len(artifact.manifest.files)} files as the manifest says, the graph loads\n")


def describe(manifest: Manifest) -> dict[str, str]:
    """What a person wants to know, by name."""
    config, source = manifest.config, manifest.source
    size = sum(entry.size for entry in manifest.files.values())
    lines = {
        "model": manifest.model,
        "source": source.id + (f", revision {source.revision}" if source.revision else ""),
        "task": manifest.task.replace("_", "-") + (", takes pairs" if manifest.pairs else ""),
        "labels": ", ".join(manifest.labels),
        "output": OUTPUTS.get(manifest.task, f"{config.output_size} numbers"),
        "network": f"{config.num_layers} layers, {_heads(config.num_heads)}, hidden size {config.hidden_size}",
        "reads": f"up to {manifest.max_sequence_length} tokens",
        "prompts": ", ".join(manifest.defaults.prompts),
        "precision": manifest.precision,
        "engine": manifest.engine,
        "pruned": "yes" if manifest.pruning else "",
        "without": _without(manifest.removed_in_training or {}),
        "files": f"{', '.join(manifest.files)} ({size / MIB:.1f} MiB)",
    }
    return {name: value for name, value in lines.items() if value}


def _heads(num_heads: Sequence[int]) -> str:
    return f"{num_heads[0]} heads each" if len(set(num_heads)) == 1 else f"{', '.join(map(str, num_heads))} heads"


def _without(removed: Mapping[str, Any]) -> str:
    """What training left out, counted."""
    counts = {
        "heads": len(removed.get("heads", ())),
        "neurons": sum(removed.get("neurons", ())),
        "layers": len(removed.get("layers", ())),
    }
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
