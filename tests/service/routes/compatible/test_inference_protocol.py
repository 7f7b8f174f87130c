"""The Open Inference Protocol without a client: JSON and binary tensors, metadata, its shape of errors."""

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model.artifact import OPENVINO
from service.app import ROUTES
from service.http.openapi import make_document
from service.routes.compatible.inference_protocol import InferenceAnswer, ModelMetadata, ServerMetadata
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import HIDDEN_SIZE, MODEL_NAME
from tests.service.routes.conftest import Client
from tests.task_artifacts import TaskArtifact

TEXTS = ["the cat", "", "döner 猫"]
MODEL = f"/v2/models/{MODEL_NAME}"


def tensor(texts: list[Any], **changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts, **changes}]}


def packed(texts: list[str]) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def post_binary(served: Served, behind: bytes, *, length: str | None = None, **changes: Any) -> Any:
    entry = {"name": "t", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(behind)}, **changes}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": length or str(len(head))}
    return served.client.post(f"{MODEL}/infer", content=head + behind, headers=headers)


@pytest.mark.parametrize(
    ("data", "shape", "version"), [(TEXTS, [3], ""), ([[text] for text in TEXTS], [3, 1], "/versions/1")]
)
def test_json_tensors(served: Served, data: list[Any], shape: list[int], version: str) -> None:
    response = served.client.post(f"{MODEL}{version}/infer", json={"id": "42", **tensor(data, shape=shape)})
    InferenceAnswer.model_validate_json(response.content, strict=True)
    answer = response.json()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("42", MODEL_NAME, "1")
    (output,) = answer["outputs"]
    assert output["shape"] == [3, HIDDEN_SIZE]
    assert output["data"] == np.ravel(served.encode({"inputs": TEXTS}).json()["embeddings"]).tolist()


def wanted(**parameters: Any) -> dict[str, Any]:
    return {"outputs": [{"name": "embeddings", "parameters": parameters}]}


OF_ANOTHER = tensor(TEXTS, parameters={"content_type": "str"}) | {"parameters": {"priority": 1, "timeout": 5}}
BINARY = {"parameters": {"binary_data_output": True}}


@pytest.mark.parametrize(
    ("asked", "is_binary"),
    [
        (wanted(binary_data=True), True),
        (wanted() | BINARY, True),
        (wanted(binary_data=False) | BINARY, False),
        ({"outputs": []}, False),
        (wanted(classification=0) | OF_ANOTHER, False),  # parameters of others are ignored
    ],
)
def test_outputs_say_how_they_are_written(served: Served, asked: dict[str, Any], is_binary: bool) -> None:
    response = served.client.post(f"{MODEL}/infer", json={**tensor(["the cat " * 20]), **asked})
    assert response.status_code == 200
    assert ("inference-header-content-length" in response.headers) == is_binary
    documented = make_document(ROUTES)["paths"]["/v2/models/{model}/infer"]["post"]["responses"]["200"]
    assert response.headers["content-type"] in documented["content"]
    own = {"inference-header-content-length", "x-truncated-inputs"} & response.headers.keys()
    assert own <= {name.lower() for name in documented["headers"]}


def test_parameters_are_those_of_encode(served: Served) -> None:
    parameters = {"dimensions": 3, "normalize": False, "prompt": "the "}
    answer = served.client.post(f"{MODEL}/infer", json={**tensor(["cat"]), "parameters": parameters}).json()
    assert answer["outputs"][0]["data"] == served.encode({"inputs": "cat", **parameters}).json()["embeddings"][0]
    assert served.client.post(f"{MODEL}/infer", json=tensor(["cat " * 40])).headers["x-truncated-inputs"] == "1"


