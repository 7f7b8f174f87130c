"""No request holds the event loop for more than 20 ms, whatever its body: others, and probes, wait meanwhile."""

import json
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from tests.service.conftest import Serve
from tests.service.loop_hold import LONGEST, shortest_hold

MODEL = "tests/fake"
TEXTS = ["a b c d e f"] * 2048
INFER = f"/v2/models/{MODEL}/infer"


def filled(start: bytes, item: bytes, end: bytes) -> bytes:
    """A body of JSON just under the largest, with as many items as go in."""
    count = (2**21 - len(start) - len(end)) // (len(item) + 1)
    return start + b",".join([item] * count) + end


HOSTILE: Mapping[str, tuple[str, bytes]] = MappingProxyType(
    {
        "lists of one id": ("/encode", filled(b'{"inputs":[', b"[1]", b"]}")),
        "one list of ids": ("/encode", filled(b'{"inputs":[', b"1", b"]}")),
        "empty texts": ("/encode", filled(b'{"inputs":[', b'""', b"]}")),
        "lists in lists": ("/encode", filled(b'{"inputs":[', b"[[[[[]]]]]", b"]}")),
        "objects": ("/encode", filled(b'{"inputs":[', b"{}", b"]}")),
        "layers": ("/encode", filled(b'{"inputs":"a","attention":{"layers":[', b"1", b"]}}")),
        "heads": ("/encode", filled(b'{"inputs":"a","attention":{"heads":[', b"0", b"]}}")),
        "head mask": ("/encode", filled(b'{"inputs":"a","head_mask":[', b"[0,0,1]", b"]}")),
        "fields": ("/encode", b"{" + b",".join(b'"k%d":1' % index for index in range(170_000)) + b"}"),
        "escapes": ("/encode", b'{"inputs":"' + b"\\u0041" * 340_000 + b'"}'),
        "commas in a text": ("/encode", b'{"inputs":"' + b"[,:{" * 500_000 + b'"}'),
        "blanks": ("/encode", b'{"inputs":' + b" " * 2_000_000 + b'"a"}'),
        "no end": ("/encode", b'{"inputs":["' + b"a," * 1_000_000),
        "no UTF-8": ("/encode", b'{"inputs":"' + b"\xff" * 2_000_000 + b'"}'),
        "quotes": ("/encode", b'{"inputs":' + b'"' * 2_000_000),
        "tensor of empty texts": (
            INFER,
            filled(b'{"inputs":[{"name":"a","datatype":"BYTES","shape":[1],"data":[', b'""', b"]}]}"),
        ),
        "openai": ("/v1/embeddings", filled(b'{"model":"' + MODEL.encode() + b'","input":[', b"[1]", b"]}")),
        "tei": ("/embed", filled(b'{"inputs":[', b'""', b"]}")),
        "tokenize": ("/tokenize", filled(b'{"inputs":[', b'""', b"]}")),
        "similarity": ("/similarity", filled(b'{"source":"a","targets":[', b'""', b"]}")),
        "explain": ("/explain", filled(b'{"a":"a","b":"b","head_mask":[', b"[0,0,1]", b"]}")),
    }
)
LARGE: Mapping[str, tuple[str, object]] = MappingProxyType(
    {
        "texts": ("/encode", {"inputs": TEXTS}),
        "short texts": ("/encode", {"inputs": ["a"] * 2048}),
        "token ids": ("/encode", {"inputs": [[1] * 16] * 2048}),
        "token vectors": ("/encode", {"inputs": TEXTS, "output": "tokens"}),
        "base64": ("/encode", {"inputs": TEXTS, "encoding_format": "base64"}),
        "attention": ("/encode", {"inputs": TEXTS, "attention": {"layers": "all"}}),
        "statistics": ("/encode", {"inputs": TEXTS, "attention": {"layers": "all", "form": "stats"}}),
        "decomposition": ("/encode", {"inputs": ["a"] * 512, "attention": {"form": "decomposition"}}),
        "words": ("/encode", {"inputs": TEXTS, "attention": {"layers": "all", "level": "word"}}),
        "openai": ("/v1/embeddings", {"model": MODEL, "input": TEXTS}),
        "tokenize": ("/tokenize", {"inputs": TEXTS}),
        "similarity": ("/similarity", {"source": "a", "targets": TEXTS[:-1]}),
    }
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_does_not_hold_the_loop(serve: Serve, name: str) -> None:
    path, body = HOSTILE[name]
    status, hold = shortest_hold(serve().client.app, path, body)
    assert status in {200, 400, 413, 422}
    assert hold < LONGEST


@pytest.mark.slow
@pytest.mark.alone  # processor time, but caches are shared with whatever runs beside it
@pytest.mark.parametrize("name", LARGE)
def test_the_largest_requests_do_not_hold_the_loop(serve: Serve, name: str) -> None:
    path, body = LARGE[name]
    status, hold = shortest_hold(serve().client.app, path, json.dumps(body).encode())
    assert status == 200
    assert hold < LONGEST


@pytest.mark.slow
def test_structure_in_texts_is_no_structure(serve: Serve) -> None:
    text = 'a list of "names": [1, 2], {3} and so on: ' * 200
    assert len(json.dumps([text] * 200)) > 1_500_000
    answer = serve().encode({"inputs": [text] * 200})
    assert answer.status_code == 200
