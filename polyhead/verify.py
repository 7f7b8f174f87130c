"""`polyhead verify`: whether an artifact is whole. Every file is hashed, and the graph is loaded."""

import argparse
import sys
from collections.abc import Sequence

from model.artifact import TOKENIZER, Artifact
from model.manifest import ArtifactError
from polyhead.artifact_option import add_artifact, chosen_artifact
from polyhead.complaint import complain
from service.errors import one_line
from service.inference.onnx_backend import OnnxBackend
from service.tokenization.tokenizer import Tokenizer

PROGRAM = "polyhead verify"
DESCRIPTION = """\
Checks an artifact: every file has the size and SHA-256 that the manifest says, the tokenizer can be read, and the graph
loads. Exit code 0: all of it is so; 1: it is not, and one line on stderr says what; 2: wrong command line."""


def parser() -> argparse.ArgumentParser:
    """The command line, described."""
    made = argparse.ArgumentParser(prog=PROGRAM, description=DESCRIPTION)
    add_artifact(made, "to check")
    return made


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    directory = chosen_artifact(parser().parse_args(arguments))
    try:
        artifact = Artifact.open(directory)
        _load(artifact)
    except (ArtifactError, OSError) as error:
        return complain(PROGRAM, error)
    sys.stdout.write(f"{directory}: {len(artifact.manifest.files)} files as the manifest says, the graph loads\n")
    return 0


def _load(artifact: Artifact) -> None:
    try:
        longest = artifact.manifest.max_sequence_length
        Tokenizer.load(artifact.path(TOKENIZER), longest, threads=1).close()
        OnnxBackend(artifact).close()
    except ArtifactError:
        raise
    except Exception as error:  # whatever a library raises: the artifact cannot be used
        raise ArtifactError(f"{artifact.directory} does not load: {one_line(error)}") from error
