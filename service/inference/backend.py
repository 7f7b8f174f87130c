"""The seam between scheduling and inference: numpy in, numpy out, for batches of texts and for explaining one text.

It knows neither HTTP nor an engine. Tests put a fake here; `onnx_backend` and `openvino_backend` hold the real ones.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from model.artifact import ArtifactError

Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]


class ProviderUnavailable(ArtifactError):
    """The provider that was asked for is not there, or does not run the graph; the message says what to do."""


class Cancellation:
    """Tells a run that no client waits for it any more. Any thread may do so at any time; the first call counts."""

    __slots__ = ("_callback", "_lock", "is_cancelled")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callback: Callable[[], None] | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """Ends the run early if its backend can."""
        with self._lock:
            if not self.is_cancelled and self._callback is not None:
                self._callback()
            self.is_cancelled = True

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        """Calls the callback when the run is cancelled, at once if it already is; None once the run has ended."""
        with self._lock:
            self._callback = callback
            if callback is not None and self.is_cancelled:
                callback()


@dataclass(frozen=True, slots=True)
class Batch:
    """One run of the graph. B texts, S the longest of them.

    Attributes:
        input_ids: [B, S], right-padded with anything.
        lengths: [B], real tokens a row, at least 1.
        attention_layers: layers whose attention weights are computed, ascending.
        wants_tokens: whether `last_hidden_state` is returned.
        wants_norms: whether the value norms of these attention layers are returned.
        head_gates: [B, sum of all layers' heads], first layer first, factors on what each head adds; None for heads as
            they are.
        cancellation: ends the run early once no client waits for its output.
        token_type_ids: [B, S], for models that tell the texts of a pair apart; None for all zeros.
        seen_lengths: [B], tokens a row that others see, for models that expand queries; None for all.
    """

    input_ids: Int64Array
    lengths: Int64Array
    attention_layers: tuple[int, ...] = ()
    wants_tokens: bool = False
    wants_norms: bool = False
    head_gates: Float32Array | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    token_type_ids: Int64Array | None = None
    seen_lengths: Int64Array | None = None

    def padded(self, step: int) -> Self:
        """The same batch with S padded to a multiple of `step`."""
        missing = -self.input_ids.shape[1] % step
        if not missing:
            return self
        columns = ((0, 0), (0, missing))
        types = None if self.token_type_ids is None else np.pad(self.token_type_ids, columns)
        return replace(self, input_ids=np.pad(self.input_ids, columns), token_type_ids=types)


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """What one run computed; padded rows and columns hold anything, and S may be longer than the batch's.

    Attributes:
        output: the task's, one entry a text. An embedding: the pooled vector [D], before truncation to fewer dimensions
            and before normalisation. Classification: logits [labels], of tokens [n, labels]. Multi-vector: [n, D'], a
            vector for each of its n tokens. Sparse: [k, 2], id and weight of each of k words; float32 holds every id
            exactly.
        last_hidden_state: [B, S, D], or None where not wanted.
        attentions: by layer, probabilities [B, H_l, S, S]; the wanted layers only.
        value_norms: by layer, ||f(x_j)|| [B, H_l, S] (see `model.analysis.contributions`); the wanted layers only.
    """

    output: Sequence[Float32Array] | Float32Array
    last_hidden_state: Float32Array | None
    attentions: Mapping[int, Float32Array]
    value_norms: Mapping[int, Float32Array] = field(default_factory=dict)


class Backend(Protocol):
    """Runs batches. `run` is called from several threads at once and must be safe for that."""

    def run(self, batch: Batch) -> BatchOutput:
        """Computes one batch, on the calling thread.

        Raises:
            Exception: anything, also once the batch is cancelled; the batcher fails the batch's texts and goes on.
        """

    def close(self) -> None:
        """Frees what `run` needs; no `run` comes after it."""


@dataclass(frozen=True, slots=True)
class WholeText:
    """One text to explain.

    Attributes:
        input_ids: [n].
        type_ids: [n], or None for all 0.
        place: of the token whose label is explained; None if the model does not label tokens.
    """

    input_ids: Int64Array
    type_ids: Int64Array | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class TokenParts:
    """What some tokens of a text give to the model's output, through every layer.

    Attributes:
        parts: [N, D'], one row a token; with the biases' part they add up to `whole`.
        whole: [D'], the task's output: an embedding's pooled vector before normalisation, a classification's logits, a
            token's logits.
        own_shares: [L, N], how much of each token's vector is still its own after each layer, from 0 to 1.
    """

    parts: Float32Array
    whole: Float32Array
    own_shares: Float32Array


class Decomposer(Protocol):
    """Decomposes texts. `run` is called from several threads at once and must be safe for that."""

    def run(self, text: WholeText, sources: Int64Array, cancellation: Cancellation) -> TokenParts:
        """The parts of some tokens of one text, whose places are `sources` [N], on the calling thread.

        Raises:
            Exception: anything; also once the run is cancelled.
        """
