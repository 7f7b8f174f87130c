"""The size of an attention answer is known before anything runs, to the byte."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.answer import select_weights
from service.jobs import JobResult
from service.schemas import AttentionRequest
from service.selection import select_attention

heads_per_layer = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], AttentionRequest, list[int]]:
    counts = draw(heads_per_layer)
    layer = st.integers(-len(counts), len(counts) - 1)
    head = st.integers(0, min(counts) - 1)
    request = AttentionRequest(
        layers=draw(st.sampled_from(["all", "last"]) | st.lists(layer, min_size=1, max_size=6)),
        heads=draw(st.just("all") | st.lists(head, min_size=1, max_size=4)),
        queries=draw(st.sampled_from(["all", "cls"])),
    )
    return counts, request, draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))


def result_of(length: int, counts: list[int], layers: tuple[int, ...]) -> JobResult:
    attentions = {layer: np.zeros((counts[layer], length, length), dtype=np.float32) for layer in layers}
    return JobResult(np.zeros(2, dtype=np.float32), None, attentions, 0.0, 0.0)


@given(cases())
def test_bytes_announced_are_bytes_answered(case: Any) -> None:
    counts, request, lengths = case
    selection = select_attention(request, counts)
    results = [result_of(length, counts, selection.computed_layers) for length in lengths]
    answered = [array for result in results for array in select_weights(result, selection)]
    assert selection.answer_bytes(lengths) == sum(array.nbytes for array in answered)
    computed = [array for result in results for array in result.attentions.values()]
    assert selection.work_bytes(lengths) == sum(array.nbytes for array in computed)
    assert [len(array) for array in answered[: len(selection.layers)]] == list(map(len, selection.heads_by_layer))


@given(cases())
def test_layers_are_resolved_once_each_in_the_order_asked_for(case: Any) -> None:
    counts, request, _ = case
    selection = select_attention(request, counts)
    assert len(set(selection.layers)) == len(selection.layers)
    assert set(selection.layers) <= set(range(len(counts)))
    assert selection.computed_layers == tuple(sorted(selection.layers))
    if isinstance(request.layers, list):
        asked = [layer % len(counts) for layer in request.layers]
        assert selection.layers == tuple(sorted(set(asked), key=asked.index))
