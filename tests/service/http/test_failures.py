"""Every failure has the one body, its status and no word of what was sent; too much structure is found unparsed."""

import asyncio
import contextlib
import json
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any
from unittest.mock import Mock

import pytest

from service.errors import InferenceFailed, TooLarge
from service.http.body import CHECKED_BYTES, PER_TEXT, SPARE, WINDOW_BYTES, check_structure
from service.settings import Settings
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import FakeBackend
from tests.service.process import wait_until

CANARY = "xylophonist-4711"

BAD_ATTENTION: list[tuple[dict[str, Any], str]] = [  # and the field that is named
    ({"layers": [10**30]}, "layers"),
    ({"layers": []}, "layers"),
    ({"layers": CANARY}, "layers"),
    ({"layers": [0], "heads": [-1]}, "heads.0"),
    ({"heads": "last"}, "heads"),
    ({"queries": [0]}, "queries"),
    ({"reduce": "rollout", "layers": [3]}, "layers"),
    ({"top_k": 0}, "top_k"),
    ({"form": "stats", "queries": "cls"}, "queries"),
    ({"form": "stats", "reduce": "mean"}, "reduce"),
    ({"form": "stats", "level": "word"}, "level"),
    ({"form": "stats", "top_k": 3}, "top_k"),
    ({"form": "stats", "exclude_special": True}, "exclude_special"),
    ({"form": "stats", "renormalise": True}, "renormalise"),
]
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"inputs": {"text": CANARY}}, "inputs"),
    ({"inputs": []}, "inputs"),
    ({"inputs": [[5], []]}, "inputs.1"),
    ({"inputs": [CANARY, 1]}, "inputs"),
    ({"inputs": [[1, 2.0]]}, "inputs.0"),
    ({"inputs": [1, [2]]}, "inputs"),
    ({"inputs": [[CANARY]]}, "inputs.0"),
    ({"inputs": [2, -1, 3]}, "inputs.0"),
    ({"inputs": [[2, 3], [2, 14]]}, "inputs.1"),
    ({"inputs": [2**70]}, "inputs.0"),
    ({"inputs": "cat", "pooling": CANARY}, "pooling"),
    ({"inputs": "cat", "dimensions": 4.5}, "dimensions"),
    ({"inputs": "cat", "output": CANARY}, "output"),
    ({"inputs": "cat", "attention": "last"}, "attention"),
    ({"inputs": [2, 3], "attention": {"level": "word"}}, "attention.level"),
    ({"inputs": "cat", "encoding_format": "float16"}, "encoding_format"),
]
BAD_BODIES: list[tuple[Any, int, str, str | None]] = [
    *((body, 422, "invalid", param) for body, param in BAD_FIELDS),
    *(({"inputs": "cat", "attention": asked}, 422, "invalid", f"attention.{name}") for asked, name in BAD_ATTENTION),
    ({"inputs": [5] * 17}, 413, "too_large", "inputs.0"),
    ([CANARY], 422, "invalid", None),
    (CANARY, 422, "invalid", None),
]

