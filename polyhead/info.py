"""`polyhead info`: what an artifact is, from its manifest; nothing is loaded and no hash is computed."""

import argparse
import json
import sys
from collections.abc import Sequence

from model.artifact import read_manifest
from model.manifest import ArtifactError, Manifest
from polyhead.artifact_option import add_artifact, chosen_artifact
from polyhead.complaint import complain

PROGRAM = "polyhead info"
DESCRIPTION = "Says what an artifact is: its model, task, network and files. `polyhead verify` checks the files."
MIB = 2**20


def parser() -> argparse.ArgumentParser:
    """The command line, described."""
    made = argparse.ArgumentParser(prog=PROGRAM, description=DESCRIPTION)
    add_artifact(made, "to describe")
    made.add_argument("--json", action="store_true", help="the whole manifest, as JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        manifest = read_manifest(chosen_artifact(options))
    except (ArtifactError, OSError) as error:
        return complain(PROGRAM, error)
    if options.json:
        sys.stdout.write(json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.writelines(f"{name + ':':<12}{value}\n" for name, value in describe(manifest).items())
    return 0


def describe(manifest: Manifest) -> dict[str, str]:
    """What a person wants to know, by name."""
    config, source = manifest.config, manifest.source
    size = sum(entry.size for entry in manifest.files.values())
    lines = {
        "model": manifest.model,
        "source": source.id + (f", revision {source.revision}" if source.revision else ""),
        "task": manifest.task.replace("_", "-") + (", takes pairs" if manifest.pairs else ""),
        "labels": ", ".join(manifest.labels),
        "output": f"{config.output_size} numbers" if manifest.task != "multi_vector" else "a vector a token",
        "network": f"{config.num_layers} layers, {_heads(config.num_heads)}, hidden size {config.hidden_size}",
        "reads": f"up to {manifest.max_sequence_length} tokens",
        "prompts": ", ".join(manifest.defaults.prompts),
        "precision": manifest.precision,
        "pruned": "yes" if manifest.pruning else "",
        "files": f"{', '.join(manifest.files)} ({size / MIB:.1f} MiB)",
    }
    return {name: value for name, value in lines.items() if value}


def _heads(num_heads: Sequence[int]) -> str:
    return f"{num_heads[0]} heads each" if len(set(num_heads)) == 1 else f"{', '.join(map(str, num_heads))} heads"
