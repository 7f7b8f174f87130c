"""Clients of one API each, with only the URL changed: OpenAI's, Cohere's, the Hugging Face hub's and Triton's."""

import base64
import contextlib
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.http as triton
from cohere import ClientV2, V2RerankResponseResultsItem
from cohere.errors import UnprocessableEntityError
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from tritonclient.utils import InferenceServerException

from tests.clients.conftest import TEXTS, Ranking


@pytest.fixture(scope="module")
def openai_client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openai_texts_come_back_in_base64_as_the_client_asks_by_default(
    openai_client: openai.OpenAI, same: Any, model: str
) -> None:
    raw = openai_client.embeddings.with_raw_response.create(model="text-embedding-3-small", input=TEXTS)
    assert isinstance(raw.http_response.json()["data"][0]["embedding"], str)
    answer = raw.parse()
    same([entry.embedding for entry in answer.data])
    assert [entry.index for entry in answer.data] == list(range(len(TEXTS)))
    assert answer.model == model
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)


def test_openai_floats_users_and_one_text(openai_client: openai.OpenAI, same: Any) -> None:
    answers = [
        openai_client.embeddings.create(model="any", input=text, encoding_format="float", user="you") for text in TEXTS
    ]
    same([answer.data[0].embedding for answer in answers])


def test_openai_token_ids_of_this_model(openai_client: openai.OpenAI, url: str, same: Any) -> None:
    items = httpx.post(f"{url}/tokenize", json={"inputs": TEXTS}).json()["items"]
    answer = openai_client.embeddings.create(model="any", input=[item["input_ids"] for item in items])
    same([entry.embedding for entry in answer.data])


def test_openai_fewer_dimensions_have_length_1(openai_client: openai.OpenAI, encode: Any) -> None:
    answer = openai_client.embeddings.create(model="any", input=TEXTS, dimensions=16)
    vectors = np.array([entry.embedding for entry in answer.data])
    np.testing.assert_allclose(vectors, encode(TEXTS, dimensions=16), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_openai_models(openai_client: openai.OpenAI, model: str) -> None:
    assert [entry.id for entry in openai_client.models.list()] == [model]
    assert openai_client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as raised:
        openai_client.models.retrieve("text-embedding-3-small")
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "error", "status"),
    [
        ({"input": []}, openai.UnprocessableEntityError, 422),
        ({"input": [791, 8415, 7731]}, openai.UnprocessableEntityError, 422),
        ({"input": "a " * 300, "extra_body": {"truncate": False}}, openai.APIStatusError, 413),
    ],
)
def test_openai_refusals_are_errors_with_their_message(
    openai_client: openai.OpenAI, body: dict[str, Any], error: type[openai.APIStatusError], status: int
) -> None:
    with pytest.raises(error) as raised:
        openai_client.embeddings.create(model="any", **body)
    assert raised.value.status_code == status
    assert raised.value.param is not None
    assert raised.value.param.startswith("input")


def test_openai_what_was_cut_is_in_a_header(openai_client: openai.OpenAI) -> None:
    raw = openai_client.embeddings.with_raw_response.create(model="any", input=["a " * 300, "short"])
    assert raw.headers["x-truncated-inputs"] == "1"


@pytest.fixture
def cohere_client(url: str) -> Iterator[ClientV2]:
    with ClientV2(api_key="none", base_url=url) as made:
        yield made


def pairs(results: list[V2RerankResponseResultsItem]) -> list[tuple[int, float]]:
    return [(entry.index, entry.relevance_score) for entry in results]


def test_cohere_rerank(cohere_client: ClientV2, ranking: Ranking) -> None:
    answer = cohere_client.rerank(model="any", query=ranking.query, documents=ranking.documents)
    ranking.check(pairs(answer.results))
    assert answer.id
    best = cohere_client.rerank(
        model="any", query=ranking.query, documents=ranking.documents, top_n=2, max_tokens_per_doc=100
    )
    ranking.check(pairs(best.results), top_n=2)


