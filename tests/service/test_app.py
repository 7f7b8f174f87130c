"""The app as a whole: its document, its probes, its other routes, what one declaration adds, and what it loads."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from model.artifact import HEADS
from service.app import ROUTES
from service.errors import Overloaded
from service.http.openapi import make_document
from service.http.route import Route, answer_document
from service.requests.explain import ExplainAnswer
from service.requests.schemas import EncodeAnswer, TokenizeAnswer
from service.routes.status import Info
from service.wire import COHERE, TEI, AnswerModel, FailureAnswer, RequestModel
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import MAX_LENGTH, MODEL_NAME, write_fake_artifact

FAILURES = {  # one route of each kind, and the statuses that its declaration comes to
    ("/encode", "post"): {200, 400, 401, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504},
    ("/tokenize", "post"): {200, 400, 401, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504},
    ("/admin/models", "post"): {200, 400, 401, 404, 406, 408, 413, 415, 422, 429, 500, 503},
    ("/admin/models/{model}", "delete"): {200, 401, 404, 422, 500},
    ("/info", "get"): {200, 401, 404, 500, 503},
    ("/v2", "get"): {200, 401, 500},
    ("/healthz", "get"): {200, 500, 503},
    ("/metrics", "get"): {200, 500},
}
OF_TWO_SHAPES = {"Compare one text with many", "Order documents by a query, as TEI and Infinity"}
MODELS = {(route.path.replace(":path}", "}"), route.method.lower()): route.error_shape.model for route in ROUTES}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """As any client reads it."""
    document: dict[str, Any] = json.loads(json.dumps(make_document(ROUTES)))
    return document


def test_document_lists_every_route_and_its_statuses(document: dict[str, Any]) -> None:
    operations = {(path, method): one for path, methods in document["paths"].items() for method, one in methods.items()}
    described = {(path, method) for path, method in MODELS if not path.startswith(("/static", "/docs", "/openapi"))}
    assert operations.keys() == described
    parameters = operations["/encode", "post"]["parameters"]
    assert {parameter["name"] for parameter in parameters} == {"X-Request-Id", "X-Request-Timeout"}
    assert {place: {int(status) for status in operations[place]["responses"]} for place in FAILURES} == FAILURES


def test_document_leaves_out_what_no_port_has(document: dict[str, Any], serve: Serve) -> None:
    assert serve("--admin-port", "80").client.get("/openapi.json").json() == document
    missing = document["paths"].keys() - serve().client.get("/openapi.json").json()["paths"].keys()
    assert missing == {"/admin/models", "/admin/models/{model}"}


def test_generators_of_clients_make_a_class_of_each_body(document: dict[str, Any]) -> None:
    # openapi-python-client gives up at values that differ in case only, and types a body with `oneOf` as Any.
    asked = document["components"]["schemas"]["EncodeRequest"]
    assert asked["additionalProperties"] is False
    assert all("description" in field for field in asked["properties"].values())
    for name, schema in document["components"]["schemas"].items():
        assert "properties" not in schema or "oneOf" not in schema, name
        for field, value in schema.get("properties", {}).items():
            values = [str(one).upper() for one in value.get("enum", ())]
            assert len(values) == len(set(values)), (name, field)


def test_every_failure_in_the_document_has_the_body_of_its_api_and_examples(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            model = MODELS[path, method]
            for status, response in operation["responses"].items():
                if status == "200":
                    continue
                content = response["content"]["application/json"]
                schemas = content["schema"].get("anyOf", [content["schema"]])
                assert schemas[0] == {"$ref": f"#/components/schemas/{model.__name__}"}
                assert len(schemas) == 1 or operation["summary"] in OF_TWO_SHAPES
                for code, example in content["examples"].items():
                    failure = model.model_validate(example["value"])
                    assert not isinstance(failure, FailureAnswer) or failure.error.code == code
                    assert response["description"].count(example["summary"]) == 1, (path, status)
                assert ("Retry-After" in response.get("headers", {})) == (status in ("429", "503"))


def test_every_route_that_queues_is_refused_early(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.engine, "early_refusal", lambda *_: Overloaded("full", retry_after=3))
    queueing = [route.path.replace("{model:path}", "{model}") for route in ROUTES if route.is_queued]
    assert queueing
    for path in queueing:
        response = shared.client.post(path.replace("{model}", MODEL_NAME), content=b"not even read")
        assert (response.status_code, response.headers["retry-after"]) == (429, "3")
        MODELS[path, "post"].model_validate_json(response.content)


def test_examples_are_valid_and_answered(shared: Served, document: dict[str, Any]) -> None:
    for name, model in (("Encode", EncodeAnswer), ("Explain", ExplainAnswer), ("Tokenize", TokenizeAnswer)):
        path = f"/{name.lower()}"
        example = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["example"]
        model.model_validate_json(json.dumps(example), strict=True)
        (asked,) = document["components"]["schemas"][f"{name}Request"]["examples"]
        if path == "/encode":  # the fake model's last layer has no heads
            asked = {**asked, "attention": {**asked["attention"], "layers": [0]}}
        assert shared.client.post(path, json=asked).status_code == 200


def test_tokenize(shared: Served) -> None:
    answer = shared.client.post("/tokenize", json={"inputs": ["the cats", "cat " * 40]}).json()
    TokenizeAnswer.model_validate_json(json.dumps(answer), strict=True)
    assert answer["model"] == MODEL_NAME
    assert answer["items"][0] == {
        "input_ids": [2, 4, 5, 11, 3],
        "tokens": ["[CLS]", "the", "cat", "##s", "[SEP]"],
        "offsets": [[0, 0], [0, 3], [4, 7], [7, 8], [0, 0]],
        "truncated": False,
    }
    assert answer["items"][1]["truncated"]
    assert answer["usage"] == {"tokens": 5 + MAX_LENGTH}


def test_info_holds_manifest_limits_and_versions(serve: Serve) -> None:
    served = serve("--max-texts", "7", "--max-request-tokens", str(6 * MAX_LENGTH))
    info = Info.model_validate_json(served.client.get("/info").content)
    assert info.model == info.model_id == MODEL_NAME
    assert info.max_client_batch_size == 6, "however long the texts are"
    assert info.manifest == json.loads(json.dumps(served.engine.manifest.to_dict()))
    assert info.limits["max_texts"] == 7
    assert info.limits["max_sequence_length"] == MAX_LENGTH
    assert info.runtime == {
        "provider": "cpu",
        "workers": 1,
        "intra_op_threads": 1,
        "engine": "onnxruntime",
        "computes_in": "",
        "batch_invariant": False,  # of a fake
        "instructions": [],
    }
    assert {"python", "numpy", "tokenizers"} <= set(info.versions)


def test_versions_are_not_read_again_without_file_handles(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_package: str) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("importlib.metadata.version", exhausted)
    assert {"python", "numpy", "tokenizers"} <= set(shared.client.get("/info").json()["versions"])
    assert shared.client.get("/v2").status_code == 200


def test_nothing_is_answered_before_a_model_is_loaded(serve: Serve) -> None:
    client = serve(ready=False).client
    assert [client.get(path).status_code for path in ("/v2/health/live", "/healthz")] == [200, 200]
    asked = {"GET": ["/v1/models", f"/v1/models/{MODEL_NAME}", "/models", "/v2/health/ready", "/health"]}
    asked["GET"] += ["/info", "/heads", "/readyz"]
    asked["POST"] = ["/encode", "/tokenize", "/embed", "/", f"/v2/models/{MODEL_NAME}/infer"]
    for method, path in ((method, path) for method, paths in asked.items() for path in paths):
        response = client.request(method, path, content=b"no JSON", headers={"content-type": "application/json"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1"), path
        MODELS[path.replace(MODEL_NAME, "{model}"), method.lower()].model_validate_json(response.content)


def test_heads_says_that_there_is_no_report(shared: Served) -> None:
    response = shared.client.get("/heads")
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message == "this artifact has no head report; `polyhead heads ARTIFACT --corpus FILE` writes one"


def test_workers_that_do_not_answer_fail_both_probes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.engine, "is_alive", lambda: False)
    for path in ("/healthz", "/readyz"):
        response = served.client.get(path)
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the workers do not answer"
    assert served.metric("polyhead_ready") == 0


LOADS = """
import logging, os, sys

