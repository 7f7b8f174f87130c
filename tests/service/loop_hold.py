"""How long one request holds the event loop at a time: processor time of the loop's thread between two turns of a task
that does nothing else. Other processes and threads do not count, so a busy machine changes little.
"""

import asyncio
import time
from typing import Any

from starlette.types import ASGIApp

LONGEST = 0.02  # seconds: beyond that a probe waits, and everybody's requests do


def shortest_hold(app: ASGIApp, path: str, body: bytes) -> tuple[int, float]:
    """As `hold_of`, the best of three: whatever else happens on a machine only adds to it."""
    for _ in range(3):
        status, hold = asyncio.run(hold_of(app, path, body))
        if hold < LONGEST:
            break
    return status, hold


async def hold_of(app: ASGIApp, path: str, body: bytes) -> tuple[int, float]:
    """The status of `POST path`, and the longest time in seconds that the loop was held while it was answered."""
    sent: list[dict[str, Any]] = []
    answering = asyncio.ensure_future(collect_answer(app, path, body, sent))
    longest, last = 0.0, time.thread_time()
    while not answering.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    await answering
    return sent[0]["status"], longest


async def collect_answer(app: ASGIApp, path: str, body: bytes, sent: list[dict[str, Any]]) -> None:
    """Posts JSON and appends what the app sends."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    await app(scope, receive, send)
