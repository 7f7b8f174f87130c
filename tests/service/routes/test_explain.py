"""`POST /explain`: the account adds up, and what cannot be explained is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from model.config_parts import Projection
from service.requests.explain import ExplainAnswer
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import MAX_LENGTH, NUM_HEADS, attention_weights
from tests.service.routes.test_encode import expected_vector, ids_of

A, B = "the cat sat on a mat", "a slow dog"


def explain(served: Served, **body: Any) -> Any:
    return served.client.post("/explain", json={"a": A, "b": B, **body})


def rolled_out(ids: list[int]) -> np.ndarray[Any, Any]:
    """The mean of the rollout's rows (Abnar & Zuidema 2020), by whole matrices."""
    size = len(ids)
    followed = np.eye(size)
    for layer, heads in enumerate(NUM_HEADS):
        if heads:
            step = attention_weights(np.array(ids), layer).mean(axis=0) + np.eye(size)
            followed = step / step.sum(axis=-1, keepdims=True) @ followed
    return np.asarray(followed.mean(axis=0))


def test_cells_add_up_to_the_similarity_that_encode_gives(serve: Serve) -> None:
    served = serve()
    response = explain(served)
    answer = response.json()
    ExplainAnswer.model_validate_json(response.content)
    expected = expected_vector(ids_of(A)) @ expected_vector(ids_of(B))
    assert answer["similarity"] == pytest.approx(expected, abs=1e-6)
    cells = np.array(answer["contributions"])
    assert cells.shape == (len(ids_of(A)), len(ids_of(B)))
    assert cells.sum() == pytest.approx(expected, abs=1e-6)
    assert answer["usage"] == {"tokens": len(ids_of(A)) + len(ids_of(B))}
    assert "prompt" not in answer
    assert served.metric("polyhead_attention_requests_total") == 1
    assert served.metric("polyhead_texts_total") == 2
    for side, text in (("a", A), ("b", B)):
        assert answer[side]["tokens"][1:-1] == text.split()
        assert answer[side]["offsets"][1] == [0, len(text.split()[0])]
        np.testing.assert_allclose(answer[side]["saliency"], rolled_out(ids_of(text)), atol=1e-6)
        assert sum(answer[side]["saliency"]) == pytest.approx(1, abs=1e-6)


def test_dot_product_and_fewer_dimensions(served: Served) -> None:
    answer = explain(served, similarity="dot", dimensions=3).json()
    expected = expected_vector(ids_of(A), normalize=False)[:3] @ expected_vector(ids_of(B), normalize=False)[:3]
    assert answer["similarity"] == pytest.approx(expected, abs=1e-6)
    assert np.sum(answer["contributions"]) == pytest.approx(expected, abs=1e-6)


def test_long_texts_are_cut_or_refused(served: Served) -> None:
    long = "cat " * MAX_LENGTH
    answer = explain(served, b=long).json()
    assert (answer["a"]["truncated"], answer["b"]["truncated"]) == (False, True)
    assert len(answer["contributions"][0]) == MAX_LENGTH
    refused = explain(served, b=long, truncate=False)
    assert refused.status_code == 413
    assert refused.json()["error"]["param"] == "b"
    assert f"{MAX_LENGTH + 2} tokens" in refused.json()["error"]["message"]


def test_a_model_that_projects_says_it_cannot_be_explained(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(served.engine.config, projections=(Projection(size=4),))
    manifest = dataclasses.replace(served.engine.manifest, config=config)
    monkeypatch.setattr(served.engine, "artifact", dataclasses.replace(served.engine.artifact, manifest=manifest))
    response = explain(served)
    assert response.status_code == 422
    assert "projects its pooled vector to 4 dimensions" in response.json()["error"]["message"]


def test_a_prompt_goes_before_both_texts(served: Served) -> None:
    answer = explain(served, prompt="a slow ").json()
    assert answer["prompt"] == "a slow "
    for side, text in (("a", A), ("b", B)):
        assert answer[side]["tokens"][1:-1] == ["a", "slow", *text.split()]
    expected = expected_vector(ids_of(f"a slow {A}")) @ expected_vector(ids_of(f"a slow {B}"))
    assert answer["similarity"] == pytest.approx(expected, abs=1e-6)
    assert explain(served, prompt_name="query").json()["error"]["param"] == "prompt_name"


def test_a_head_mask_goes_to_both_texts(served: Served) -> None:
    explain(served, head_mask=[[1, 2, 0.25], [0, -1, 0]])
    gates = [batch.head_gates for batch in served.backend.batches]
    for found in gates:
        assert found is not None
        np.testing.assert_array_equal(found, np.tile(np.array([1, 0, 1, 1, 0.25], np.float32), (len(found), 1)))
    assert explain(served, head_mask=[[9, 0, 0]]).json()["error"]["param"] == "head_mask.0"
