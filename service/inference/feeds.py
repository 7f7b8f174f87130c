"""What every engine is fed of a batch, how it is warmed up, and how a task's output becomes one entry a text."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact import (
    ATTENTION_LAYERS,
    GRAPH,
    HEAD_GATES,
    INPUT_IDS,
    LENGTHS,
    NORM_LAYERS,
    SEEN_LENGTHS,
    TOKEN_TYPE_IDS,
    Artifact,
    ArtifactError,
)
from model.config_parts import Task
from service.inference.backend import Batch, Float32Array, Int64Array

# Kernels choose their tiling by length. The longest text is added, up to a limit: scores grow with the square of the
# length, and at 8,192 tokens take gigabytes that may never be needed.
_WARM_UP_LENGTHS = (1, 8, 32, 128)
_LONGEST_WARM_UP = 512

Feed = Callable[[Batch], NDArray[Any]]


def plan_feeds(artifact: Artifact) -> list[tuple[str, Feed]]:
    """What is fed to each input of the manifest."""
    config = artifact.manifest.config
    num_layers, no_gates = config.num_layers, np.zeros((0, sum(config.num_heads)), dtype=np.float32)
    feeds: dict[str, Feed] = {
        INPUT_IDS: lambda batch: batch.input_ids,
        LENGTHS: lambda batch: batch.lengths,
        SEEN_LENGTHS: lambda batch: batch.lengths if batch.seen_lengths is None else batch.seen_lengths,
        ATTENTION_LAYERS: lambda batch: _layer_mask(batch.attention_layers, num_layers),
        NORM_LAYERS: lambda batch: _layer_mask(batch.attention_layers if batch.wants_norms else (), num_layers),
        HEAD_GATES: lambda batch: no_gates if batch.head_gates is None else batch.head_gates,
        TOKEN_TYPE_IDS: lambda batch: (
            np.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        ),
    }
    if unknown := [name for name in artifact.manifest.inputs if name not in feeds]:
        raise ArtifactError(f"{artifact.path(GRAPH)} wants {', '.join(unknown)}: this version feeds {', '.join(feeds)}")
    return [(name, feeds[name]) for name in artifact.manifest.inputs]


def warm_up_lengths(longest: int) -> list[int]:
    """Tokens of the texts that an engine runs before its first request."""
    return [length for length in (*_WARM_UP_LENGTHS, min(longest, _LONGEST_WARM_UP)) if length <= longest]


def _layer_mask(layers: tuple[int, ...], num_layers: int) -> NDArray[np.bool_]:
    mask = np.zeros(num_layers, dtype=np.bool_)
    mask[list(layers)] = True
    return mask


def blank_batch(length: int) -> Batch:
    """One text of this many tokens."""
    return Batch(np.zeros((1, length), np.int64), np.array([length]))


def _real_tokens(output: Float32Array, lengths: Int64Array) -> list[Float32Array]:
    """[B, S, D'] as [n, D'] of each text."""
    return [row[:length] for row, length in zip(output, lengths, strict=True)]


def _weighted_words(output: Float32Array, lengths: Int64Array) -> list[Float32Array]:
    """[B, V] as [k, 2] of each text: few words of the vocabulary have a weight."""
    del lengths
    found = []
    for row in output:
        words = np.flatnonzero(row > 0)
        found.append(np.stack([words.astype(np.float32), row[words]], axis=1))
    return found


SPLITS: Mapping[Task, Callable[[Float32Array, Int64Array], Sequence[Float32Array] | Float32Array]] = MappingProxyType(
    {
        "embedding": lambda output, _lengths: output,
        "classification": lambda output, _lengths: output,
        "token_classification": _real_tokens,
        "sparse": _weighted_words,
        "multi_vector": _real_tokens,
    }
)
"""A task's output as one entry a text."""
