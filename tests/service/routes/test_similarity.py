"""`POST /similarity`: cosines, computed a second time here; both forms of the request."""

from pathlib import Path

import numpy as np
import pytest

from model.artifact import Defaults
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import write_fake_artifact
from tests.service.routes.conftest import post

TARGETS = ["a dog", "the cat sat", "the mat"]


def cosines(served: Served, source: str, targets: list[str]) -> list[float]:
    vectors = np.array(served.encode({"inputs": [source, *targets], "normalize": False}).json()["embeddings"])
    norms = np.linalg.norm(vectors, axis=1)
    return list(vectors[1:] @ vectors[0] / norms[1:] / norms[0])


def test_one_text_against_many(served: Served) -> None:
    answer = post(served.client, "/similarity", source="the cat sat", targets=TARGETS)
    assert set(answer) == {"model", "similarities", "usage", "source", "items"}
    np.testing.assert_allclose(answer["similarities"], cosines(served, "the cat sat", TARGETS), atol=1e-6)
    assert answer["source"] == {"tokens": 5, "truncated": False}
    assert answer["items"] == [{"tokens": tokens, "truncated": False} for tokens in (4, 5, 4)]
    assert answer["usage"] == {"tokens": 18}
    assert max(answer["similarities"]) <= 1


def test_tei_form_is_answered_as_tei_does(served: Served) -> None:
    inputs = {"source_sentence": "the cat sat", "sentences": TARGETS}
    nulls = {"source": None, "targets": None}  # as generated clients send what they do not give
    body = {"inputs": inputs, "parameters": {"truncate": True}, **nulls}
    answer = served.client.post("/similarity", json=body).json()
    np.testing.assert_allclose(answer, cosines(served, "the cat sat", TARGETS), atol=1e-6)


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