BAD_BYTES = {
    "nothing": b"",
    "no JSON": CANARY.encode(),
    "cut off": b'{"inputs": "' + CANARY.encode(),
    "trailing": b'{"inputs": "a"} ' + CANARY.encode(),
    "not UTF-8": b'{"inputs": "\xff\xfe' + CANARY.encode() + b'"}',
    "half a surrogate pair": b'{"inputs": "\\ud800' + CANARY.encode() + b'"}',
    "single quotes": b"{'inputs': '" + CANARY.encode() + b"'}",
    "nested too deep": b'{"inputs": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "number too long": b'{"inputs": [' + b"9" * 100_000 + b"]}",
}


def error_of(response: Any) -> dict[str, Any]:
    body = response.json()
    assert set(body) - {"detail"} == {"error"}  # of Jina's
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return error


def test_bad_bodies(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for body, status, code, param in BAD_BODIES:
            response = served.encode(body)
            error = error_of(response)
            assert (response.status_code, error["code"], error["param"]) == (status, code, param), body
            assert CANARY not in response.text, body
    assert CANARY not in caplog.text
    assert not served.backend.batches
    assert served.encode({"inputs": "cat"}).status_code == 200


def test_what_is_no_json(served: Served) -> None:
    for what, raw in BAD_BYTES.items():
        response = served.client.post("/encode", content=raw, headers={"content-type": "application/json"})
        assert (response.status_code, error_of(response)["code"]) == (400, "malformed_body"), what
        assert CANARY not in response.text, what


def test_unknown_fields_are_named_in_short_and_counted(served: Served) -> None:
    error = error_of(served.encode({"inputs": "cat", "z" * 5000: 1}))
    assert error["param"] == "z" * 64
    assert len(error["message"]) < 200
    error = error_of(served.encode({"inputs": "cat", **{f"field{index}": 1 for index in range(30)}}))
    assert error["message"].endswith("; and 25 more")


def test_a_body_is_plain_json(served: Served) -> None:
    json_type = "application/json"
    others = ("text/plain", "application/x-www-form-urlencoded", f"{json_type}l", "")
    for name, value in (*(("Content-Type", other) for other in others), ("Content-Encoding", "gzip")):
        for path in ("/encode", "/tokenize"):
            headers = {"Content-Type": json_type, name: value}
            response = served.client.post(path, content=b'{"inputs": "cat"}', headers=headers)
            assert (response.status_code, error_of(response)["param"]) == (415, name), (path, value)


def test_a_text_of_too_many_characters(serve: Serve) -> None:
    served, most = serve("--max-text-characters", str(len(CANARY) - 1)), len(CANARY) - 1
    bodies: list[tuple[str, Any, str | None]] = [
        ("/encode", {"inputs": ["cat", CANARY]}, "inputs.1"),
        ("/encode", {"inputs": CANARY}, "inputs.0"),
        ("/encode", {"inputs": "cat", "prompt": CANARY}, "inputs.0"),
        ("/tokenize", {"inputs": ["cat", CANARY]}, "inputs.1"),
        ("/v1/embeddings", {"input": ["cat", CANARY]}, "input.1"),
        ("/similarity", {"source": "cat", "targets": ["cat", CANARY]}, None),
        ("/explain", {"a": "cat", "b": CANARY}, "b"),
    ]
    for path, body, param in bodies:
        response = served.client.post(path, json=body)
        error = error_of(response)
        assert response.status_code == 413, body
        assert error["param"] == param or param is None, body
        assert re.search(rf"\d+ characters, at most {most} a text are taken; send it in parts", error["message"])
        assert CANARY not in response.text


def test_wrong_method(served: Served) -> None:
    of_tei = {"error", "error_type"}
    for method, path, allow, fields in (
        ("GET", "/encode", "POST", None),
        ("HEAD", "/encode", "POST", None),
        ("DELETE", "/tokenize", "POST", None),
        ("POST", "/info", "GET, HEAD", None),
        ("POST", "/v1/models/tiny", "GET, HEAD", None),
        ("GET", "/embed", "POST", of_tei),
        ("PUT", "/embed_all", "POST", of_tei),
        ("POST", "/health", "GET, HEAD", of_tei),
        ("POST", "/v2", "GET, HEAD", {"error"}),
        ("PUT", "/v2/models/tiny/infer", "POST", {"error"}),
        ("GET", "/v2/models/tiny/infer", "POST", {"error"}),
    ):
        response = served.client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allow), (method, path)
        if fields is not None:  # another API's
            assert response.json().keys() == fields, path
            assert isinstance(response.json()["error"], str), path
        elif method != "HEAD":
            assert error_of(response)["code"] == "method_not_allowed", path


def test_no_such_route(served: Served) -> None:
    for path in ("/nope", "/encode/", "/static/nope.js", "/static/../settings.py", "/%00"):
        response = served.client.get(path)
        assert (response.status_code, error_of(response)["code"]) == (404, "not_found"), path


def test_body_over_its_limit(serve: Serve) -> None:
    served = serve("--max-body-bytes", "1000")
    response = served.encode({"inputs": CANARY * 100})
    assert (response.status_code, error_of(response)["code"]) == (413, "too_large")
    assert error_of(response)["message"] == "the body is larger than 1000 bytes; send fewer inputs a request"
    fitting = json.dumps({"inputs": "cat"}).encode().ljust(1000)
    headers = {"content-type": "application/json"}
    assert served.client.post("/encode", content=fitting, headers=headers).status_code == 200
    assert served.client.post("/encode", content=fitting + b" ", headers=headers).status_code == 413


def test_a_deadline_that_has_passed_is_told_at_once(served: Served) -> None:
    for path in ("/encode", "/tokenize"):
        response = served.client.post(path, json={"inputs": "cat"}, headers={"x-request-timeout": "1e-9"})
        assert (response.status_code, error_of(response)["code"]) == (504, "deadline_exceeded"), path


def test_deadline_ends_waiting_for_the_tokenizer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(served.engine.tokenizer, "_encode", lambda *_, **__: released.wait(60))
    long = "cat " * 2000
    bodies: Any = {"/encode": {"inputs": long}, "/v1/embeddings": {"input": [long]}}
    bodies["/explain"] = {"a": "cat", "b": long}
    started = time.monotonic()
    try:
        for path, body in bodies.items():
            response = served.client.post(path, json=body, headers={"x-request-timeout": "0.05"})
            assert (response.status_code, error_of(response)["code"]) == (504, "deadline_exceeded"), path
    finally:
        released.set()
    assert time.monotonic() - started < 30


def test_bodies_of_all_requests_are_held_within_a_budget(serve: Serve) -> None:
    backend = FakeBackend()
    backend.gate.clear()
    served = serve("--max-body-bytes", "1000", "--max-held-body-bytes", "1500", backend=backend)
    large = {"inputs": "cat " * 200}
    with ThreadPoolExecutor(1) as clients:
        holding = clients.submit(served.encode, large)
        wait_until(lambda: bool(backend.batches))
        response = served.encode(large)
        assert (response.status_code, error_of(response)["code"]) == (429, "too_many_bytes_held")
        assert response.headers["retry-after"] == "1"
        backend.gate.set()
        assert holding.result().status_code == 200
    assert served.metric("polyhead_requests_rejected_total", reason="too_many_bytes_held") == 1
    assert served.metric("polyhead_requests_rejected_total", reason="overloaded") == 0
    assert served.services.body_budget.held == 0
    assert served.encode(large).status_code == 200
    assert served.encode({"inputs": 7}).status_code == 422
    assert served.services.body_budget.held == 0


@pytest.mark.parametrize(
    ("place", "code"), [("backend.run", InferenceFailed.code), ("engine.tokenizer._encode", "internal_error")]
)
def test_a_failure_of_ours_is_500_with_a_fixed_text(
    served: Served, place: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, _, name = place.rpartition(".")
    failing = Mock(side_effect=RuntimeError(f"cannot handle {CANARY}"))
    with monkeypatch.context() as broken:
        broken.setattr(attrgetter(owner)(served), name, failing)
        response = served.encode({"inputs": CANARY})
    assert (response.status_code, error_of(response)["code"]) == (500, code)
    assert CANARY not in response.text
    assert served.encode({"inputs": "cat"}).status_code == 200


MOST = PER_TEXT * 16 + SPARE  # lists and objects, or names, of 16 texts
MANY = b":" * (MOST + 1)  # enough that strings are told from what is between them


def check(raw: bytes) -> None:
    """Counts what is outside strings, in time proportional to the body."""
    asyncio.run(check_structure(raw, max_texts=16, max_tokens=64))


@pytest.mark.parametrize(
    "repeated", [b'\\"', b'"', b"\\", b'\\\\"', b'",', b'"\\', b"\\u0022", b"[", b'a"', b"\xff\\"], ids=repr
)
def test_time_grows_no_faster_than_the_body(repeated: bytes) -> None:
    def seconds(size: int) -> float:
        raw = b'{"inputs":["x"],"' + MANY + b'":"' + repeated * (size // len(repeated))
        begun = time.thread_time()
        with contextlib.suppress(TooLarge):
            check(raw)
        return time.thread_time() - begun

    assert seconds(65_536) < 0.05  # 18 KB of escaped quotes took 0.8 s, and time grew with the square of the size
    small, large = (min(seconds(size) for _ in range(3)) for size in (2**17, 2**20))
    assert large < 16 * small + 0.02


@pytest.mark.parametrize("offset", range(-3, 4))
@pytest.mark.parametrize("text", ["\\", '"', '\\"', "\n", "é"])
def test_strings_are_read_whole_across_windows(offset: int, text: str) -> None:
    filler = "," * (WINDOW_BYTES - 20 + offset)
    check(json.dumps({"inputs": [filler + text * 9 + ":" * MOST * 2, filler]}).encode())


def test_what_is_outside_strings_is_counted() -> None:
    raw = json.dumps({"inputs": ['",:[{' * CHECKED_BYTES], **{str(index): 0 for index in range(MOST + 1)}}).encode()
    with pytest.raises(TooLarge, match=f"more than {MOST} names"):
        check(raw)


@pytest.mark.parametrize(
    "body",
    [
        {"pairs": [[[101, 7], [8, 102]]] * 2048},
        {"inputs": [[101] * 32] * 2048},
        {"query": "cat", "documents": [{"text": "a cat"}] * 2048},
        {"inputs": [{"content": [{"type": "text", "text": "a cat"}]}] * 2048},
        {"inputs": ["cat " * 65] * 100, "spans": [[[4 * place, 4 * place + 3] for place in range(65)]] * 100},
    ],
    ids=["pairs of ids", "ids", "documents", "contents", "spans"],
)
def test_whatever_the_limits_of_texts_and_tokens_allow_passes(settings: Settings, body: Any) -> None:
    raw = json.dumps(body).encode()
    asyncio.run(check_structure(raw, max_texts=settings.max_texts, max_tokens=settings.max_request_tokens))
