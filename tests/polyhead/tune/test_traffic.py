import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from polyhead.tune.traffic import CONNECTIONS, RefusedRequest, measure, natural_texts
from tests.service.fake_engine import make_tokenizer


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(path))
    return path


def test_lengths_are_natural(vocabulary: Path) -> None:
    lengths = [text.tokens for text in natural_texts(vocabulary, 2000, longest=256)]
    assert 30 < sum(lengths) / len(lengths) < 36
    assert 150 < max(lengths) <= 256
    assert min(lengths) >= 3


class Answering:
    """A server that answers every request with one status, and counts texts and connections."""

    def __init__(self, status: str) -> None:
        self.texts: Counter[str] = Counter()
        self.connections = 0
        self._status = status

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.texts[json.loads(await reader.readexactly(length))["inputs"]] += 1
            writer.write(f"HTTP/1.1 {self._status}\r\nContent-Length: 2\r\n\r\n{{}}".encode())


def ask(answering: Answering, vocabulary: Path, seconds: float) -> tuple[int, int, float]:
    """Texts, requests that came alone, and the share of the client."""
    texts = natural_texts(vocabulary, 16, longest=64)

    async def run() -> tuple[int, int, float]:
        async with await asyncio.start_server(answering, "127.0.0.1") as server:
            alone, together = await measure(server.sockets[0].getsockname(), texts, seconds)
        return len(together.seconds), len(alone.seconds), together.client_share

    return asyncio.run(run())


def test_many_requests_are_under_way_and_each_is_counted(vocabulary: Path) -> None:
    answering = Answering("200 OK")
    together, alone, share = ask(answering, vocabulary, 0.1)
    assert together >= CONNECTIONS
    assert alone >= 1
    assert share > 0
    assert answering.connections == 2 * CONNECTIONS + 1
    assert sum(answering.texts.values()) >= together + alone + CONNECTIONS
    assert len(answering.texts) > 10


def test_an_answer_that_is_no_200_ends_the_measurement(vocabulary: Path) -> None:
    with pytest.raises(RefusedRequest, match="answered 503: {}"):
        ask(Answering("503 Service Unavailable"), vocabulary, 0.1)
