"""Requests to `POST /encode`, made beforehand, and a look at whether the answers are real."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.lib.client import DROPPED, Connection, Request, post
from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.server import Server
from benchmarks.lib.tokens import TokenIds

ENCODE = "/encode"
CLOSE_ENOUGH = 0.98  # cosine; int8 against fp32 is above 0.99, another text far below


class WrongAnswer(CannotMeasure):
    """The server answered something else than the vectors of the texts it was sent."""


def encode_requests(
    texts: Sequence[str], rows: Sequence[TokenIds], per_request: int, options: Mapping[str, Any] | None = None
) -> list[Request]:
    """Requests of `per_request` texts each, every text used once; what is left over is dropped.

    Without the model's default prompt: its tokens would count, and the engine and the peers encode the texts alone.

    Args:
        texts: what to send.
        rows: their token ids, for counting.
        per_request: 1 sends a text, more a list.
        options: further fields of the body.

    Raises:
        CannotMeasure: there are too few texts for one request.
    """

    def body(part: list[str]) -> dict[str, Any]:
        return {"inputs": part[0] if per_request == 1 else part, "prompt": "", **(options or {})}

    return requests_of(ENCODE, texts, rows, per_request, body)


def requests_of(
    path: str,
    texts: Sequence[str],
    rows: Sequence[TokenIds],
    per_request: int,
    body: Callable[[list[str]], Mapping[str, Any]],
) -> list[Request]:
    """Requests to any route; `body` makes one of the texts in it. Else, and what it raises, as `encode_requests`."""
    if len(texts) < per_request:
        raise CannotMeasure(f"{len(texts)} texts make no request of {per_request}: raise --texts")
    parts = [slice(start, start + per_request) for start in range(0, len(texts) - per_request + 1, per_request)]
    return [post(path, body(list(texts[part])), texts=per_request, tokens=sum(map(len, rows[part]))) for part in parts]


def fetch(server: Server, request: Request) -> dict[str, Any]:
    """The JSON of one answer.

    Raises:
        WrongAnswer: the status is not 200.
    """
    answer: dict[str, Any] = json.loads(fetch_body(server, request))
    return answer


def fetch_body(server: Server, request: Request) -> bytes:
    """The body of one answer, whatever its form.

    Raises:
        WrongAnswer: the status is not 200.
    """

    async def context() -> bytes:
        connection = Connection(server.address, keep_body=True)
        response = await connection.context(request.data)
        connection.close()
        if response.status == DROPPED:
            raise WrongAnswer(f"no answer from {server.address.host}:{server.address.port}")
        if response.status != 200:
            raise WrongAnswer(f"status {response.status}: {response.body[:500]!r}")
        return response.body

    return asyncio.run(context())


def check_vectors(got: ArrayLike, expected: NDArray[np.float32]) -> None:
    """Compares directions with the engine's own vectors, before anything is timed.

    Raises:
        WrongAnswer: another number of vectors, another size, or another direction.
    """
    found = np.asarray(got, dtype=np.float32)
    if found.shape != expected.shape:
        raise WrongAnswer(f"vectors of shape {found.shape}, expected {expected.shape}")
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = float(((found * expected).sum(axis=1) / norms).min())
    if not cosine >= CLOSE_ENOUGH:
        raise WrongAnswer(f"a vector has cosine {cosine:.4f} to the engine's, expected at least {CLOSE_ENOUGH}")
