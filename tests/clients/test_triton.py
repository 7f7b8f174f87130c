"""Triton's HTTP client, which KServe's and Knative's users have: tensors as bytes and as JSON."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(url.removeprefix("http://"), concurrency=4)
    yield made
    made.close()


def tensor(texts: list[str], *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput("text", [len(texts)], "BYTES")
    made.set_data_from_numpy(np.array(texts, dtype=np.object_), binary_data=binary)
    return made


def test_server_and_model_are_described(client: triton.InferenceServerClient, model: str) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    assert client.is_model_ready(model, "1")
    assert not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    described = client.get_model_metadata(model)
    assert described["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert described["outputs"] == [{"name": "embeddings", "datatype": "FP32", "shape": [-1, 384]}]


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("received", [True, False])
def test_tensors(
    client: triton.InferenceServerClient, model: str, same: Any, texts: list[str], sent: bool, received: bool
) -> None:
    outputs = [triton.InferRequestedOutput("embeddings", binary_data=received)]
    result = client.infer(model, [tensor(texts, binary=sent)], outputs=outputs, request_id="7")
    same(result.as_numpy("embeddings"))
    assert result.get_response()["id"] == "7"
    assert ("data" in result.get_output("embeddings")) is not received


def test_what_the_client_asks_by_default_and_at_once(
    client: triton.InferenceServerClient, model: str, same: Any, texts: list[str]
) -> None:
    same(client.infer(model, [tensor(texts)], model_version="1").as_numpy("embeddings"))
    waiting = [client.async_infer(model, [tensor([text])]) for text in texts]
    same([each.get_result().as_numpy("embeddings")[0] for each in waiting])


def test_parameters(client: triton.InferenceServerClient, model: str, encode: Any, texts: list[str]) -> None:
    result = client.infer(model, [tensor(texts)], parameters={"dimensions": 16, "normalize": False})
    expected = encode(texts, dimensions=16, normalize=False)
    np.testing.assert_allclose(result.as_numpy("embeddings"), expected, atol=1e-6)


def test_refusals_are_errors_with_their_message(client: triton.InferenceServerClient, model: str) -> None:
    with pytest.raises(InferenceServerException, match="no such model") as raised:
        client.infer("other", [tensor(["a"])])
    assert raised.value.status() == "404"
    with pytest.raises(InferenceServerException, match="tokens, the model takes"):
        client.infer(model, [tensor(["a " * 300])], parameters={"truncate": False})
