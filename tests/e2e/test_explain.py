"""`POST /explain` over HTTP against independent libraries: similarity, contributions and saliency."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from export.sources import find_folder
from tests.service.process import ServerProcess

TOLERANCE = 1e-5
PAIRS = [
    ("A man is playing a guitar.", "Someone strums a musical instrument."),
    ("naïve café résumé 机器学习 🙂", ""),
    ("The trophy does not fit into the suitcase because it is too large. " * 12, "short"),
]


@pytest.fixture(scope="module")
def reference() -> Any:
    folder = str(find_folder(None).path)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def run(text: str) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
        with torch.inference_mode():
            output = model(
                **tokenizer(text, return_tensors="pt", truncation=True, max_length=256), output_attentions=True
            )
        return output.last_hidden_state[0].double().numpy(), [layer[0].double().numpy() for layer in output.attentions]

    return run


def rollout_saliency(attentions: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    size = attentions[0].shape[-1]
    followed = np.eye(size)
    for weights in attentions:
        step = (weights.mean(axis=0) + np.eye(size)) / 2
        followed = step @ followed
    return np.asarray(followed.mean(axis=0))


@pytest.mark.parametrize("pair", PAIRS, ids=["paraphrase", "unicode and empty", "long"])
def test_the_account_of_two_texts(server: ServerProcess, reference: Any, pair: tuple[str, str]) -> None:
    status, _, body = server.request("POST", "/explain", {"a": pair[0], "b": pair[1]})
    answer = json.loads(body)
    assert status == 200, answer
    (hidden_a, attentions_a), (hidden_b, attentions_b) = (reference(text) for text in pair)
    mean_a, mean_b = hidden_a.mean(axis=0), hidden_b.mean(axis=0)
    lengths = np.linalg.norm(mean_a) * np.linalg.norm(mean_b)
    cells = np.array(answer["contributions"])
    np.testing.assert_allclose(cells, hidden_a @ hidden_b.T / (cells.size * lengths), atol=TOLERANCE, rtol=0)
    assert answer["similarity"] == pytest.approx(mean_a @ mean_b / lengths, abs=TOLERANCE)
    assert cells.sum() == pytest.approx(answer["similarity"], abs=TOLERANCE)
    for side, attentions in (("a", attentions_a), ("b", attentions_b)):
        np.testing.assert_allclose(answer[side]["saliency"], rollout_saliency(attentions), atol=TOLERANCE, rtol=0)


def test_the_similarity_is_that_of_encode(server: ServerProcess) -> None:
    _, _, body = server.request("POST", "/encode", {"inputs": list(PAIRS[0])})
    first, second = np.array(json.loads(body)["embeddings"])
    _, _, explained = server.request("POST", "/explain", {"a": PAIRS[0][0], "b": PAIRS[0][1]})
    assert json.loads(explained)["similarity"] == pytest.approx(first @ second, abs=1e-6)
