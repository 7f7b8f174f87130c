"""What `attention` may ask for, on drawn maps and over HTTP: shapes, labels, limits to the byte, and head masks."""

import base64
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel

from model.analysis.reductions import rollout as roll_out
from model.analysis.statistics import STATISTICS
from service.answers.attention import make_maps, make_statistics, picture, written_pieces
from service.http.response import SAFETENSORS
from service.requests.attention import label_axes, plan_axes, select_attention
from service.requests.schemas import AttentionRequest, EncodeAnswer
from service.tokenization.rows import TokenizedInput
from service.tokenization.tokenizer import Tokenizer
from tests.attention_reference import transformed
from tests.service.conftest import Serve, Served, read_tensors
from tests.service.fake_engine import (
    CLS,
    MAX_LENGTH,
    NUM_HEADS,
    SEP,
    WORD_IDS,
    FakeBackend,
    attention_weights,
    make_tokenizer,
    value_norms,
    write_fake_artifact,
)
from tests.tokenizers import TOKENIZERS

TEXT = "The cats sat"
TOKENS = ["[CLS]", "the", "cat", "##s", "sat", "[SEP]"]
OFFSETS = [[0, 0], [0, 3], [4, 7], [7, 8], [9, 12], [0, 0]]
IDS = [CLS, *(WORD_IDS[word] for word in TOKENS[1:-1]), SEP]
SPECIAL = [True, False, False, False, False, True]
WORD_OF = [None, 0, 1, 1, 2, None]
MAPS: list[Any] = [attention_weights(np.array(IDS), layer) for layer in range(len(NUM_HEADS))]


def attention_of(shared: Served, inputs: Any = TEXT, **options: Any) -> dict[str, Any]:
    response = shared.encode({"inputs": inputs, "attention": options})
    assert response.status_code == 200, response.text
    EncodeAnswer.model_validate_json(response.content, strict=True)
    entry: dict[str, Any] = response.json()["attention"][0]
    return entry


@pytest.mark.parametrize("form", ["weights", "norms"])
@pytest.mark.parametrize(  # all of them are gone through below, on maps that are drawn
    "options",
    [
        {"layers": "all", "heads": "all"},
        {"layers": [1, 0], "heads": [1], "queries": "cls"},
        {"layers": [1], "level": "word", "reduce": "max", "exclude_special": True},
    ],
    ids=str,
)
def test_maps_equal_their_definition(shared: Served, form: str, options: dict[str, Any]) -> None:
    maps, atol, is_norms = MAPS, 1e-6, form == "norms"
    if is_norms:
        norms = [value_norms(np.array(IDS), layer)[:, None].astype(np.float64) for layer in range(len(MAPS))]
        maps, atol = [weights * of_values for weights, of_values in zip(MAPS, norms, strict=True)], 2e-6
    entry = attention_of(shared, **options, form=form)
    expected = transformed(maps, options, special=SPECIAL, word_ids=WORD_OF)
    assert (entry.get("form") == "norms", shared.backend.batches[-1].wants_norms) == (is_norms, is_norms)
    for found, wanted in zip(entry["weights"], expected, strict=True):
        np.testing.assert_allclose(np.array(found).reshape(wanted.shape), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("reduce", "layers", "heads", "maps", "computed"),
    [
        ("mean", [1, 2, 0], [[0, 1, 2], [], [0, 1]], [1, 0, 1], (0, 1, 2)),
        ("max", [1, 0], [[0, 1, 2], [0, 1]], [1, 1], (0, 1)),
        ("rollout", [0, 1, 2], [[0, 1], [0, 1, 2], []], [1], (0, 1, 2)),  # all layers, whatever was asked for
    ],
)
def test_a_reduced_answer_says_so_and_keeps_its_axes(
    shared: Served, reduce: str, layers: list[int], heads: Any, maps: list[int], computed: tuple[int, ...]
) -> None:
    entry = attention_of(shared, layers=[1] if reduce == "rollout" else layers, reduce=reduce)
    assert shared.backend.batches[-1].attention_layers == computed
    assert (entry["reduce"], entry["layers"], entry["heads"]) == (reduce, layers, heads)
    assert [len(layer) for layer in entry["weights"]] == maps
    assert not {"reduce", "form"} & attention_of(shared, layers=[1]).keys()
    assert not shared.backend.batches[-1].wants_norms


def test_a_rollout_goes_through_no_head_that_is_switched_off(shared: Served) -> None:
    def rollout(mask: Any, **options: Any) -> Any:
        body = {"inputs": TEXT, "head_mask": mask, "attention": {"reduce": "rollout", **options}}
        return np.array(shared.encode(body).json()["attention"][0]["weights"][0][0])

    every = [[layer, head, 0] for layer, count in enumerate(NUM_HEADS) for head in range(count)]
    np.testing.assert_array_equal(rollout(every), np.eye(len(TOKENS)))
    layers = [maps[[head]] for maps, head in zip(MAPS, (1, 0), strict=False)]
    np.testing.assert_allclose(rollout([[0, 0, 0], [1, 1, 0], [1, 2, 0]]), roll_out(layers), atol=1e-6)


