"""What `attention` may ask for, over HTTP: shapes, labels, limits, and values against their definition."""

import base64
from typing import Any

import numpy as np
import pytest

from model.analysis.statistics import STATISTICS
from service.http.response import SAFETENSORS
from service.requests.schemas import EncodeAnswer
from tests.attention_reference import transformed
from tests.service.conftest import Served, read_tensors
from tests.service.fake_engine import CLS, NUM_HEADS, SEP, WORD_IDS, attention_weights, value_norms

TEXT = "The cats sat"
TOKENS = ["[CLS]", "the", "cat", "##s", "sat", "[SEP]"]
OFFSETS = [[0, 0], [0, 3], [4, 7], [7, 8], [9, 12], [0, 0]]
IDS = [CLS, *(WORD_IDS[word] for word in TOKENS[1:-1]), SEP]
SPECIAL = [True, False, False, False, False, True]
WORDS = [None, 0, 1, 1, 2, None]
MAPS: list[Any] = [attention_weights(np.array(IDS), layer) for layer in range(len(NUM_HEADS))]


def attention_of(shared: Served, inputs: Any = TEXT, **options: Any) -> dict[str, Any]:
    response = shared.encode({"inputs": inputs, "attention": options})
    assert response.status_code == 200, response.text
    EncodeAnswer.model_validate_json(response.content, strict=True)
    entry: dict[str, Any] = response.json()["attention"][0]
    return entry


@pytest.mark.parametrize("form", ["weights", "norms"])
@pytest.mark.parametrize(  # `tests/service/requests/test_attention.py` goes through all of them, on maps that it draws
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
    expected = transformed(maps, options, special=SPECIAL, word_ids=WORDS)
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
