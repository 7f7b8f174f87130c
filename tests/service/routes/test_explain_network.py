"""`POST /explain` through the network, on a fake decomposer but once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model.artifact import EXPLAIN_GRAPH
from service.requests.decomposition import missing_graph
from service.requests.explain import ExplainAnswer
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import NUM_HEADS, FakeDecomposer
from tests.service.routes.conftest import serving
from tests.service.routes.test_encode import expected_vector, ids_of
from tests.task_artifacts import TaskArtifact

A, B = "the cats sat on a mat", "a slow dog"
IDS_A, IDS_B = ids_of("the cat ##s sat on a mat"), ids_of(B)


def explain(served: Served, **body: Any) -> Any:
    return served.client.post("/explain", json={"a": A, "b": B, "through": "network", **body})


def refused(served: Served, **body: Any) -> tuple[int, str, str]:
    answer = explain(served, **body)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def test_cells_and_biases_add_up_to_the_similarity_that_encode_gives(served: Served) -> None:
    response = explain(served)
    answer = response.json()
    ExplainAnswer.model_validate_json(response.content)
    first, second = map(expected_vector, (IDS_A, IDS_B))
    assert answer["similarity"] == pytest.approx(first @ second, abs=1e-6)
    cells = np.array(answer["contributions"])
    assert cells.shape == (len(IDS_A) + 1, len(IDS_B) + 1)
    assert cells.sum() == pytest.approx(answer["similarity"], abs=1e-6)
    assert cells[-1, -1] == pytest.approx(0.25**2 * answer["similarity"], abs=1e-6)
    assert answer["a"]["own_shares"] == [pytest.approx([1 / (1 + n)] * len(IDS_A)) for n in range(len(NUM_HEADS))]
    assert "saliency" not in answer["a"]


def test_words_are_the_sums_of_their_tokens(served: Served) -> None:
    by_token, by_word = explain(served).json(), explain(served, level="word").json()
    assert by_word["a"]["words"] == ["[CLS]", "the", "cats", "sat", "on", "a", "mat", "[SEP]"]
    tokens, words = np.array(by_token["contributions"]), np.array(by_word["contributions"])
    expected = np.vstack([tokens[:2], tokens[2:4].sum(axis=0), tokens[4:]])  # cat and ##s
    np.testing.assert_allclose(words, expected, atol=1e-6)
    assert "own_shares" not in by_word["a"]


@pytest.mark.parametrize("through", ["network", "pooling"])
def test_top_pairs_are_the_largest_and_say_what_is_left(served: Served, through: str) -> None:
    cells = np.array(explain(served, through=through).json()["contributions"])
    response = explain(served, through=through, top_pairs=3)
    answer = response.json()
    ExplainAnswer.model_validate_json(response.content)
    assert "contributions" not in answer
    found = [(pair["a"], pair["b"]) for pair in answer["top_pairs"]]
    expected = [np.unravel_index(place, cells.shape) for place in np.argsort(-cells, axis=None)[:3]]
    assert found == [tuple(map(int, place)) for place in expected]
    total = sum(pair["contribution"] for pair in answer["top_pairs"]) + answer["left_out"]
    assert total == pytest.approx(answer["similarity"], abs=1e-6)


def test_a_long_text_is_refused_before_anything_runs(serve: Serve) -> None:
    decomposer = FakeDecomposer()
    status, param, message = refused(serve("--max-explained-tokens", "6", decomposer=decomposer))
    assert (status, param) == (413, "a")
    assert message.startswith(f"a: {len(IDS_A)} tokens, at most 6 are explained")
    assert message.endswith('send a shorter text, or ask for through "pooling"')
    assert not decomposer.sources


def test_a_long_text_of_a_classifier_is_not_sent_to_pooling(reranker: TaskArtifact) -> None:
    with serving(reranker.artifact, "--max-explained-tokens", "4") as asked:
        found = asked.post("/explain", json={"a": "the cat", "through": "network"}).json()
    assert found["error"]["message"].endswith("their square; send a shorter text")


def test_an_artifact_without_the_graph_says_how_to_get_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(served.engine.manifest.files, EXPLAIN_GRAPH)
    status, _, message = refused(served)
    assert status == 404
    assert "no explain.onnx" in message
    assert "export the model again" in message
    assert explain(served, through="pooling").status_code == 200
    third = replace(served.engine.manifest.config, attention_residual_norm=True)
    assert "a part that is not taken apart" in missing_graph(replace(served.engine.manifest, config=third))
    lower = replace(served.engine.manifest, precision="int8")
    monkeypatch.setattr(served.engine, "artifact", replace(served.engine.artifact, manifest=lower))
    message = refused(served)[2]
    assert "it is in int8, in which parts would not add up" in message
    assert "export the model in fp32 too" in message


def test_a_failure_is_a_500_without_details(serve: Serve) -> None:
    decomposer = FakeDecomposer()
    decomposer.fails = True
    answer = explain(serve(decomposer=decomposer))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "inference_failed"


def test_a_deadline_cancels_what_runs(serve: Serve) -> None:
    decomposer = FakeDecomposer()
    decomposer.gate.clear()
    assert explain(serve("--request-timeout", "0.2", decomposer=decomposer)).status_code == 504
    assert decomposer.gate.wait(10)  # the run was cancelled
