"""The seam of explaining: one text in, what some of its tokens give to the model's output out.

`explain.onnx` in ONNX Runtime is the one real thing behind it; tests put a fake there.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model.artifact import EXPLAIN_GRAPH, Artifact
from model.graph_names import INPUT_IDS, OWN_SHARES, PARTS, SOURCES, TOKEN_TYPE_IDS, WHOLE
from service.inference.backend import Cancellation, Float32Array, Int64Array
from service.inference.onnx_session import load_session, run_options

_LARGE_ROWS = 1024  # token vectors; after a larger run ONNX Runtime's arena gives its memory back


@dataclass(frozen=True, slots=True)
class TokenParts:
    """What some tokens of a text give to the model's output, through every layer.

    Attributes:
        parts: [N, D'], one row a token; with the biases' part they add up to `whole`.
        whole: [D'], the task's output: an embedding's pooled vector before normalisation, a classification's logits.
        own_shares: [L, N], how much of each token's vector is still its own after each layer, from 0 to 1.
    """

    parts: Float32Array
    whole: Float32Array
    own_shares: Float32Array


class Decomposer(Protocol):
    """Decomposes texts. `run` is called from several threads at once and must be safe for that."""

    def run(
        self, input_ids: Int64Array, type_ids: Int64Array | None, sources: Int64Array, cancellation: Cancellation
    ) -> TokenParts:
        """The parts of some tokens of one text, on the calling thread.

        Args:
            input_ids: [n].
            type_ids: [n], or None for all 0.
            sources: [N], places of the tokens.
            cancellation: ends the run early.

        Raises:
            Exception: anything; also once the run is cancelled.
        """
        ...


class OnnxDecomposer:
    """An artifact's `explain.onnx`.

    Raises:
        ArtifactError: the graph does not load.
        ProviderUnavailable: the provider cannot be used.
    """

    def __init__(self, artifact: Artifact, *, provider: str = "cpu") -> None:
        self._session = load_session(artifact, EXPLAIN_GRAPH, intra_op_threads=1, provider=provider)
        self._has_types = TOKEN_TYPE_IDS in {entry.name for entry in self._session.get_inputs()}

    def run(
        self, input_ids: Int64Array, type_ids: Int64Array | None, sources: Int64Array, cancellation: Cancellation
    ) -> TokenParts:
        """As `Decomposer.run`."""
        feeds = {INPUT_IDS: input_ids[np.newaxis], SOURCES: sources}
        if self._has_types:
            feeds[TOKEN_TYPE_IDS] = (np.zeros_like(input_ids) if type_ids is None else type_ids)[np.newaxis]
        options = run_options(cancellation, shrinks=len(sources) * len(input_ids) > _LARGE_ROWS)
        return TokenParts(*self._session.run([PARTS, WHOLE, OWN_SHARES], feeds, options))