@pytest.mark.parametrize(
    ("data", "changes", "status"),
    [
        (packed(TEXTS), {"length": "999999"}, 400),
        (packed(TEXTS), {"length": "-1"}, 400),
        (packed(TEXTS), {"length": "3"}, 400),
        (packed(TEXTS)[:-1], {}, 422),
        (packed(TEXTS) + b"\0\0", {}, 422),
        (struct.pack("<I", 2**31) + b"x", {}, 422),
        (struct.pack("<I", 2) + b"\xff\xfe", {"shape": [1]}, 422),
        (packed(TEXTS), {"shape": [2]}, 422),
        (packed(TEXTS), {"data": TEXTS}, 422),
        (packed(TEXTS), {"parameters": {"binary_data_size": 4}}, 422),
    ],
)
def test_broken_binary_tensors_are_refused(served: Served, data: bytes, changes: dict[str, Any], status: int) -> None:
    response = post_binary(served, data, **changes)
    assert response.status_code == status
    assert set(response.json()) == {"error"}


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({}, ""),  # as Triton's client means it
        ({"content-type": "Application/JSON; charset=utf-8"}, ""),
        ({"content-type": "text/plain"}, "Content-Type: expected application/json"),
        ({"content-type": "application/octet-stream"}, "Content-Type: expected application/json"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "Content-Encoding: the body must not"),
        ({"accept": "application/octet-stream"}, ""),
        ({"accept": "text/html"}, "Accept: "),
    ],
)
def test_types_of_body_and_answer(served: Served, headers: dict[str, str], refusal: str) -> None:
    response = served.client.post(f"{MODEL}/infer", content=json.dumps(tensor(["cat"])), headers=headers)
    assert response.status_code == (406 if refusal.startswith("Accept") else 415 if refusal else 200)
    assert response.json().get("error", "").startswith(refusal)


def test_metadata_and_health(serve: Serve) -> None:
    served = serve()
    ServerMetadata.model_validate_json(served.client.get("/v2").content, strict=True)
    assert "binary_tensor_data" in served.client.get("/v2").json()["extensions"]
    response = served.client.get(MODEL)
    ModelMetadata.model_validate_json(response.content, strict=True)
    assert response.json()["outputs"] == [{"name": "embeddings", "datatype": "FP32", "shape": [-1, HIDDEN_SIZE]}]
    assert served.client.get(f"{MODEL}/versions/1").json() == response.json()
    assert response.json()["platform"] == "onnxruntime_onnx"
    served.engine.runtime = replace(served.engine.runtime, engine=OPENVINO)
    assert served.client.get(MODEL).json()["platform"] == "openvino_onnx"
    assert served.client.get("/v2/health/live").json() == {"live": True}
    assert served.client.get("/v2/health/ready").json() == {"ready": True}
    assert served.client.get(f"{MODEL}/ready").json() == {"name": MODEL_NAME, "ready": True}
    served.readiness.drain()
    assert served.client.get("/v2/health/live").status_code == 200
    for path in ("/v2/health/ready", f"{MODEL}/ready"):
        assert served.client.get(path).status_code == 503


def test_what_kserve_s_client_writes_is_taken(served: Served) -> None:
    body = {**tensor(TEXTS, parameters=None, unknown=1), "id": "1", "model_name": "any", "parameters": None}
    for wanted in (None, [{"name": "embeddings", "parameters": None, "unknown": 1}]):
        answer = served.client.post(f"{MODEL}/infer", json={**body, "outputs": wanted}).json()
        assert (answer["id"], answer["model_name"]) == ("1", MODEL_NAME)
        assert answer["outputs"][0]["shape"] == [3, HIDDEN_SIZE]
    parameters = dict.fromkeys(("binary_data_output", "truncate", "normalize", "dimensions", "prompt"))
    assert served.client.post(f"{MODEL}/infer", json={**body, "parameters": parameters}).json() == answer


def test_metadata_is_of_embedders(client: Client, classifier: TaskArtifact) -> None:
    answer = client(classifier.artifact).get("/v2/models/drawn")
    assert (answer.status_code, "is served here for classification" in answer.json()["error"]) == (404, True)


@pytest.mark.parametrize("name", ["other", f"{MODEL_NAME}/versions/2", f"{MODEL_NAME}x", "other%0Aline"])
def test_other_models_are_not_found(served: Served, name: str) -> None:
    found = [served.client.get(f"/v2/models/{name}{end}") for end in ("", "/ready")]
    for response in (*found, served.client.post(f"/v2/models/{name}/infer", json=tensor(["cat"]))):
        assert response.status_code == 404
        assert response.json() == {"error": f"no such model; {MODEL_NAME} is served here"}
