"""Requests of one text of natural length, one at a time and many at once."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

CONNECTIONS = 64  # requests under way while throughput is measured: enough that batches fill
LATENCY_SHARE = 0.4  # of a layout's seconds, for requests that come one at a time
WARM_UP_SHARE = 0.1
SEED = 0
# Lengths of English sentences and short paragraphs in tokens: log-normal, 33 on average, a tail to several hundred.
MEDIAN_TOKENS, LENGTH_SPREAD = 25.0, 0.75


class RefusedRequest(RuntimeError):
    """The server answered something else than 200; the message is its answer."""


@dataclass(frozen=True, slots=True)
class Text:
    """A request as bytes, and the tokens that its text was made of."""

    request: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What came back in a time: texts and tokens a second, seconds of each request, the client's share of a core."""

    texts_per_second: float
    tokens_per_second: float
    seconds: Sequence[float]
    client_share: float


def natural_texts(tokenizer: Path, count: int, longest: int) -> list[Text]:
    """Texts of natural lengths from the words of a vocabulary, as requests.

    Args:
        tokenizer: the artifact's `tokenizer.json`.
        count: how many.
        longest: most tokens of a text.
    """
    read = Tokenizer.from_file(str(tokenizer))
    generator = np.random.default_rng(SEED)
    lengths = generator.lognormal(np.log(MEDIAN_TOKENS), LENGTH_SPREAD, count).round().astype(int).clip(3, longest)
    drawn = [generator.integers(0, read.get_vocab_size(), length).tolist() for length in lengths]
    return [Text(_request(text), len(ids)) for text, ids in zip(read.decode_batch(drawn), drawn, strict=True)]


def _request(text: str) -> bytes:
    body = json.dumps({"inputs": text}).encode()
    head = (
        f"POST /encode HTTP/1.1\r\nHost: tune\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def measure(address: tuple[str, int], texts: Sequence[Text], seconds: float) -> tuple[Rates, Rates]:
    """What requests one at a time give, and many at once, in about so many seconds."""
    await _send(address, texts, seconds * WARM_UP_SHARE, CONNECTIONS)
    alone = await _send(address, texts, seconds * LATENCY_SHARE, 1)
    return alone, await _send(address, texts, seconds * (1 - LATENCY_SHARE - WARM_UP_SHARE), CONNECTIONS)


async def _send(address: tuple[str, int], texts: Sequence[Text], seconds: float, connections: int) -> Rates:
    started, busy = time.perf_counter(), time.process_time()
    ways = (_keep_asking(address, texts, place, started + seconds) for place in range(connections))
    done = [one for way in await asyncio.gather(*ways) for one in way]
    took, busy = time.perf_counter() - started, time.process_time() - busy
    tokens = sum(tokens for tokens, _ in done)
    return Rates(len(done) / took, tokens / took, [each for _, each in done], busy / took)


async def _keep_asking(
    address: tuple[str, int], texts: Sequence[Text], place: int, end: float
) -> list[tuple[int, float]]:
    """Sends one request after the other on a connection until the end; tokens and seconds of each."""
    reader, writer = await asyncio.open_connection(*address)
    done: list[tuple[int, float]] = []
    try:
        while not done or time.perf_counter() < end:
            text = texts[(place * 7919 + len(done)) % len(texts)]  # a prime: connections begin at texts far apart
            started = time.perf_counter()
            writer.write(text.request)
            await _answer(reader)
            done.append((text.tokens, time.perf_counter() - started))
    finally:
        writer.close()
    return done


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    body = await reader.readexactly(length)
    status = int(head.split(" ", 2)[1])
    if status != HTTPStatus.OK:
        raise RefusedRequest(
            f"a request of the measurement was answered {status}: {body[:300].decode(errors='replace')}"
        )
