"""huggingface_hub's InferenceClient, as it is used for text-embeddings-inference."""

from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError


@pytest.mark.parametrize("path", ["", "/embed"])
def test_feature_extraction(url: str, same: Any, texts: list[str], path: str) -> None:
    client = InferenceClient(model=url + path)
    same(client.feature_extraction(texts, normalize=True, truncate=True, truncation_direction="right"))
    same([client.feature_extraction(text)[0] for text in texts])


def test_token_vectors(url: str, encode: Any) -> None:
    found = InferenceClient(model=f"{url}/embed_all").feature_extraction("The cat sat.")
    np.testing.assert_allclose(found, encode("The cat sat.", output="tokens", normalize=False), atol=1e-6)


@pytest.mark.parametrize("path", ["", "/similarity"])
def test_sentence_similarity(url: str, encode: Any, texts: list[str], path: str) -> None:
    found = InferenceClient(model=url + path).sentence_similarity(texts[0], other_sentences=texts[1:])
    vectors = encode(texts)
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-6)


@pytest.mark.parametrize("path", ["", "/predict"])
def test_text_classification(classifier_url: str, path: str) -> None:
    client = InferenceClient(model=classifier_url + path)
    expected = httpx.post(f"{classifier_url}/predict", json={"inputs": "the cat"}).json()
    for top_k in (None, 2):
        found = client.text_classification("the cat", top_k=top_k)
        assert [{"label": one.label, "score": one.score} for one in found] == expected[:top_k]


@pytest.mark.parametrize("path", ["", "/predict"])
def test_token_classification(token_classifier_url: str, path: str) -> None:
    client = InferenceClient(model=token_classifier_url + path)
    found = client.token_classification("the cats sat", aggregation_strategy="none", ignore_labels=[], stride=4)
    body = {"inputs": "the cats sat", "aggregation": "none", "ignore_labels": [], "level": "tokens"}
    expected = httpx.post(f"{token_classifier_url}/predict", json=body).json()
    assert [vars(entity) for entity in found] == [{**vars(found[0]), **entity} for entity in expected]
    assert client.token_classification("the cats sat")[0].entity_group in {"PER", "LOC"}


@pytest.mark.parametrize("path", ["", "/zero-shot"])
def test_zero_shot_classification(classifier_url: str, url: str, path: str) -> None:
    labels = ["animals", "weather, or not"]
    for at in (classifier_url, url):
        body = {"inputs": "the cat", "candidate_labels": labels, "multi_label": True, "hypothesis_template": "On {}."}
        (expected,) = httpx.post(f"{at}/zero-shot", json=body).json()["results"]
        found = InferenceClient(model=at + path).zero_shot_classification(
            "the cat", labels, multi_label=True, hypothesis_template="On {}."
        )
        assert {"labels": [one.label for one in found], "scores": [one.score for one in found]} == expected


def test_refusal_is_an_error_with_its_message(url: str) -> None:
    with pytest.raises(HfHubHTTPError, match="tokens, the model takes") as raised:
        InferenceClient(model=url).feature_extraction("a " * 300, truncate=False)
    assert raised.value.response.status_code == 413