def assert_not_loaded(*names):
    loaded = [name for name in sys.modules if name.startswith(names)]
    assert not loaded, loaded

class Watch:
    def find_spec(self, name, path=None, target=None):
        assert name != "onnxruntime" or os.environ["ORT_DISABLE_TELEMETRY"] == "1"

logging.basicConfig(level=logging.DEBUG)
sys.meta_path.insert(0, Watch())
import service.__main__, service.processes.supervisor
assert_not_loaded("onnxruntime", "tokenizers", "fastapi", "starlette", "uvicorn")
import service.server
assert_not_loaded("onnxruntime")
import service.inference.onnx_backend
from starlette.testclient import TestClient
from service.app import create_app
from service.services import Readiness
from service.settings import read_settings
app, services = create_app(read_settings(["--model", sys.argv[1]]), Readiness())
TestClient(app).get("/healthz")
assert "onnxruntime" in sys.modules
assert_not_loaded("fastapi", "torch", "onnx.", "onnxscript", "transformers", "export", "requests", "google.")
assert_not_loaded("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
from opentelemetry import trace
assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
"""


def test_no_framework_is_loaded_that_is_not_needed_and_no_telemetry_is_sent(fake_artifact: Path) -> None:
    """The environment asks for it as loudly as it can, and everything it would take is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | {
        "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_TRACES_EXPORTER": "otlp",
    }
    command = [sys.executable, "-c", LOADS, str(fake_artifact)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr
    assert "telemetry" not in ended.stderr.lower()


ORIGIN = "https://notes.example.com"


class Phrase(RequestModel):
    text: str


class Words(AnswerModel):
    words: int


async def count_words(request: Request, body: Phrase) -> Response:
    return Response(str(len(body.text.split())), headers={"X-Longest": "3"}, media_type="application/json")


WORDS = Route(
    "POST",
    "/words",
    count_words,
    is_queued=True,
    error_shape=COHERE,
    body_error_shapes={"texts": TEI},
    summary="Count words",
    answer=answer_document(Words, headers={"X-Longest": {"schema": {"type": "integer"}}}),
)
MORE = (*ROUTES, WORDS)


def test_a_body_of_another_api_fails_in_its_shape(serve: Serve) -> None:
    client = serve(routes=MORE).client
    for body, status in ((b'{"texts": ["a"]}', 422), (b'{"texts": ["a"', 400)):
        refused = client.post("/words", content=body, headers={"content-type": "application/json"})
        assert (refused.status_code, set(refused.json())) == (status, {"error", "error_type"})
    schema = client.get("/openapi.json").json()["paths"]["/words"]["post"]["responses"]["422"]["content"]
    names = {shape["$ref"].rpartition("/")[2] for shape in schema["application/json"]["schema"]["anyOf"]}
    assert names == {"CohereFailure", "TeiFailure"}


def test_pages_may_read_the_headers_that_it_declares(serve: Serve) -> None:
    client = serve("--cors-origins", ORIGIN, routes=MORE).client
    answer = client.post("/words", json={"text": "a cat sat"}, headers={"origin": ORIGIN})
    assert (answer.text, answer.headers["x-longest"]) == ("3", "3")
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"X-Request-Id", "Retry-After", "X-Longest"} <= {*exposed}


PATHS = ("/info", "/heads", "/v1/models", "/models")


def test_what_is_said_of_the_model_is_that_of_the_files_that_were_loaded(serve: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / HEADS).write_text('{"schema": 1, "heads": []}')
    write_fake_artifact(directory)
    client = serve("--model", str(directory)).client
    before = [client.get(path) for path in PATHS]
    assert [answer.status_code for answer in before] == [200] * len(PATHS)
    shutil.rmtree(directory)
    assert [client.get(path).content for path in PATHS] == [answer.content for answer in before]