def test_words_stand_in_place_of_tokens_and_special_ones_are_left_out_where_asked_for(shared: Served) -> None:
    entry = attention_of(shared, layers=[0], level="word")
    words, places = ["[CLS]", "The", "cats", "sat", "[SEP]"], [[0, 0], [0, 3], [4, 8], [9, 12], [0, 0]]
    assert (entry["words"], entry["offsets"], "tokens" in entry) == (words, places, False)
    entry = attention_of(shared, layers=[0], exclude_special=True)
    assert (entry["tokens"], entry["offsets"]) == (TOKENS[1:-1], OFFSETS[1:-1])
    entry = attention_of(shared, layers=[0], exclude_special=True, level="word")
    assert (entry["words"], entry["offsets"]) == (words[1:-1], places[1:-1])


@pytest.mark.parametrize(
    ("level", "top_k", "reduce"), [("token", None, "none"), ("word", 2, "mean"), ("word", None, "rollout")]
)
def test_a_text_of_special_tokens_only(shared: Served, level: str, top_k: int | None, reduce: str) -> None:
    options = {"layers": [0], "exclude_special": True, "level": level, "top_k": top_k, "reduce": reduce}
    entry = attention_of(shared, "", **options)
    assert entry["words" if level == "word" else "tokens"] == []
    assert np.array(entry["weights"]).size == 0
    entry = attention_of(shared, "", **options, queries="cls")
    assert np.array(entry["weights"]).shape == (1, 2 if reduce == "none" else 1, 1, 0)


def test_special_tokens_among_token_ids_are_those_the_tokenizer_adds(shared: Served) -> None:
    entry = attention_of(shared, IDS, layers=[0], exclude_special=True)
    assert (entry["tokens"], entry["offsets"]) == (TOKENS[1:-1], None)
    np.testing.assert_allclose(entry["weights"][0], MAPS[0][:, 1:-1, 1:-1], atol=1e-6)


@pytest.mark.parametrize("form", ["weights", "norms"])
def test_top_k_are_the_largest_and_the_mass_left_out(shared: Served, form: str) -> None:
    entry = attention_of(shared, layers=[1, 0], top_k=2, form=form)
    for layer, *found in zip([1, 0], entry["indices"], entry["weights"], entry["left_out"], strict=True):
        maps = MAPS[layer] if form == "weights" else MAPS[layer] * value_norms(np.array(IDS), layer)[:, np.newaxis]
        order = np.argsort(-maps, axis=-1, kind="stable")[..., :2]
        largest = np.take_along_axis(maps, order, axis=-1)
        left_out = maps.sum(axis=-1, dtype=np.float64) - largest.sum(axis=-1, dtype=np.float64)
        for array, expected in zip(found, (order, largest, left_out), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-6, atol=2e-6)


def test_base64_holds_the_same_numbers(shared: Served) -> None:
    body = {"inputs": TEXT, "attention": {"layers": "all", "top_k": 3}}
    response = shared.encode({**body, "encoding_format": "base64"})
    EncodeAnswer.model_validate_json(response.content, strict=True)
    plain, packed = shared.encode(body).json()["attention"][0], response.json()["attention"][0]
    for field, dtype in (("indices", "int32"), ("weights", "float32"), ("left_out", "float32")):
        for layer, tensor in zip(plain[field], packed[field], strict=True):
            assert tensor["dtype"] == dtype
            data = np.frombuffer(base64.b64decode(tensor["data"]), dtype).reshape(tensor["shape"])
            np.testing.assert_array_equal(np.array(layer, dtype).reshape(data.shape), data)


def test_statistics_stand_in_place_of_weights(shared: Served) -> None:
    entry = attention_of(shared, form="stats", layers=[1, 2], heads="all")
    assert set(entry) == {"layers", "heads", "statistics"}
    assert tuple(entry["statistics"]) == STATISTICS
    assert entry["statistics"]["repeated_token"] is None
    for values in entry["statistics"].values():
        assert values is None or [len(layer) for layer in values] == [3, 0]
    by_text = attention_of(shared, "the cat the", form="stats", layers=[0])["statistics"]
    by_ids = attention_of(shared, [CLS, 4, 5, 4, SEP], form="stats", layers=[0])["statistics"]
    assert by_ids == by_text
    maps = attention_weights(np.array([CLS, 4, 5, 4, SEP]), 0)
    np.testing.assert_allclose(by_text["repeated_token"], [(maps[:, 1, 3] + maps[:, 3, 1]) / 2], rtol=1e-5)


@pytest.mark.parametrize("encoding_format", ["float", "float16"])
def test_safetensors_hold_what_json_holds(shared: Served, encoding_format: str) -> None:
    body = {"inputs": [TEXT, "dog"], "attention": {"layers": [1, 0], "heads": [1, 0]}}
    response = shared.encode({**body, "encoding_format": encoding_format}, accept=SAFETENSORS)
    assert response.headers["content-type"] == SAFETENSORS
    tensors, rest = read_tensors(response.content)
    plain = shared.encode(body).json()
    assert set(tensors) == {"embeddings", "attention.0", "attention.1"}
    np.testing.assert_array_equal(tensors["embeddings"], np.array(plain.pop("embeddings"), np.float32))
    for index, entry in enumerate(plain["attention"]):
        weights = np.array(entry.pop("weights"), np.float32)
        dtype = np.float32 if encoding_format == "float" else np.float16
        np.testing.assert_array_equal(tensors[f"attention.{index}"], weights.astype(dtype), strict=True)
    assert rest == plain