def test_cohere_embed(cohere_client: ClientV2, same: Any) -> None:
    answer = cohere_client.embed(model="any", texts=TEXTS, input_type="search_document", embedding_types=["float"])
    same(answer.embeddings.float_)
    assert answer.texts == TEXTS
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert (answer.meta.billed_units.input_tokens or 0) > 0


def test_cohere_gets_every_form_of_a_vector(cohere_client: ClientV2, encode: Any) -> None:
    forms = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    found = cohere_client.embed(model="any", texts=TEXTS, input_type="search_query", embedding_types=forms).embeddings
    vectors = np.array(found.float_)
    assert np.shape(found.int8) == np.shape(found.uint8) == vectors.shape
    np.testing.assert_array_equal(np.array(found.uint8) - 128, found.int8)
    np.testing.assert_array_equal(np.unpackbits(np.array(found.ubinary, np.uint8), axis=1), vectors > 0)
    np.testing.assert_array_equal(np.array(found.binary) + 128, found.ubinary)
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in found.base64 or ()]
    np.testing.assert_allclose(decoded, encode(TEXTS), atol=1e-6)


def test_cohere_fewer_dimensions_and_a_cut_at_the_start(cohere_client: ClientV2, encode: Any) -> None:
    text = "the cat " * 300
    options = {"model": "any", "input_type": "classification", "output_dimension": 64, "truncate": "START"}
    (found,) = cohere_client.embed(texts=[text], embedding_types=["float"], **options).embeddings.float_
    assert found == pytest.approx(encode(text, dimensions=64, truncate="start")[0], abs=1e-6)


def test_cohere_refusal_is_its_own_error(cohere_client: ClientV2) -> None:
    with pytest.raises(UnprocessableEntityError) as raised:
        cohere_client.rerank(model="any", query="", documents=["a"])
    assert raised.value.body == {"message": "query: String should have at least 1 character"}


@pytest.mark.parametrize("path", ["", "/embed"])
def test_hub_feature_extraction(url: str, same: Any, path: str) -> None:
    client = InferenceClient(model=url + path)
    same(client.feature_extraction(TEXTS, normalize=True, truncate=True, truncation_direction="right"))
    same([client.feature_extraction(text)[0] for text in TEXTS])


def test_hub_token_vectors(url: str, encode: Any) -> None:
    found = InferenceClient(model=f"{url}/embed_all").feature_extraction("The cat sat.")
    np.testing.assert_allclose(found, encode("The cat sat.", output="tokens", normalize=False), atol=1e-6)


@pytest.mark.parametrize("path", ["", "/similarity"])
def test_hub_sentence_similarity(url: str, encode: Any, path: str) -> None:
    found = InferenceClient(model=url + path).sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    vectors = encode(TEXTS)
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-6)


@pytest.mark.parametrize("path", ["", "/predict"])
def test_hub_text_classification(classifier_url: str, path: str) -> None:
    client = InferenceClient(model=classifier_url + path)
    expected = httpx.post(f"{classifier_url}/predict", json={"inputs": "the cat"}).json()
    for top_k in (None, 2):
        found = client.text_classification("the cat", top_k=top_k)
        assert [{"label": one.label, "score": one.score} for one in found] == expected[:top_k]


@pytest.mark.parametrize("path", ["", "/predict"])
def test_hub_token_classification(token_classifier_url: str, path: str) -> None:
    client = InferenceClient(model=token_classifier_url + path)
    found = client.token_classification("the cats sat", aggregation_strategy="none", ignore_labels=[], stride=4)
    body = {"inputs": "the cats sat", "aggregation": "none", "ignore_labels": [], "level": "tokens"}
    expected = httpx.post(f"{token_classifier_url}/predict", json=body).json()
    assert [vars(entity) for entity in found] == [{**vars(found[0]), **entity} for entity in expected]
    assert client.token_classification("the cats sat")[0].entity_group in {"PER", "LOC"}


@pytest.mark.parametrize("path", ["", "/zero-shot"])
def test_hub_zero_shot_classification(classifier_url: str, url: str, path: str) -> None:
    labels = ["animals", "weather, or not"]
    for at in (classifier_url, url):
        body = {"inputs": "the cat", "candidate_labels": labels, "multi_label": True, "hypothesis_template": "On {}."}
        (expected,) = httpx.post(f"{at}/zero-shot", json=body).json()["results"]
        found = InferenceClient(model=at + path).zero_shot_classification(
            "the cat", labels, multi_label=True, hypothesis_template="On {}."
        )
        assert {"labels": [one.label for one in found], "scores": [one.score for one in found]} == expected


