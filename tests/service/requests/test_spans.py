"""Spans of what has none (other poolings, a dense layer behind the mean), and of thousands."""

import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model.artifact import Artifact, Manifest
from model.config_parts import Projection
from service.answers.vectors import span_vectors
from service.batching.jobs import JobResult
from service.errors import Invalid
from service.requests.plan import plan_encoding
from service.requests.schemas import EncodeRequest
from service.requests.spans import SpanPlan
from service.tokenization.inputs import Inputs
from service.tokenization.rows import KeptEncoding, TokenizedInput
from tests.task_artifacts import TaskArtifact

TEXT = "the cat sat"
SPANS = [[[0, 3]]]


def manifest(artifact: TaskArtifact, **config: Any) -> Manifest:
    found = Artifact.open(artifact.artifact).manifest
    return replace(found, config=replace(found.config, **config))


@pytest.mark.parametrize(
    ("config", "way"),
    [({"pooling": "cls"}, "cls"), ({"projections": (Projection(size=16),)}, "mean and a dense layer")],
)
def test_spans_are_of_models_that_take_the_mean(embedder: TaskArtifact, config: dict[str, Any], way: str) -> None:
    request, inputs = EncodeRequest(inputs=TEXT, spans=SPANS), Inputs(texts=[TEXT])
    with pytest.raises(Invalid, match=f"drawn pools by {way}; leave spans out") as raised:
        plan_encoding(request, inputs, manifest(embedder, **config))
    assert raised.value.param == "spans"
    assert plan_encoding(request, inputs, manifest(embedder)).spans is not None


def test_a_thousand_long_spans_cost_what_short_ones_do(generator: np.random.Generator) -> None:
    size, vectors = 500, generator.standard_normal((500, 4), np.float32)
    special = [place % 100 == 0 for place in range(size)]
    encoding = KeptEncoding(
        ["a"] * size, [(place, place + 1) for place in range(size)], list(range(size)), list(map(int, special))
    )
    item = TokenizedInput(np.arange(size), False, size, encoding, ("a" * size,))
    spans = [[place % 200, size - place // 200] for place in range(2000)]
    tracemalloc.start()
    (tokens,) = SpanPlan([spans]).find_tokens([item], 0)
    found = span_vectors(JobResult(vectors[0], vectors, {}, 0.0, 0.0), tokens)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for (start, end), vector in list(zip(spans, found, strict=True))[::29]:
        inside = [vectors[place] for place in range(start, end) if not special[place]]
        np.testing.assert_allclose(vector, np.mean(inside, axis=0, dtype=np.float64), rtol=0, atol=1e-6)
    assert peak < 8 * sum(end - start for start, end in spans) / 4


def test_white_space_behind_a_cut_text_is_read_once() -> None:
    encoding = KeptEncoding(["a"], [(0, 1)], [0], [0])
    item = TokenizedInput(np.zeros(1, np.int64), True, 2, encoding, ("a" + " " * 200_000 + "z",))

    def seconds(end: int) -> float:
        started = time.process_time()
        (tokens,) = SpanPlan([[[0, end]] * 3000]).find_tokens([item], 0)
        assert tokens.ranges.tolist() == [[0] * 3000, [1] * 3000]
        return time.process_time() - started

    assert seconds(200_000) < 5 * seconds(1) + 0.05
    with pytest.raises(Invalid, match=r"spans\[0\]\[1\]: reaches into what was cut off"):
        SpanPlan([[[0, 200_001], [0, 200_002]]]).find_tokens([item], 0)
