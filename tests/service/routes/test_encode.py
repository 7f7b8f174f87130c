"""`POST /encode` and `POST /similarity`: the answers, each figure computed a second time here."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import Defaults
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import (
    CLS,
    HIDDEN_SIZE,
    MAX_LENGTH,
    MODEL_NAME,
    NUM_HEADS,
    SEP,
    WORD_IDS,
    attention_weights,
    hidden_states,
    write_fake_artifact,
)
from tests.service.routes.conftest import Client, post


def ids_of(text: str) -> list[int]:
    return [CLS, *(WORD_IDS[word] for word in text.split()), SEP]


def expected_vector(ids: list[int], *, normalize: bool = True, dimensions: int | None = None) -> np.ndarray[Any, Any]:
    vector = hidden_states(np.array(ids)).mean(axis=0)[:dimensions]
    return np.asarray(vector / np.linalg.norm(vector) if normalize else vector)


def test_one_text(served: Served) -> None:
    response = served.encode({"inputs": "the cat sat"})
    answer = response.json()
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert set(answer) == {"model", "embeddings", "usage", "items"}
    assert answer["model"] == MODEL_NAME
    assert answer["usage"] == {"tokens": 5}
    assert answer["items"] == [{"tokens": 5, "truncated": False}]
    np.testing.assert_allclose(answer["embeddings"], [expected_vector(ids_of("the cat sat"))], rtol=1e-6)
    assert [batch.attention_layers for batch in served.backend.batches] == [()]


@pytest.mark.parametrize("inputs", [[CLS, 5, SEP], [[CLS, 5, SEP]]])
def test_token_ids_are_used_as_given(served: Served, inputs: Any) -> None:
    answer = served.encode({"inputs": inputs, "attention": {"layers": [0]}}).json()
    np.testing.assert_allclose(answer["embeddings"], [expected_vector([CLS, 5, SEP])], rtol=1e-6)
    assert answer["attention"][0]["tokens"] == ["[CLS]", "cat", "[SEP]"]
    assert answer["attention"][0]["offsets"] is None


def test_long_text_is_cut_and_says_so(served: Served) -> None:
    answer = served.encode({"inputs": ["cat " * 40, "cat"]}).json()
    of_long = {"tokens": MAX_LENGTH, "truncated": True, "tokens_cut": 42 - MAX_LENGTH}
    assert answer["items"] == [of_long, {"tokens": 3, "truncated": False}]
    cut = [CLS, *[WORD_IDS["cat"]] * (MAX_LENGTH - 2), SEP]
    np.testing.assert_allclose(answer["embeddings"][0], expected_vector(cut), rtol=1e-5)


@pytest.mark.parametrize(("dimensions", "normalize"), [(1, True), (3, True), (3, False), (HIDDEN_SIZE, False)])
def test_dimensions_are_cut_before_normalising(served: Served, dimensions: int, normalize: bool) -> None:
    body = {"inputs": "the cat", "dimensions": dimensions, "normalize": normalize}
    vector = served.encode(body).json()["embeddings"][0]
    expected = expected_vector(ids_of("the cat"), normalize=normalize, dimensions=dimensions)
    np.testing.assert_allclose(vector, expected, rtol=1e-6)


def test_one_vector_a_token(served: Served) -> None:
    body = {"inputs": ["the cat", "dog"], "output": "tokens"}
    answer = served.encode({**body, "normalize": False}).json()["embeddings"]
    packed = served.encode({**body, "normalize": False, "encoding_format": "base64"}).json()["embeddings"]
    normalized = served.encode(body).json()["embeddings"]
    for vectors, data, unit, text in zip(answer, packed, normalized, body["inputs"], strict=True):
        np.testing.assert_allclose(vectors, hidden_states(np.array(ids_of(text))), rtol=1e-6)
        row_by_row = np.frombuffer(base64.b64decode(data), dtype="<f4").reshape(-1, HIDDEN_SIZE)
        np.testing.assert_array_equal(row_by_row, np.float32(vectors))
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("layers", "resolved"), [("last", [2]), ("all", [0, 1, 2]), ([-2], [1]), ([1, 0], [1, 0]), ([0, -3, 1, 0], [0, 1])]
)
def test_layers(served: Served, layers: Any, resolved: list[int]) -> None:
    entry = served.encode({"inputs": "the cat", "attention": {"layers": layers}}).json()["attention"][0]
    ids = np.array(ids_of("the cat"))
    assert entry["layers"] == resolved
    assert entry["heads"] == [list(range(NUM_HEADS[layer])) for layer in resolved]
    for weights, layer in zip(entry["weights"], resolved, strict=True):
        np.testing.assert_allclose(
            np.array(weights).reshape(NUM_HEADS[layer], 4, 4), attention_weights(ids, layer), rtol=1e-6
        )
    assert [batch.attention_layers for batch in served.backend.batches] == [tuple(sorted(resolved))]  # and no others


def test_attention_of_each_input_has_its_own_size_and_offsets_in_characters(served: Served) -> None:
    texts = ["cat", "日本 🤖 cat", "the cats"]
    entries = served.encode({"inputs": texts, "attention": {"layers": [0]}}).json()["attention"]
    assert entries[2]["tokens"] == ["[CLS]", "the", "cat", "##s", "[SEP]"]
    assert entries[2]["offsets"] == [[0, 0], [0, 3], [4, 7], [7, 8], [0, 0]]
    assert (entries[1]["tokens"][-2], entries[1]["offsets"][-2:]) == ("cat", [[5, 8], [0, 0]])
    for entry in entries:
        weights = np.array(entry["weights"][0])
        assert weights.shape == (2, len(entry["tokens"]), len(entry["tokens"]))
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


def test_each_entry_of_a_large_answer_names_its_heads(client: Client, default_artifact: Path) -> None:
    """Lists are emptied as they are written, so entries share none."""
    answer = post(client(default_artifact), "/encode", inputs=["cat " * 60] * 2, attention={"layers": "all"})
    assert [entry["heads"] for entry in answer["attention"]] == [[[*range(12)]] * 6] * 2


def test_vectors_that_are_not_finite_are_an_error_not_null(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.service.fake_engine.hidden_states", lambda ids: np.full((*ids.shape, 8), np.nan))
    response = served.encode({"inputs": "cat"})
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["code"] == "inference_failed"
    assert error["message"] == "the model gave a number that is not finite", "the log has no more"


def test_attention_in_numbers_is_compressed_whatever_the_vectors_are(served: Served) -> None:
    body = {"inputs": ["the cat sat on the mat"] * 200, "attention": {"layers": "all"}}
    for wire, coding in (("binary", "gzip"), ("base64", None)):
        answer = served.encode({**body, "encoding_format": wire}, accept_encoding="gzip")
        assert answer.headers.get("content-encoding") == coding


TARGETS = ["a dog", "the cat sat", "the mat"]


def test_one_text_against_many_in_ours_and_tei_s_form(served: Served) -> None:
    source = "the cat sat"
    vectors = np.array(served.encode({"inputs": [source, *TARGETS], "normalize": False}).json()["embeddings"])
    norms = np.linalg.norm(vectors, axis=1)
    expected = vectors[1:] @ vectors[0] / norms[1:] / norms[0]
    answer = post(served.client, "/similarity", source=source, targets=TARGETS)
    assert set(answer) == {"model", "similarities", "usage", "source", "items"}
    np.testing.assert_allclose(answer["similarities"], expected, atol=1e-6)
    assert answer["source"] == {"tokens": 5, "truncated": False}
    assert answer["items"] == [{"tokens": tokens, "truncated": False} for tokens in (4, 5, 4)]
    assert answer["usage"] == {"tokens": 18}
    assert max(answer["similarities"]) <= 1
    inputs = {"source_sentence": source, "sentences": TARGETS}
    nulls = {"source": None, "targets": None}  # as generated clients send what they do not give
    teis = post(served.client, "/similarity", inputs=inputs, parameters={"truncate": True}, **nulls)
    np.testing.assert_allclose(teis, expected, atol=1e-6)


def test_source_and_targets_have_their_own_prompts(serve: Serve, tmp_path: Path) -> None:
    prompts = {"query": "the ", "passage": "on a "}
    defaults = Defaults(pooling="mean", normalize=True, prompts=prompts, default_prompt_name="passage")
    served = serve("--model", str(write_fake_artifact(tmp_path / "prompts", defaults)))
    body = {"source": "cat", "targets": ["dog", "mat"], "source_prompt_name": "query"}
    answer = served.client.post("/similarity", json=body).json()
    rows = np.array(served.encode({"inputs": ["the cat", "on a dog", "on a mat"], "prompt": ""}).json()["embeddings"])
    np.testing.assert_allclose(answer["similarities"], rows[1:] @ rows[0], atol=1e-6)
    unknown = served.client.post("/similarity", json={**body, "target_prompt_name": "x"}).json()["error"]
    assert unknown["param"] == "target_prompt_name"
    assert unknown["message"] == "target_prompt_name: expected one of passage, query"


def dot(*, unit_length: bool) -> Defaults:
    lengths = {"normalize": unit_length, "unit_length": unit_length}
    return Defaults(pooling="mean", prompts={}, default_prompt_name=None, similarity="dot", **lengths)


def test_vectors_of_length_1_are_compared_as_they_are_answered(serve: Serve, tmp_path: Path) -> None:
    """By dot products, which are cosines then: the original's Normalize is a part of the model."""
    served = serve("--model", str(write_fake_artifact(tmp_path / "dot", dot(unit_length=True))))
    vectors = np.array(served.encode({"inputs": ["the cat sat", *TARGETS]}).json()["embeddings"])
    answer = post(served.client, "/similarity", source="the cat sat", targets=TARGETS)
    np.testing.assert_allclose(answer["similarities"], vectors[1:] @ vectors[0], atol=1e-6)
    ranked = served.client.post("/rerank", json={"query": "the cat sat", "texts": TARGETS}).json()
    scores = dict(enumerate(vectors[1:] @ vectors[0]))
    assert {entry["index"]: entry["score"] for entry in ranked} == pytest.approx(scores, abs=1e-6)
    assert served.metric("polyhead_stage_duration_seconds_count", stage="tokenize") == 3, "a stage of its own"