def test_hub_refusal_is_an_error_with_its_message(url: str) -> None:
    with pytest.raises(HfHubHTTPError, match="tokens, the model takes") as raised:
        InferenceClient(model=url).feature_extraction("a " * 300, truncate=False)
    assert raised.value.response.status_code == 413


@pytest.fixture(scope="module")
def triton_client(url: str) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(url.removeprefix("http://"), concurrency=4)
    yield made
    made.close()


def tensor(texts: list[str], *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput("text", [len(texts)], "BYTES")
    made.set_data_from_numpy(np.array(texts, dtype=np.object_), binary_data=binary)
    return made


def test_triton_server_and_model_are_described(triton_client: triton.InferenceServerClient, model: str) -> None:
    assert triton_client.is_server_live()
    assert triton_client.is_server_ready()
    assert triton_client.is_model_ready(model)
    assert triton_client.is_model_ready(model, "1")
    assert not triton_client.is_model_ready("other")
    assert "binary_tensor_data" in triton_client.get_server_metadata()["extensions"]
    described = triton_client.get_model_metadata(model)
    assert described["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert described["outputs"] == [{"name": "embeddings", "datatype": "FP32", "shape": [-1, 384]}]


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("received", [True, False])
def test_triton_tensors(
    triton_client: triton.InferenceServerClient, model: str, same: Any, sent: bool, received: bool
) -> None:
    outputs = [triton.InferRequestedOutput("embeddings", binary_data=received)]
    result = triton_client.infer(model, [tensor(TEXTS, binary=sent)], outputs=outputs, request_id="7")
    same(result.as_numpy("embeddings"))
    assert result.get_response()["id"] == "7"
    assert ("data" in result.get_output("embeddings")) is not received


def test_triton_what_the_client_asks_by_default_and_at_once(
    triton_client: triton.InferenceServerClient, model: str, same: Any
) -> None:
    same(triton_client.infer(model, [tensor(TEXTS)], model_version="1").as_numpy("embeddings"))
    waiting = [triton_client.async_infer(model, [tensor([text])]) for text in TEXTS]
    same([each.get_result().as_numpy("embeddings")[0] for each in waiting])


def test_triton_parameters(triton_client: triton.InferenceServerClient, model: str, encode: Any) -> None:
    result = triton_client.infer(model, [tensor(TEXTS)], parameters={"dimensions": 16, "normalize": False})
    expected = encode(TEXTS, dimensions=16, normalize=False)
    np.testing.assert_allclose(result.as_numpy("embeddings"), expected, atol=1e-6)


def test_triton_refusals_are_errors_with_their_message(triton_client: triton.InferenceServerClient, model: str) -> None:
    with pytest.raises(InferenceServerException, match="no such model") as raised:
        triton_client.infer("other", [tensor(["a"])])
    assert raised.value.status() == "404"
    with pytest.raises(InferenceServerException, match="tokens, the model takes"):
        triton_client.infer(model, [tensor(["a " * 300])], parameters={"truncate": False})


README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.split("\n## Clients\n")[1].split("\n## ")[0]
DEFAULT_URL = "http://127.0.0.1:8000"


def snippet(language: str, url: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert DEFAULT_URL in found
    return str(found).replace(DEFAULT_URL, url)


def test_snippet_for_openai(url: str, model: str) -> None:
    printed = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(snippet("python", url), names)  # noqa: S102 - our own README
    names["client"].close()
    assert printed.getvalue() == f"{model} 384\n"


def test_snippet_for_tei(url: str, encode: Any) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    ended = subprocess.run(["/bin/sh", "-c", snippet("sh", url)], capture_output=True, check=True)  # noqa: S603 - our own README
    (vector,) = json.loads(ended.stdout)
    assert vector == pytest.approx(encode("The cat sat on the mat.")[0], abs=1e-6)
