"""`POST /explain`, and attention of the form "decomposition", on fakes with a closed form: the account adds up."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model.artifact import EXPLAIN_GRAPH
from model.config_parts import Projection
from service.requests.attention import missing_graph
from service.requests.explain import ExplainAnswer
from service.requests.schemas import EncodeAnswer, TokenContributions
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import (
    HIDDEN_SIZE,
    MAX_LENGTH,
    NUM_HEADS,
    FakeDecomposer,
    attention_weights,
    hidden_states,
)
from tests.service.routes.conftest import post_tensors, serving
from tests.service.routes.test_encode import expected_vector, ids_of
from tests.task_artifacts import TaskArtifact

A, B = "the cat sat on a mat", "a slow dog"


def explain(served: Served, **body: Any) -> Any:
    return served.client.post("/explain", json={"a": A, "b": B, **body})


def rolled_out(ids: list[int], off: Sequence[tuple[int, int]] = ()) -> np.ndarray[Any, Any]:
    """The mean of the rows of a rollout (Abnar & Zuidema 2020) without some [layer, head], by whole matrices."""
    size = len(ids)
    followed = np.eye(size)
    for layer, heads in enumerate(NUM_HEADS):
        if heads:
            maps = attention_weights(np.array(ids), layer)
            step = np.delete(maps, [head for of, head in off if of == layer], axis=0).mean(axis=0) + np.eye(size)
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


PROJECTED = {"projections": (Projection(size=4),)}
LONG = "cat " * 30


@pytest.mark.parametrize(
    ("path", "body", "change", "message"),
    [
        ("/explain", {"a": A, "b": B}, PROJECTED, 'projects its pooled vector to 4 dim.* ask for through "network"$'),
        ("/explain", {"a": A, "b": B, "through": "network", "head_mask": [[0, 0, 0]]}, PROJECTED, "; leave it out$"),
        ("/explain", {"a": A, "b": LONG, "through": "network"}, PROJECTED, "b: .*; send a shorter text$"),
        ("/encode", {"inputs": A, "attention": {"form": "norms"}}, {"output_gate": True}, "would leave out the gates"),
    ],
)
def test_what_a_network_s_parts_forbid_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, change: dict[str, Any], message: str
) -> None:
    served = serve("--max-explained-tokens", "10", decomposer=FakeDecomposer())
    manifest = replace(served.engine.manifest, config=replace(served.engine.config, **change))
    monkeypatch.setattr(served.engine, "artifact", replace(served.engine.artifact, manifest=manifest))
    response = served.client.post(path, json=body)
    assert response.status_code == (413 if LONG in body.values() else 422)
    assert re.search(message, response.json()["error"]["message"])


def test_a_prompt_goes_before_both_texts(served: Served) -> None:
    answer = explain(served, prompt="a slow ").json()
    assert answer["prompt"] == "a slow "
    for side, text in (("a", A), ("b", B)):
        assert answer[side]["tokens"][1:-1] == ["a", "slow", *text.split()]
    expected = expected_vector(ids_of(f"a slow {A}")) @ expected_vector(ids_of(f"a slow {B}"))
    assert answer["similarity"] == pytest.approx(expected, abs=1e-6)
    assert explain(served, prompt_name="query").json()["error"]["param"] == "prompt_name"


def test_a_head_mask_goes_to_both_texts(served: Served) -> None:
    answer = explain(served, head_mask=[[1, 2, 0.25], [0, -1, 0]]).json()
    np.testing.assert_allclose(answer["a"]["saliency"], rolled_out(ids_of(A), off=[(0, 1)]), atol=1e-6)
    gates = [batch.head_gates for batch in served.backend.batches]
    for found in gates:
        assert found is not None
        np.testing.assert_array_equal(found, np.tile(np.array([1, 0, 1, 1, 0.25], np.float32), (len(found), 1)))
    assert explain(served, head_mask=[[9, 0, 0]]).json()["error"]["param"] == "head_mask.0"


CATS, CATS_IDS = "the cats sat on a mat", ids_of("the cat ##s sat on a mat")


def network(served: Served, **body: Any) -> Any:
    return explain(served, **{"a": CATS, "through": "network", **body})


def test_through_the_network_cells_and_biases_add_up(served: Served) -> None:
    response = network(served)
    answer = response.json()
    ExplainAnswer.model_validate_json(response.content)
    first, second = map(expected_vector, (CATS_IDS, ids_of(B)))
    assert answer["similarity"] == pytest.approx(first @ second, abs=1e-6)
    cells = np.array(answer["contributions"])
    assert cells.shape == (len(CATS_IDS) + 1, len(ids_of(B)) + 1)
    assert cells.sum() == pytest.approx(answer["similarity"], abs=1e-6)
    assert cells[-1, -1] == pytest.approx(0.25**2 * answer["similarity"], abs=1e-6)
    assert answer["a"]["own_shares"] == [pytest.approx([1 / (1 + n)] * len(CATS_IDS)) for n in range(len(NUM_HEADS))]
    assert "saliency" not in answer["a"]


def test_words_are_the_sums_of_their_tokens(served: Served) -> None:
    by_token, by_word = network(served).json(), network(served, level="word").json()
    assert by_word["a"]["words"] == ["[CLS]", "the", "cats", "sat", "on", "a", "mat", "[SEP]"]
    tokens, words = np.array(by_token["contributions"]), np.array(by_word["contributions"])
    expected = np.vstack([tokens[:2], tokens[2:4].sum(axis=0), tokens[4:]])  # cat and ##s
    np.testing.assert_allclose(words, expected, atol=1e-6)
    assert "own_shares" not in by_word["a"]


@pytest.mark.parametrize("through", ["network", "pooling"])
def test_top_pairs_are_the_largest_and_say_what_is_left(served: Served, through: str) -> None:
    cells = np.array(network(served, through=through).json()["contributions"])
    response = network(served, through=through, top_pairs=3)
    answer = response.json()
    ExplainAnswer.model_validate_json(response.content)
    assert "contributions" not in answer
    found = [(pair["a"], pair["b"]) for pair in answer["top_pairs"]]
    expected = [np.unravel_index(place, cells.shape) for place in np.argsort(-cells, axis=None)[:3]]
    assert found == [tuple(map(int, place)) for place in expected]
    total = sum(pair["contribution"] for pair in answer["top_pairs"]) + answer["left_out"]
    assert total == pytest.approx(answer["similarity"], abs=1e-6)


@pytest.mark.parametrize(
    ("change", "words"), [({}, "their square; send a shorter text"), ({"head_mask": [[0, 0, 0]]}, "; leave it out")]
)
def test_a_classifier_is_not_sent_to_pooling(reranker: TaskArtifact, change: dict[str, Any], words: str) -> None:
    with serving(reranker.artifact, "--max-explained-tokens", "4") as asked:
        found = asked.post("/explain", json={"a": "the cat", "through": "network", **change}).json()
    assert found["error"]["message"].endswith(words)


def test_an_artifact_without_the_graph_says_how_to_get_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(served.engine.manifest.files, EXPLAIN_GRAPH)
    refused = network(served)
    assert refused.status_code == 404
    assert re.search(r"no explain\.onnx.* export the model again", refused.json()["error"]["message"])
    assert network(served, through="pooling").status_code == 200
    third = replace(served.engine.manifest.config, attention_residual_norm=True)
    assert "a part that is not taken apart" in missing_graph(replace(served.engine.manifest, config=third))
    lower = replace(served.engine.manifest, precision="int8")
    monkeypatch.setattr(served.engine, "artifact", replace(served.engine.artifact, manifest=lower))
    message = network(served).json()["error"]["message"]
    assert re.search(r"it is in int8, .* add up.* export the model in fp32 too, and ask that artifact", message)


def test_a_failure_is_a_500_without_details(serve: Serve) -> None:
    decomposer = FakeDecomposer()
    decomposer.fails = True
    answer = network(serve(decomposer=decomposer))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "inference_failed"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/explain", {"a": A, "b": B, "through": "network"}),
        ("/encode", {"inputs": A, "attention": {"form": "decomposition"}}),
    ],
)
def test_a_deadline_cancels_what_runs(serve: Serve, path: str, body: dict[str, Any]) -> None:
    decomposer = FakeDecomposer()
    decomposer.gate.clear()
    served = serve("--request-timeout", "0.2", decomposer=decomposer)
    assert served.client.post(path, json=body).status_code == 504
    assert decomposer.gate.wait(10)  # the run was cancelled


TEXT = "the cats sat"
IDS = ids_of("the cat ##s sat")


def expected(ids: list[int], *, dimensions: int = HIDDEN_SIZE) -> tuple[Any, Any]:
    """Parts [n + 1, D] and their sum: a token's is three quarters of its share of the mean, the rest the biases'."""
    hidden = hidden_states(np.array(ids)).astype(np.float64)[:, :dimensions]
    whole = hidden.mean(axis=0)
    return np.vstack([0.75 / len(ids) * hidden, 0.25 * whole]), whole


def figures(parts: Any, whole: Any, *, normalize: bool = True) -> tuple[Any, Any]:
    norms, length = np.sqrt((parts**2).sum(axis=1)), np.sqrt(whole @ whole)
    return norms / (length if normalize else 1), (parts @ whole) / (norms * length)


def encode(served: Served, inputs: Any = TEXT, *, level: str = "token", **body: Any) -> Any:
    return served.encode({"inputs": inputs, "attention": {"form": "decomposition", "level": level}, **body})


@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"dimensions": 3}])
def test_each_tokens_part_has_its_norm_and_cosine(served: Served, options: dict[str, Any]) -> None:
    response = encode(served, [TEXT, "dog"], **options)
    answer = response.json()
    read = EncodeAnswer.model_validate_json(response.content)
    assert all(isinstance(entry, TokenContributions) for entry in read.attention or ())
    assert answer["embeddings"] == served.encode({"inputs": [TEXT, "dog"], **options}).json()["embeddings"]
    for entry, ids, vector in zip(answer["attention"], (IDS, ids_of("dog")), answer["embeddings"], strict=True):
        parts, whole = expected(ids, dimensions=options.get("dimensions", HIDDEN_SIZE))
        norms, cosines = figures(parts, whole, normalize=options.get("normalize", True))
        np.testing.assert_allclose(entry["norms"], norms, rtol=1e-5)
        np.testing.assert_allclose(entry["cosines"], cosines, atol=1e-5)
        assert np.dot(entry["norms"], entry["cosines"]) == pytest.approx(np.linalg.norm(vector), abs=1e-5)
    assert answer["attention"][0]["tokens"] == ["[CLS]", "the", "cat", "##s", "sat", "[SEP]"]
    assert answer["attention"][0]["offsets"][2] == [4, 7]


def test_a_words_part_is_the_sum_of_its_tokens(served: Served) -> None:
    entry = encode(served, level="word").json()["attention"][0]
    assert entry["words"] == ["[CLS]", "the", "cats", "sat", "[SEP]"]
    parts, whole = expected(IDS)
    norms, cosines = figures(np.vstack([parts[:2], parts[2:4].sum(axis=0), parts[4:]]), whole)
    np.testing.assert_allclose(entry["norms"], norms, rtol=1e-5)
    np.testing.assert_allclose(entry["cosines"], cosines, atol=1e-5)


def test_token_ids_have_no_offsets_and_other_formats_the_same_figures(served: Served) -> None:
    plain = encode(served, IDS).json()["attention"]
    assert plain[0]["offsets"] is None
    assert encode(served, IDS, encoding_format="base64").json()["attention"] == plain
    tensors, rest = post_tensors(served.client, inputs=IDS, attention={"form": "decomposition"})
    assert set(tensors) == {"embeddings"}
    assert rest["attention"] == plain


def test_its_cost_is_refused_before_anything_runs_and_counted(serve: Serve) -> None:
    decomposer = FakeDecomposer()
    served = serve("--max-explained-tokens", "6", decomposer=decomposer)
    explained = network(served).json()["error"]
    assert (explained["code"], explained["param"]) == ("too_large", "a")
    assert explained["message"].startswith(f"a: {len(CATS_IDS)} tokens, at most 6 are explained")
    assert explained["message"].endswith('send a shorter text, or ask for through "pooling"')
    long = encode(served, ["cat", "the cat sat on a mat"]).json()["error"]
    assert (long["code"], long["param"]) == ("too_large", "inputs.1")
    assert long["message"].startswith("inputs[1]: 8 tokens, at most 6 are explained through the network")
    many = encode(served, ["cat"] * 9)  # 9 squares of 3 tokens: more than two of 6
    assert many.status_code == 413
    assert "add up to 81, at most 72 are explained" in many.json()["error"]["message"]
    assert encode(served, ["cat"] * 8).status_code == 200
    assert len(decomposer.sources) == 8  # of the last request alone
    assert served.metric("polyhead_attention_requests_total") == 1
    assert served.metric("polyhead_attention_bytes_total") == 8 * 4 * 2 * (3 + 1)
    answer = encode(serve("--max-attention-bytes", "31"), "cat")  # two figures of three tokens and the biases: 32
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "attention")
