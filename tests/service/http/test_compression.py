"""gzip: for large attention in JSON numbers only, and only for those who take it."""

import gzip
import json
from typing import Any

import pytest

from service.http.compression import SMALLEST_BYTES
from service.http.media import accepts_gzip
from tests.service.conftest import Served

LARGE: dict[str, Any] = {"inputs": ["the cat sat on a mat " * 2] * 40, "attention": {"layers": [0, 1]}}


def raw(served: Served, body: dict[str, Any], **headers: str) -> tuple[Any, bytes]:
    """The response and its bytes as they were sent."""
    with served.client.stream("POST", "/encode", json=body, headers=headers) as response:
        return response, b"".join(response.iter_raw())


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("br, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("*", True),
        ("*;q=0", False),
        ("identity", False),
        ("deflate, br", False),
    ],
)
def test_who_takes_gzip(header: str | None, takes: bool) -> None:
    assert accepts_gzip(None if header is None else header.encode()) == takes


def test_large_attention_is_compressed_and_reads_back(served: Served) -> None:
    plain, whole = raw(served, LARGE, **{"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert len(whole) >= SMALLEST_BYTES
    response, sent = raw(served, LARGE, **{"accept-encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["vary"] == "accept-encoding"
    assert int(response.headers["content-length"]) == len(sent) < len(whole) / 2
    assert json.loads(gzip.decompress(sent)) == json.loads(whole)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({**LARGE, "inputs": "the cat"}, {}),
        ({**LARGE, "encoding_format": "base64"}, {}),
        ({**LARGE, "inputs": LARGE["inputs"] * 20, "attention": None}, {}),
        (LARGE, {"accept": "application/vnd.safetensors"}),
    ],
)
def test_other_answers_are_sent_as_they_are(served: Served, body: dict[str, Any], headers: dict[str, str]) -> None:
    response, sent = raw(served, body, **{"accept-encoding": "gzip", **headers})
    assert response.status_code == 200
    assert "content-encoding" not in response.headers
    assert int(response.headers["content-length"]) == len(sent)
