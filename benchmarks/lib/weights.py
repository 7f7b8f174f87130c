"""The checkpoint behind an artifact, for those who encode without the artifact: PyTorch and the peers."""

import argparse
from pathlib import Path

from benchmarks.lib.command import CannotMeasure
from export.checkpoint import read_checkpoint
from export.sources import Folder, find_folder
from model.artifact import Artifact, hash_file
from model.encoder import Encoder

WEIGHTS = "model.safetensors"


class OtherWeights(CannotMeasure):
    """The folder does not hold the weights that the artifact was made from."""


def add_weights_argument(parser: argparse.ArgumentParser) -> None:
    """`--weights`: which checkpoint `checkpoint_folder` is to find."""
    parser.add_argument(
        "--weights", help="the checkpoint: a folder or a Hugging Face id; the default model if not given"
    )


def checkpoint_folder(model: str | None, artifact: Artifact) -> Folder:
    """The folder of a checkpoint, once it is sure that the artifact was made from it.

    Args:
        model: None for the default model, a folder or a Hugging Face id.
        artifact: compared by the weights' SHA-256.

    Raises:
        OtherWeights: the hashes differ.
        SourceError: there is no such checkpoint.
    """
    folder = find_folder(model)
    found, expected = hash_file(folder.path / WEIGHTS), artifact.manifest.source.sha256
    if found != expected:
        raise OtherWeights(f"{folder.path / WEIGHTS} has SHA-256 {found}, the artifact was made from {expected}")
    return folder


def load_encoder(path: Path) -> Encoder:
    """The PyTorch encoder with a checkpoint's weights, in evaluation mode."""
    return read_checkpoint(Folder(path, path.name)).encoder
