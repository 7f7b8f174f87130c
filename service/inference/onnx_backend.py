"""The backend of the service: an artifact's graph in ONNX Runtime.

It feeds the inputs that the manifest lists and fetches the outputs that a batch wants; it knows no requests.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact import GRAPH, Artifact
from model.graph_names import (
    ATTENTION_LAYERS,
    HEAD_GATES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LENGTHS,
    NORM_LAYERS,
    TOKEN_TYPE_IDS,
    attentions_name,
    value_norms_name,
)
from model.manifest import ArtifactError
from model.processor import length_step
from model.tasks.settings import Task
from service.inference.backend import Batch, BatchOutput, Float32Array, Int64Array
from service.inference.onnx_session import open_session, operators, run_options

_LARGE_OUTPUT = 8 * 2**20  # bytes of one run's outputs; after such a run the arena is shrunk
_SHRINK_AFTER = 1.0  # seconds: by then the answer has been sent, and its memory can be given back
# Kernels choose their tiling by length. The longest text is added, up to a limit: scores grow with the square of the
# length, and at 8,192 tokens take gigabytes that may never be needed.
_WARM_UP_LENGTHS = (1, 8, 32, 128)
_LONGEST_WARM_UP = 512
_LARGE_SCORES = 64 * 2**20  # bytes of one layer's scores; after such a run the arena is shrunk too

Feed = Callable[[Batch], NDArray[Any]]


class OnnxBackend:
    """One session, for any number of threads at once: each runs its batch on itself.

    Args:
        artifact: a verified artifact.
        intra_op_threads: threads of one run, the calling one included.
        provider: `cpu` or `cuda`.

    Raises:
        ArtifactError: the graph does not load, or is not what its manifest says.
        ProviderUnavailable: the provider cannot be used.
    """

    def __init__(self, artifact: Artifact, *, intra_op_threads: int = 1, provider: str = "cpu") -> None:
        manifest = artifact.manifest
        self._output = manifest.task_output
        self._split = _SPLITS[manifest.task]
        self._num_layers = manifest.config.num_layers
        self._most_heads = max(manifest.config.num_heads)
        self._max_length = manifest.max_sequence_length
        self._has_norms = NORM_LAYERS in manifest.inputs
        self._length_step = length_step() if provider == "cpu" else 1
        self._large_output_at: float | None = None
        self._feeds = _plan_feeds(artifact)
        self._session = open_session(artifact, intra_op_threads=intra_op_threads, provider=provider)

    def run(self, batch: Batch) -> BatchOutput:
        """Computes one batch, on the calling thread (and the session's others, where it has any).

        Raises:
            Exception: whatever ONNX Runtime raises; also once the batch is cancelled.
        """
        batch, layers = batch.padded(self._length_step), batch.attention_layers
        names = [self._output, *([LAST_HIDDEN_STATE] if batch.wants_tokens else []), *map(attentions_name, layers)]
        names += map(value_norms_name, layers) if batch.wants_norms else ()
        feeds = {name: feed(batch) for name, feed in self._feeds}
        options = run_options(batch.cancellation, shrinks=self._should_shrink())
        outputs: list[Float32Array] = self._session.run(names, feeds, options)
        if self._used_much_memory(batch, outputs):
            self._large_output_at = time.monotonic()
        found = dict(zip(names, outputs, strict=True))
        return BatchOutput(
            output=self._split(found[self._output], batch.lengths),
            last_hidden_state=found.get(LAST_HIDDEN_STATE),
            attentions={layer: found[attentions_name(layer)] for layer in layers},
            value_norms={layer: found[value_norms_name(layer)] for layer in layers if batch.wants_norms},
        )

    def _used_much_memory(self, batch: Batch, outputs: list[Float32Array]) -> bool:
        """Whether a run took so much memory that the arena should be shrunk afterwards."""
        rows, length = batch.input_ids.shape
        scores = 4 * rows * self._most_heads * length**2
        wants_more = len(outputs) > 1 and sum(output.nbytes for output in outputs) > _LARGE_OUTPUT
        return wants_more or scores > _LARGE_SCORES

    def _should_shrink(self) -> bool:
        """Whether this run gives unused memory back: the first one a second after a run that used much.

        Otherwise ONNX Runtime's arena keeps its largest size for ever. Attention weights and the scores of long texts
        are far larger than everything else that a run needs.
        """
        large_output_at = self._large_output_at
        if large_output_at is None or time.monotonic() - large_output_at < _SHRINK_AFTER:
            return False
        self._large_output_at = None
        return True

    def warm_up(self) -> None:
        """Runs texts of several lengths, one with every layer's attention, so that first requests are not slower.

        Raises:
            Exception: whatever ONNX Runtime raises; such an artifact does not run here.
        """
        for length in (*_WARM_UP_LENGTHS, min(self._max_length, _LONGEST_WARM_UP)):
            if length <= self._max_length:
                self.run(_blank_batch(length))
        layers, length = tuple(range(self._num_layers)), min(8, self._max_length)
        self.run(_blank_batch(length, layers, wants_tokens=True, wants_norms=self._has_norms))

    def operators(self) -> dict[str, list[str]]:
        """The operators of the nodes that each provider runs."""
        return operators(self._session)

    def close(self) -> None:
        """Frees the session; runs that are under way keep it until they end."""
        del self._session


def _plan_feeds(artifact: Artifact) -> list[tuple[str, Feed]]:
    """What is fed to each input of the manifest."""
    config = artifact.manifest.config
    num_layers, no_gates = config.num_layers, np.zeros((0, sum(config.num_heads)), dtype=np.float32)
    feeds: dict[str, Feed] = {
        INPUT_IDS: lambda batch: batch.input_ids,
        LENGTHS: lambda batch: batch.lengths,
        ATTENTION_LAYERS: lambda batch: _layer_mask(batch.attention_layers, num_layers),
        NORM_LAYERS: lambda batch: _layer_mask(batch.attention_layers if batch.wants_norms else (), num_layers),
        HEAD_GATES: lambda batch: no_gates if batch.head_gates is None else batch.head_gates,
        TOKEN_TYPE_IDS: _token_type_ids,
    }
    if unknown := [name for name in artifact.manifest.inputs if name not in feeds]:
        raise ArtifactError(f"{artifact.path(GRAPH)} wants {', '.join(unknown)}: this version feeds {', '.join(feeds)}")
    return [(name, feeds[name]) for name in artifact.manifest.inputs]


def _token_type_ids(batch: Batch) -> NDArray[Any]:
    return np.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids


def _rows(output: Float32Array, lengths: Int64Array) -> Float32Array:
    del lengths
    return output


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


_SPLITS: Mapping[Task, Callable[[Float32Array, Int64Array], Sequence[Float32Array] | Float32Array]] = MappingProxyType(
    {"embedding": _rows, "classification": _rows, "sparse": _weighted_words, "multi_vector": _real_tokens}
)
"""A task's output as one entry a text."""


def _layer_mask(layers: tuple[int, ...], num_layers: int) -> NDArray[np.bool_]:
    mask = np.zeros(num_layers, dtype=np.bool_)
    mask[list(layers)] = True
    return mask


def _blank_batch(
    length: int, layers: tuple[int, ...] = (), *, wants_tokens: bool = False, wants_norms: bool = False
) -> Batch:
    input_ids, lengths = np.zeros((1, length), np.int64), np.array([length], np.int64)
    return Batch(input_ids, lengths, layers, wants_tokens, wants_norms)
