"""OpenAI's own client, of which only the base URL is changed."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_texts_come_back_in_base64_as_the_client_asks_by_default(
    client: openai.OpenAI, same: Any, texts: list[str], model: str
) -> None:
    raw = client.embeddings.with_raw_response.create(model="text-embedding-3-small", input=texts)
    assert isinstance(raw.http_response.json()["data"][0]["embedding"], str)
    answer = raw.parse()
    same([entry.embedding for entry in answer.data])
    assert [entry.index for entry in answer.data] == list(range(len(texts)))
    assert answer.model == model
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(texts)


def test_floats_users_and_one_text(client: openai.OpenAI, same: Any, texts: list[str]) -> None:
    answers = [client.embeddings.create(model="any", input=text, encoding_format="float", user="you") for text in texts]
    same([answer.data[0].embedding for answer in answers])


def test_token_ids_of_this_model(client: openai.OpenAI, url: str, same: Any, texts: list[str]) -> None:
    items = httpx.post(f"{url}/tokenize", json={"inputs": texts}).json()["items"]
    answer = client.embeddings.create(model="any", input=[item["input_ids"] for item in items])
    same([entry.embedding for entry in answer.data])


def test_fewer_dimensions_have_length_1(client: openai.OpenAI, encode: Any, texts: list[str]) -> None:
    answer = client.embeddings.create(model="any", input=texts, dimensions=16)
    vectors = np.array([entry.embedding for entry in answer.data])
    np.testing.assert_allclose(vectors, encode(texts, dimensions=16), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_models(client: openai.OpenAI, model: str) -> None:
    assert [entry.id for entry in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("text-embedding-3-small")
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "error", "status"),
    [
        ({"input": []}, openai.UnprocessableEntityError, 422),
        ({"input": [791, 8415, 7731]}, openai.UnprocessableEntityError, 422),
        ({"input": "a " * 300, "extra_body": {"truncate": False}}, openai.APIStatusError, 413),
    ],
)
def test_refusals_are_errors_with_their_message(
    client: openai.OpenAI, body: dict[str, Any], error: type[openai.APIStatusError], status: int
) -> None:
    with pytest.raises(error) as raised:
        client.embeddings.create(model="any", **body)
    assert raised.value.status_code == status
    assert raised.value.param is not None
    assert raised.value.param.startswith("input")


def test_what_was_cut_is_in_a_header(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(model="any", input=["a " * 300, "short"])
    assert raw.headers["x-truncated-inputs"] == "1"
