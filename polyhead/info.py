"""`polyhead info` and `polyhead verify`: what an artifact is, and whether it is whole."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from model.artifact import TOKENIZER, Artifact, ArtifactError, Manifest, read_manifest
from polyhead.models import ArtifactArgument, SameAsFlag, named_artifact
from polyhead.output import write
from service.errors import one_line
from service.inference.openvino_backend import load_backend
from service.tokenization.tokenizer import Tokenizer

MIB = 2**20
OUTPUTS = {"multi_vector": "a vector a token", "token_classification": "labels of tokens"}


def info(
    context: typer.Context,
    artifact: ArtifactArgument = None,
    model: SameAsFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="the whole manifest, as JSON")] = False,
) -> None:
    """Describe an artifact: its model, task, network and files. `polyhead verify` checks the files."""
    manifest = read_manifest(named_artifact(context, artifact, model))
    if as_json:
        write(json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False).encode() + b"\n")
    else:
        write("".join(f"{name + ':':<12}{value}\n" for name, value in describe(manifest).items()))


def verify(context: typer.Context, artifact: ArtifactArgument = None, model: SameAsFlag = None) -> None:
    """Check an artifact's files, and that it loads.

    Every file has the size and SHA-256 that the manifest says, the tokenizer can be read, and the graph loads. Exit
    code 0: all of it is so; 1: it is not, and one line on stderr says what; 2: wrong command line.
    """
    directory = named_artifact(context, artifact, model)
    opened = Artifact.open(directory)
    try:
        longest = opened.manifest.max_sequence_length
        Tokenizer.load(opened.path(TOKENIZER), longest, threads=1).close()
        load_backend(opened, workers=1, intra_op_threads=1, provider="cpu").close()
    except ArtifactError:
        raise
    except Exception as error:  # whatever a library raises: the artifact cannot be used
        raise ArtifactError(f"{directory} does not load: {one_line(error)}") from error
    write(f"{directory}: {len(opened.manifest.files)} files as the manifest says, the graph loads\n")


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
    """What training left out, counted, and training before it."""
    counts = dict.fromkeys(("heads", "neurons", "layers"), 0)
    while removed:
        counts["heads"] += len(removed.get("heads", ()))
        counts["neurons"] += sum(removed.get("neurons", ()))
        counts["layers"] += len(removed.get("layers", ()))
        removed = removed.get("before", {})
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