def test_layers_that_differ_in_heads_are_tensors_of_their_own(shared: Served) -> None:
    body = {"inputs": TEXT, "attention": {"layers": "all", "top_k": 2}}
    tensors, _ = read_tensors(shared.encode(body, accept=SAFETENSORS).content)
    del tensors["embeddings"]
    shapes = {"": (6, 2), ".indices": (6, 2), ".left_out": (6,)}
    assert {name: array.shape for name, array in tensors.items()} == {
        f"attention.0.{layer}{name}": (heads, *shape)
        for layer, heads in enumerate(NUM_HEADS)
        for name, shape in shapes.items()
    }
    assert tensors["attention.0.0.indices"].dtype == np.int32


@pytest.mark.parametrize(
    ("path", "form", "accept", "status", "param"),
    [
        ("/tokenize", {}, SAFETENSORS, 406, "Accept"),
        ("/encode", {"encoding_format": "float16"}, "application/json", 422, "encoding_format"),
        ("/encode", {"encoding_format": "base64"}, SAFETENSORS, 422, "encoding_format"),
    ],
)
def test_what_goes_with_neither_form_is_refused(
    shared: Served, path: str, form: dict[str, str], accept: str, status: int, param: str
) -> None:
    response = shared.client.post(path, json={"inputs": TEXT, **form}, headers={"accept": accept})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert not shared.backend.batches


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
    answered = [make_maps(weights, selection, own, {}) for weights, own in zip(attentions, axes, strict=True)]
    arrays = [array for maps in answered for layers in maps.values() for array in layers]
    assert selection.answer_bytes(axes) == sum(array.nbytes for array in arrays)
    halves = sum(array.size * (2 if array.dtype == np.float32 else 4) for array in arrays)
    assert selection.answer_bytes(axes, is_half=True) == halves
    assert all(array.flags.c_contiguous for array in arrays)
    computed = [each[layer] for each in attentions for layer in selection.layers]
    assert selection.work_bytes([len(item.input_ids) for item in inputs]) == sum(array.nbytes for array in computed)
    whole = select_attention(request.model_copy(update={"top_k": None}), counts)
    options = {**request.model_dump(), "layers": list(whole.layers), "heads": list(whole.heads or ()) or "all"}
    for item, weights, own in zip(inputs, attentions, axes, strict=True):
        assert item.encoding
        special, word_ids = list(map(bool, item.encoding.special_tokens_mask)), item.encoding.word_ids
        expected = transformed(list(weights.values()), options, special=special, word_ids=word_ids)
        found = make_maps(weights, whole, own, {})["weights"]
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
        found = make_statistics(attentions, selection, own, input_ids=item.input_ids, pieces=tokens)
        for layers in found.values():  # null counts as much as numbers would
            size += 4 * selection.num_heads if layers is None else sum(array.nbytes for array in layers)
    assert selection.answer_bytes(axes) == size


def test_punctuation_is_what_the_text_has_and_not_how_a_vocabulary_writes_it() -> None:
    made = FastTokenizer.from_str(TOKENIZERS["bpe"]().to_str())
    made.decoder = ByteLevel()
    tokenizer = Tokenizer(made, 32, threads=1)
    (item,) = tokenizer.encode_now(["\u201ccat\u201d, 。"])
    assert "".join(dict.fromkeys(written_pieces(item, tokenizer.tokens(item), tokenizer))) == "\u201ccat\u201d,。"
    ids = TokenizedInput(np.zeros(3, np.int64), False, 3, None)
    assert written_pieces(ids, ["âĢľ", "Ġ,", "Ġcat"], tokenizer) == ["\u201c", ",", "cat"]


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


@pytest.mark.parametrize("count", [1, 150])
def test_a_picture_holds_its_texts_and_says_what_it_leaves_out(count: int) -> None:
    title = "Attention of layer 3, head 1"
    drawn = ElementTree.fromstring(picture([(title, np.eye(2))] * count, ["テキスト", "a"], ["x", "y"]))  # noqa: S314
    width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
    named, row, *_, last = drawn.iter("{http://www.w3.org/2000/svg}text")
    assert named.text == title
    assert len(title) * 6.6 <= width, "as wide as Chromium draws it, in 11 pixels"
    assert float(row.attrib["x"]) >= 4 * 11, "letters as wide as they are high"
    images = [*drawn.iter("{http://www.w3.org/2000/svg}image")]
    assert len(images) == (1 if count == 1 else 1 + 144)
    assert (last.text == "the first 144 of 150") == (count > 1)
    assert max(float(image.attrib["y"]) + float(image.attrib["height"]) for image in images) <= height
    assert count == 1 or float(last.attrib["y"]) <= height
