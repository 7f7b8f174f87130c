"""`POST /encode` with attention of the form "decomposition", on a fake decomposer whose parts have a closed form."""

from typing import Any

import numpy as np
import pytest

from service.requests.schemas import EncodeAnswer, TokenContributions
from tests.service.answers.test_attention import SAFETENSORS, read_tensors
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import HIDDEN_SIZE, FakeDecomposer, hidden_states
from tests.service.routes.test_encode import ids_of

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
    body = {"inputs": IDS, "attention": {"form": "decomposition"}}
    tensors, rest = read_tensors(served.encode(body, accept=SAFETENSORS).content)
    assert set(tensors) == {"embeddings"}
    assert rest["attention"] == plain


def test_its_cost_is_refused_before_anything_runs(serve: Serve) -> None:
    decomposer = FakeDecomposer()
    served = serve("--max-explained-tokens", "6", decomposer=decomposer)
    long = encode(served, ["cat", "the cat sat on a mat"]).json()["error"]
    assert (long["code"], long["param"]) == ("too_large", "inputs.1")
    assert long["message"].startswith("inputs[1]: 8 tokens, at most 6 are explained through the network")
    many = encode(served, ["cat"] * 9)  # 9 squares of 3 tokens: more than two of 6
    assert many.status_code == 413
    assert "add up to 81, at most 72 are explained" in many.json()["error"]["message"]
    assert encode(served, ["cat"] * 8).status_code == 200
    assert len(decomposer.sources) == 8  # of the last request alone
    answer = encode(serve("--max-attention-bytes", "31"), "cat")  # two figures of three tokens and the biases: 32
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "attention")


def test_it_is_counted_as_attention(serve: Serve) -> None:
    served = serve()
    encode(served, "cat")
    assert served.metric("polyhead_attention_requests_total") == 1
    assert served.metric("polyhead_attention_bytes_total") == 4 * 2 * (3 + 1)
