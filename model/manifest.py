"""What `manifest.json` says of an artifact: the network, where it came from, its files with their hashes, figures.

Standard library only.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from model.config import EncoderConfig
from model.config_checks import ConfigError
from model.pair_wording import PairWording
from model.tasks.settings import OUTPUT_NAMES, ClassificationSettings, ScoreActivation, Task

SCHEMA_VERSION = 1


class ArtifactError(Exception):
    """The directory is no artifact, or not the one its manifest describes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where the weights came from; `adapter` is which of the checkpoint's adapters they hold, where it has any."""

    id: str
    revision: str | None
    sha256: str
    adapter: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of the artifact: SHA-256 in hex, size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What a request gets where it says nothing.

    Attributes:
        pooling: how token vectors become one vector (done in the graph, named here for the reader).
        normalize: whether the model's own pipeline ends in an L2 normalisation.
        prompts: texts by name that the model wants in front of an input.
        default_prompt_name: the prompt used when a request names none, or None.
    """

    pooling: str
    normalize: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorRanges:
    """Least and greatest value of each dimension of normalised embeddings, over the export's calibration texts.

    What `quantize_embeddings` of sentence-transformers calls `ranges`: int8 and uint8 scale each dimension to 256 steps
    between the two. They are of vectors of length 1 with all their dimensions, as the service answers them by default.
    """

    minimum: tuple[float, ...]
    maximum: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Everything the service knows of an artifact before it opens the graph.

    Attributes:
        model: name under which the model is served.
        source: id, revision and hash of the weights.
        config: the network.
        precision: `fp32`, `fp16`, `bf16` or `int8`.
        opset: ONNX operator set of the graph.
        inputs: names of the graph's inputs, in order.
        outputs: names of the graph's outputs, in order.
        defaults: pooling, normalisation and prompts.
        max_sequence_length: longest input in tokens, special tokens included.
        fused_attention: fused attention nodes in the graph, by operator.
        parity: largest absolute difference from the PyTorch encoder by output, and other figures the export measured.
        files: every other file of the directory, by name.
        versions: versions of what produced the artifact, by package.
        pruning: which heads were removed, by what, and what it cost; None where none were.
        pairs: whether the model takes pairs of texts, made as `tokenizer.json` makes them.
        pair_wording: what is put around the two texts before `tokenizer.json` reads them; None for nothing.
        vector_ranges: what 8-bit vectors are scaled by; None where the task gives no such vectors, or they were not
            measured.
        fits_16_bits: int8 weights with which sums of two products never exceed 16 bits, whatever the input, so that
            processors without VNNI compute them exactly with their fastest kernel.
    """

    model: str
    source: Source
    config: EncoderConfig
    precision: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Defaults
    max_sequence_length: int
    fused_attention: Mapping[str, int]
    parity: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    versions: Mapping[str, str]
    pruning: Mapping[str, Any] | None = None
    pairs: bool = False
    pair_wording: PairWording | None = None
    vector_ranges: VectorRanges | None = None
    fits_16_bits: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def task(self) -> Task:
        """What the artifact is for."""
        return self.config.task

    @property
    def task_output(self) -> str:
        """Name of the graph output that the task is for."""
        return OUTPUT_NAMES[self.config.task]

    @property
    def labels(self) -> tuple[str, ...]:
        """A name a logit; empty where the task is no classification."""
        settings = self.config.task_settings
        return settings.labels if isinstance(settings, ClassificationSettings) else ()

    @property
    def activation(self) -> ScoreActivation:
        """What makes scores of logits."""
        settings = self.config.task_settings
        return settings.activation if isinstance(settings, ClassificationSettings) else "identity"

    def to_dict(self) -> dict[str, Any]:
        """The manifest as JSON types; `from_dict` reverses it."""
        return {
            **asdict(self),
            "config": self.config.to_dict(),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Manifest":
        """Reads what `to_dict` wrote.

        Raises:
            ArtifactError: another schema version, or a field is unknown, missing or malformed.
        """
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ArtifactError(f"manifest schema {version!r}: this version reads {SCHEMA_VERSION}; export it again")
        if unknown := sorted(set(data) - {field.name for field in fields(cls)}):
            raise ArtifactError(f"manifest has unknown fields {', '.join(unknown)}; export it again")
        try:
            return cls(
                **{
                    **data,
                    "source": Source(**data["source"]),
                    "config": EncoderConfig.from_dict(data["config"]),
                    "inputs": tuple(data["inputs"]),
                    "outputs": tuple(data["outputs"]),
                    "defaults": Defaults(**data["defaults"]),
                    "pair_wording": _read_wording(data.get("pair_wording")),
                    "vector_ranges": _read_ranges(data.get("vector_ranges")),
                    "files": {name: FileEntry(**entry) for name, entry in data["files"].items()},
                }
            )
        except (AttributeError, ConfigError, KeyError, TypeError) as error:
            raise ArtifactError(f"malformed manifest: {error}") from error


def _read_ranges(data: Mapping[str, Any] | None) -> VectorRanges | None:
    return None if data is None else VectorRanges(minimum=tuple(data["minimum"]), maximum=tuple(data["maximum"]))


def _read_wording(data: Mapping[str, Any] | None) -> PairWording | None:
    if data is None:
        return None
    before, after = (tuple(map(str, data[name])) for name in ("before", "after"))
    if len(before) != 2 or len(after) != 2:
        raise TypeError(f"pair_wording is {data!r:.100}: expected two texts before and two after")
    return PairWording(before=before, after=after)


def manifest_bytes(manifest: Manifest) -> bytes:
    """What `manifest.json` holds.

    Raises:
        ValueError: a figure is not finite, which JSON cannot say.
    """
    return (json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
