"""`POST /similarity`: cosines, computed a second time here; both forms of the request."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.manifest import Defaults
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import write_fake_artifact

TARGETS = ["a dog", "the cat sat", "the mat"]


def cosines(served: Served, source: str, targets: list[str]) -> list[float]:
    vectors = np.array(served.encode({"inputs": [source, *targets], "normalize": False}).json()["embeddings"])
    norms = np.linalg.norm(vectors, axis=1)
    return list(vectors[1:] @ vectors[0] / norms[1:] / norms[0])


def test_one_text_against_many(served: Served) -> None:
    answer = served.client.post("/similarity", json={"source": "the cat sat", "targets": TARGETS}).json()
    assert set(answer) == {"model", "similarities", "usage", "source", "items"}
    np.testing.assert_allclose(answer["similarities"], cosines(served, "the cat sat", TARGETS), atol=1e-6)
    assert answer["source"] == {"tokens": 5, "truncated": False}
    assert answer["items"] == [{"tokens": tokens, "truncated": False} for tokens in (4, 5, 4)]
    assert answer["usage"] == {"tokens": 18}
    assert max(answer["similarities"]) <= 1


def test_tei_form_is_answered_as_tei_does(served: Served) -> None:
    inputs = {"source_sentence": "the cat sat", "sentences": TARGETS}
    answer = served.client.post("/similarity", json={"inputs": inputs, "parameters": {"truncate": True}}).json()
    np.testing.assert_allclose(answer, cosines(served, "the cat sat", TARGETS), atol=1e-6)


def test_source_and_targets_have_their_own_prompts(serve: Serve, tmp_path: Path) -> None:
    prompts = {"query": "the ", "passage": "on a "}
    defaults = Defaults(pooling="mean", normalize=True, prompts=prompts, default_prompt_name="passage")
    served = serve("--model", str(write_fake_artifact(tmp_path / "prompts", defaults)))
    body = {"source": "cat", "targets": ["dog", "mat"], "source_prompt_name": "query"}
    answer = served.client.post("/similarity", json=body).json()
    vectors = np.array(
        served.encode({"inputs": ["the cat", "on a dog", "on a mat"], "prompt": ""}).json()["embeddings"]
    )
    np.testing.assert_allclose(answer["similarities"], vectors[1:] @ vectors[0], atol=1e-6)
    unknown = served.client.post("/similarity", json={**body, "target_prompt_name": "x"}).json()["error"]
    assert (unknown["param"], unknown["message"]) == (
        "target_prompt_name",
        "target_prompt_name: expected one of passage, query",
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "cat"},
        {"targets": ["cat"]},
        {"source": "cat", "targets": []},
        {"source": "cat", "targets": ["cat"], "inputs": {"source_sentence": "cat", "sentences": ["cat"]}},
        {"source": "cat", "targets": ["cat"], "parameters": {}},
        {"source": "cat", "targets": [1]},
        {"inputs": {"source_sentence": "cat", "sentences": []}},
        {"inputs": {"source_sentence": "cat", "sentences": ["cat"]}, "truncate": False},
        {"inputs": {"source_sentence": "cat", "sentences": ["cat"]}, "source_prompt_name": "none"},
        {"inputs": {"source_sentence": "cat", "sentences": ["cat"]}, "parameters": {"truncation_direction": "Left"}},
    ],
)
def test_other_bodies_are_refused(served: Served, body: Any) -> None:
    assert served.client.post("/similarity", json=body).status_code == 422


def test_limits_count_the_source_too(serve: Serve) -> None:
    served = serve("--max-texts", "3")
    assert served.client.post("/similarity", json={"source": "cat", "targets": ["dog"] * 2}).status_code == 200
    refused = served.client.post("/similarity", json={"source": "cat", "targets": ["dog"] * 3})
    assert refused.status_code == 413
    long = served.client.post("/similarity", json={"source": "cat", "targets": ["dog " * 40], "truncate": False})
    assert long.json()["error"]["message"].startswith("targets[0]: 42 tokens")


LONG = "dog " * 40


@pytest.mark.parametrize(
    ("body", "name", "param"),
    [
        ({"source": LONG, "targets": ["cat"], "truncate": False}, "source", "source"),
        ({"source": "cat", "targets": ["cat", LONG], "truncate": False}, "targets[1]", "targets.1"),
        ({"source": "cat", "targets": ["cat"] * 3000}, "source and targets", "targets"),
        (
            {"inputs": {"source_sentence": "cat", "sentences": [LONG]}, "parameters": {"truncate": False}},
            "inputs.sentences[0]",
            "inputs.sentences.0",
        ),
        (
            {"inputs": {"source_sentence": LONG, "sentences": ["cat"]}, "parameters": {"truncate": False}},
            "inputs.source_sentence",
            "inputs.source_sentence",
        ),
    ],
)
def test_errors_name_the_fields_that_were_sent(served: Served, body: Any, name: str, param: str) -> None:
    answer = served.client.post("/similarity", json=body).json()
    if "inputs" in body:  # TEI's body fails in TEI's shape
        assert answer["error_type"] == "Validation"
        assert answer["error"].startswith(f"{name}: ")
    else:
        assert answer["error"]["message"].startswith(f"{name}: ")
        assert answer["error"]["param"] == param


def test_missing_fields_are_told_in_our_words(served: Served) -> None:
    error = served.client.post("/similarity", json={"source": "cat"}).json()["error"]
    assert error["message"].startswith("expected source and targets")


@pytest.mark.parametrize("body", [{"source": "cat", "targets": [1] * 70_000}, {f"field{i}": 1 for i in range(4000)}])
def test_as_many_problems_as_a_body_can_have_take_no_time(served: Served, body: Any) -> None:
    began = time.process_time()
    response = served.client.post("/similarity", json=body)
    assert response.status_code == 422
    assert len(response.content) < 2000
    assert time.process_time() - began < 0.5  # of which most is writing the body; 1.3 s when each was described