def test_a_model_made_for_dot_products_is_compared_by_them(serve: Serve, tmp_path: Path) -> None:
    served = serve("--model", str(write_fake_artifact(tmp_path / "dot", dot(unit_length=False))))
    raw = np.array(served.encode({"inputs": ["the cat sat", *TARGETS]}).json()["embeddings"])
    unit = np.array(served.encode({"inputs": ["the cat sat", *TARGETS], "normalize": True}).json()["embeddings"])
    lengths = np.linalg.norm(raw, axis=1)
    assert np.abs(lengths - 1).min() > 0.01
    np.testing.assert_allclose(unit * lengths[:, np.newaxis], raw, atol=1e-5)
    source, expected = "the cat sat", raw[1:] @ raw[0]
    answer = served.client.post("/similarity", json={"source": source, "targets": TARGETS}).json()
    np.testing.assert_allclose(answer["similarities"], expected, rtol=1e-5)
    ranked = served.client.post("/rerank", json={"query": source, "texts": TARGETS}).json()
    assert [entry["index"] for entry in ranked] == np.argsort(-expected).tolist()
    np.testing.assert_allclose(sorted(entry["score"] for entry in ranked), sorted(expected), rtol=1e-5)
    openai = served.client.post("/v1/embeddings", json={"input": source, "model": "any"}).json()["data"][0]["embedding"]
    np.testing.assert_allclose(openai, raw[0], rtol=1e-5)
    tei = served.client.post("/embed", json={"inputs": source}).json()[0]
    np.testing.assert_allclose(tei, unit[0], atol=1e-6)  # TEI's default of its own parameter


def test_texts_are_cut_at_their_start_where_asked_for(served: Served) -> None:
    source, target = "dog " + "cat " * 40, "the mat"
    vectors = served.encode({"inputs": [source, target], "truncate": "start"}).json()["embeddings"]
    ours = post(served.client, "/similarity", source=source, targets=[target], truncate="start")["similarities"]
    inputs = {"source_sentence": source, "sentences": [target]}
    teis = post(served.client, "/similarity", inputs=inputs, parameters={"truncation_direction": "Left"})
    assert ours == teis == pytest.approx([np.dot(*vectors)], abs=1e-6)
    (tokenized,) = post(served.client, "/tokenize", inputs=source, truncate="start")["items"]
    for item in (tokenized, post(served.client, "/explain", a=source, b="a", truncate="start")["a"]):
        assert (item["tokens"][1], item["truncated"]) == ("cat", True)
