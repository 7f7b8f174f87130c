"""The check before parsing: counts what is outside strings, in time proportional to the body."""

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest

from service.errors import TooLarge
from service.http.body import CHECKED_BYTES, PER_TEXT, SPARE, WINDOW_BYTES, check_structure
from service.settings import Settings

MOST = PER_TEXT * 16 + SPARE  # lists and objects, or names, of 16 texts
MANY = b":" * (MOST + 1)  # enough that strings are told from what is between them


def check(raw: bytes) -> None:
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
