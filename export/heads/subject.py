"""The network of a report: a checkpoint's, or, since gradients need it, the one that an artifact was made from."""

from dataclasses import dataclass, replace
from pathlib import Path

from export.checkpoint import Checkpoint, read_checkpoint
from export.errors import SourceError, UnsupportedModel
from export.pipeline import read_pipeline
from export.pruning.removal import apply_removal
from export.sources import DEFAULT_MODEL, Folder, find_folder
from model.artifact import MANIFEST, Artifact, ArtifactError, Manifest
from model.config import Pooling


@dataclass(frozen=True, slots=True)
class Subject:
    """A network without the heads that its artifact lost, and whole; the artifact is None if a checkpoint was named."""

    checkpoint: Checkpoint
    artifact: Artifact | None
    whole: Checkpoint

    @property
    def pruned(self) -> list[list[int]] | None:
        """The heads that the artifact lost, as [layer, head] of the network before; None if it is whole."""
        record = self.artifact.manifest.pruning if self.artifact else None
        return None if record is None else [list(place) for place in record["removed"]]


def find_subject(
    model: str | None, *, weights: str | None = None, revision: str | None = None, allows_pickles: bool = False
) -> Subject:
    """Finds the network of an artifact, a folder, a Hugging Face id, or None for the default model.

    `weights` is the folder or id of an artifact's weights, where its manifest does not lead to them.

    Raises:
        SourceError: the artifact is broken, or its weights cannot be found, or are others; or a revision of an
            artifact, whose manifest names its own.
    """
    if model is None or not (Path(model) / MANIFEST).is_file():
        if weights:
            raise SourceError(f"--weights names the weights of an artifact, and {model or DEFAULT_MODEL} is none")
        checkpoint = read_checkpoint(find_folder(model, revision, allows_pickles=allows_pickles))
        return Subject(checkpoint, None, checkpoint)
    if revision is not None:
        raise SourceError(f"--revision {revision} is of a model on the hub, and {model} is an artifact")
    try:
        artifact = Artifact.open(Path(model))
    except ArtifactError as error:
        raise SourceError(str(error)) from error
    manifest = artifact.manifest
    folder = find_folder(*_origin(manifest, weights), allows_pickles=allows_pickles)
    whole = checkpoint = _read_as_exported(folder, manifest)
    if manifest.pruning is not None:
        checkpoint = replace(whole, encoder=apply_removal(whole.encoder, manifest.pruning["removed"]))
    found, expected = checkpoint.source.sha256, manifest.source.sha256
    if found != expected:
        raise SourceError(f"the weights have SHA-256 {found}, the artifact was made from {expected}")
    if checkpoint.encoder.config != manifest.config:
        raise SourceError("the weights' network is not the artifact's: export it again with this version")
    return Subject(checkpoint, artifact, whole)


def _origin(manifest: Manifest, weights: str | None) -> tuple[str | None, str | None]:
    """Where an artifact's weights are: a folder or an id, None for the default model, and a revision."""
    source = manifest.source
    if weights or source.id == DEFAULT_MODEL:
        return weights, None
    if source.revision is None or "/" not in source.id:
        raise SourceError(
            f"the artifact was made from {source.id}, a folder: its weights are needed (gradients cannot be had from "
            "the graph). Name that folder with --weights or, where a command has no such flag, instead of the artifact"
        )
    return source.id, source.revision


def _read_as_exported(folder: Folder, manifest: Manifest) -> Checkpoint:
    """The checkpoint, read with the choices of the export."""
    adapter, pooling = manifest.source.adapter, manifest.config.pooling
    told: Pooling | None = pooling
    try:
        read_pipeline(folder.path, manifest.task, pooling, adapter=adapter, allows_pickles=folder.allows_pickles)
    except UnsupportedModel:  # the folder says itself how to pool, and so refuses to be told
        told = None
    return read_checkpoint(folder, name=manifest.model, adapter=adapter, task=manifest.task, pooling=told)
