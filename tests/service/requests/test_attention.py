"""The size of an attention answer is known before anything runs, to the byte."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.answers.attention import make_maps, make_statistics
from service.requests.attention import label_axes, plan_axes, select_attention
from service.requests.schemas import AttentionRequest
from service.tokenization.tokenizer import Tokenizer
from tests.attention_reference import transformed
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import MAX_LENGTH, NUM_HEADS, FakeBackend, make_tokenizer, write_fake_artifact

WORDS = ("the", "cats", "sat", "on", "dogs", "mat")
TOKENIZER = Tokenizer(make_tokenizer(), MAX_LENGTH, threads=1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], AttentionRequest, list[str]]:
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    layer = st.integers(-len(counts), len(counts) - 1)
    some_heads = st.lists(st.integers(0, max(0, min(counts) - 1)), min_size=1, max_size=4)
    excludes = draw(st.booleans())
    everything: Any = st.just("all")
    request = AttentionRequest(
        layers=draw(everything | st.just("last") | st.lists(layer, min_size=1, max_size=6)),
        heads=draw(everything | some_heads) if min(counts) else "all",
        queries=draw(st.sampled_from(["all", "cls"])),
        reduce=draw(st.sampled_from(["none", "mean", "max", "rollout"])),
        level=draw(st.sampled_from(["token", "word"])),
        top_k=draw(st.none() | st.integers(1, 6)),
        exclude_special=excludes,
        renormalise=excludes and draw(st.booleans()),
    )
    return counts, request, draw(st.lists(st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), min_size=1))


def draw_attentions(counts: list[int], length: int) -> dict[int, Any]:
    drawn = np.random.default_rng(length).random((len(counts), max(counts, default=0), length, length), np.float32)
    drawn /= drawn.sum(axis=-1, keepdims=True)
    return {layer: drawn[layer, :count] for layer, count in enumerate(counts)}


@given(cases())
def test_maps_equal_the_definition_and_have_the_bytes_announced(case: Any) -> None:
    counts, request, texts = case
    selection, inputs = select_attention(request, counts), TOKENIZER.encode_now(texts)
    axes = plan_axes(request, inputs, TOKENIZER)
    attentions = [draw_attentions(counts, len(item.input_ids)) for item in inputs]
    answered = [make_maps(weights, selection, own) for weights, own in zip(attentions, axes, strict=True)]
    arrays = [array for maps in answered for layers in maps.values() for array in layers]
    assert selection.answer_bytes(axes) == sum(array.nbytes for array in arrays)
    halves = sum(array.size * (2 if array.dtype == np.float32 else 4) for array in arrays)
    assert selection.answer_bytes(axes, is_half=True) == halves
    assert all(array.flags.c_contiguous for array in arrays)
    computed = [each[layer] for each in attentions for layer in selection.computed_layers]
    assert selection.work_bytes([len(item.input_ids) for item in inputs]) == sum(array.nbytes for array in computed)
    whole = select_attention(request.model_copy(update={"top_k": None}), counts)
    options = {**request.model_dump(), "layers": list(whole.layers), "heads": list(whole.heads or ()) or "all"}
    for item, weights, own in zip(inputs, attentions, axes, strict=True):
        assert item.encoding
        special, word_ids = list(map(bool, item.encoding.special_tokens_mask)), item.encoding.word_ids
        expected = transformed(list(weights.values()), options, special=special, word_ids=word_ids)
        found = make_maps(weights, whole, own)["weights"]
        assert [maps.shape for maps in found] == [maps.shape for maps in expected]
        for maps, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(maps, wanted, rtol=0, atol=1e-6)
            if request.renormalise and request.reduce != "max" and own.keys:
                sums_to = wanted.sum(axis=-1) > 0  # all but rows that look at excluded tokens only
                np.testing.assert_allclose(maps.sum(axis=-1, dtype=np.float64), sums_to, rtol=0, atol=1e-6)


@given(cases())
def test_bytes_of_statistics(case: Any) -> None:
    counts, request, texts = case
    request = AttentionRequest(layers=request.layers, heads=request.heads, form="stats")
    selection, inputs = select_attention(request, counts), TOKENIZER.encode_now(texts)
    axes, size = plan_axes(request, inputs, TOKENIZER), 0
    for item, own in zip(inputs, axes, strict=True):
        attentions, tokens = draw_attentions(counts, len(item.input_ids)), TOKENIZER.tokens(item)
        found = make_statistics(attentions, selection, own, input_ids=item.input_ids, tokens=tokens)
        for layers in found.values():  # null counts as much as numbers would
            size += 4 * selection.num_heads if layers is None else sum(array.nbytes for array in layers)
    assert selection.answer_bytes(axes) == size


def test_places_of_tokens_are_read_once() -> None:
    """The library makes all of them again each time: the offsets of 8,000 tokens took 8 s."""
    (item,) = TOKENIZER.encode_now(["the cats sat"])
    encoding = Mock(wraps=item.encoding)
    offsets = PropertyMock(return_value=item.offsets)
    type(encoding).offsets = offsets
    request = AttentionRequest(exclude_special=True)
    (axes,) = plan_axes(request, [item], TOKENIZER)
    labels = label_axes(request, axes, replace(item, encoding=encoding), TOKENIZER.tokens(item))
    assert labels == {"tokens": ["the", "cat", "##s", "sat"], "offsets": [(0, 3), (4, 7), (7, 8), (9, 12)]}
    offsets.assert_called_once()


@pytest.mark.parametrize(  # layers of 2, 3 and 0 heads
    ("mask", "expected"),
    [
        (None, None),
        ([], None),
        ([[0, 1, 0]], [1, 0, 1, 1, 1]),
        ([[1, 2, 0.25], [0, 0, 0.5]], [0.5, 1, 1, 1, 0.25]),
        ([[-3, -1, 0], [-2, -3, 0.0]], [1, 0, 0, 1, 1]),
        ([[1, 0, 1]], [1, 1, 1, 1, 1]),
        ([[layer, head, 0] for layer, count in enumerate(NUM_HEADS) for head in range(count)], [0] * sum(NUM_HEADS)),
    ],
)
def test_the_mask_becomes_a_gate_for_every_head(shared: Served, mask: Any, expected: list[float] | None) -> None:
    response = shared.encode({"inputs": ["the cat", "a dog"], "head_mask": mask})
    assert response.status_code == 200, response.text
    gates = None if expected is None else np.array([expected] * 2, np.float32)
    np.testing.assert_array_equal(shared.backend.batches[-1].head_gates, gates, strict=True)


def test_a_gate_that_is_no_number_at_all_is_refused(shared: Served) -> None:
    content = b'{"inputs": "the", "head_mask": [[0, 0, NaN]]}'
    response = shared.client.post("/encode", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (422, "head_mask.0.2")


@pytest.mark.parametrize(
    ("asked", "param", "missing"),
    [
        ({"head_mask": [[0, 0, 0]]}, "head_mask", "head_gates"),
        ({"attention": {"form": "norms"}}, "attention.form", "norm_layers"),
    ],
)
def test_an_artifact_from_before_says_so_and_serves_the_rest(
    serve: Serve, tmp_path: Path, asked: dict[str, Any], param: str, missing: str
) -> None:
    old = write_fake_artifact(tmp_path / "old", inputs=("input_ids", "lengths", "attention_layers"))
    served = serve("--model", str(old), backend=FakeBackend())
    response = served.encode({"inputs": "the cat", **asked})
    assert (response.status_code, response.json()["error"]["param"]) == (422, param)
    assert f"its graph has no {missing}); export the model again" in response.json()["error"]["message"]
    assert served.encode({"inputs": "the cat", "head_mask": [], "attention": {}}).status_code == 200


@pytest.mark.parametrize("level", ["token", "word"])
def test_words_of_texts_are_found_beside_the_loop(level: str, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def plan(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return plan_axes(*arguments)

    monkeypatch.setattr("service.requests.plan.plan_axes", plan)
    attention = {"layers": [0], "heads": [0], "level": level, "queries": "cls", "top_k": 1}
    assert served.encode({"inputs": ["cats sat " * 9] * 200, "attention": attention}).status_code == 200
    assert [name.startswith("asyncio_") for name in threads] == [level == "word"]
