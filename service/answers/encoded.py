"""What the engine returns: an answer's arrays, under the name of what they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.manifest import Manifest
from model.tasks.settings import Task
from service.answers.quantize import empty_vectors
from service.inference.backend import Float32Array
from service.requests.plan import EncodePlan

Kind = Literal["embeddings", "scores", "sparse"]
Values = NDArray[Any] | list[Any]


@dataclass(frozen=True, slots=True)
class Encoded:
    """What `Engine.encode` returns; one entry an input, in their order.

    Attributes:
        kind: what was computed: `embeddings`, `scores` or `sparse`. The attribute of this name holds it, the others
            raise an AttributeError that says what there is.
        values: the same, whichever it is.
        items: `{"tokens", "truncated", ...}` of each input, as in `POST /encode`'s answer.
        attention: `POST /encode`'s entries with arrays in place of lists; None where none was asked for.
        prompt: what was put in front of each text, or None.
        labels: names of the scores' columns; empty where there are no scores.
    """

    kind: Kind
    values: Values
    items: list[dict[str, Any]]
    attention: list[dict[str, Any]] | None
    prompt: str | None
    labels: tuple[str, ...] = ()

    @property
    def embeddings(self) -> Values:
        """float32 [N, dimensions], or int8 and uint8 where `encoding_format` says so.

        Of a multi-vector model, with `output="tokens"` and with `spans` a list of [n, dimensions].
        """
        return self._of("embeddings")

    @property
    def scores(self) -> Float32Array:
        """float32 [N, labels] of a classifier or cross-encoder."""
        return np.asarray(self._of("scores"))

    @property
    def sparse(self) -> list[dict[str, Any]]:
        """`{"indices", "values"}` of each input: ids of words, and their weights."""
        return list(self._of("sparse"))

    def _of(self, kind: Kind) -> Values:
        if self.kind != kind:
            raise AttributeError(f"this model gives no {kind}: read .{self.kind}")
        return self.values


def empty_result(plan: EncodePlan, manifest: Manifest) -> Encoded:
    """What a call returns, with room for all of it and nothing in it yet."""
    count = len(plan.inputs)
    kind: Kind = "embeddings" if plan.request.output == "tokens" else _KINDS.get(plan.task, "embeddings")
    return Encoded(
        kind,
        empty_vectors(count, plan.dimensions, plan.request.encoding_format)
        if plan.is_one_array
        else [np.empty(0, np.float32)] * count,
        [{}] * count,
        [{}] * count if plan.request.attention else None,
        plan.prompt.text if plan.prompt else None,
        manifest.labels if kind == "scores" else (),
    )


_KINDS: Mapping[Task, Kind] = MappingProxyType({"classification": "scores", "sparse": "sparse"})
