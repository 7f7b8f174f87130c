"""Clients that send requests without waiting for answers."""

import asyncio
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from service.http.read_ahead import FEW_AHEAD, MOST_AHEAD, ReadAhead
from tests.service.http.test_protocol import error_code, read_answer
from tests.service.test_server import fake_server

PROBE = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"


def test_requests_ahead_are_answered_up_to_a_number_and_the_connection_closed(fake_artifact: Path) -> None:
    with fake_server(fake_artifact).wait_until_ready() as server, server.connect() as connection:
        connection.sendall(PROBE * (1 + MOST_AHEAD))
        assert [read_answer(connection)[0] for _ in range(1 + MOST_AHEAD)] == [200] * (1 + MOST_AHEAD)
        connection.sendall(PROBE * 10_000)
        answers = [read_answer(connection) for _ in range(2 + MOST_AHEAD)]
        assert [status for status, _, _ in answers] == [200] * (1 + MOST_AHEAD) + [400]
        assert error_code(answers[-1][2]) == "malformed_request"
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("heads", "bodies", "reads"),
    [
        ([], [], 1),
        ([10, 10], [30_000, 30_000], 1),
        ([10, 10, 10], [30_000, 30_000, 30_000], 0),
        ([30_000, 30_000, 30_000], [0, 0, 0], 0),
        ([10] * FEW_AHEAD, [0] * FEW_AHEAD, 1),
        ([10] * (1 + FEW_AHEAD), [0] * (1 + FEW_AHEAD), 0),
    ],
)
def test_nothing_is_read_while_many_bytes_or_requests_wait(heads: list[int], bodies: list[int], reads: int) -> None:
    transport = Mock(spec=asyncio.Transport)
    waiting: deque[Any] = deque(
        (SimpleNamespace(scope=_scope(head), body=b" " * body), None) for head, body in zip(heads, bodies, strict=True)
    )
    flow = ReadAhead(transport, waiting)
    flow.pause_reading()
    flow.resume_reading()
    assert transport.resume_reading.call_count == reads
    waiting.clear()
    flow.resume_reading()
    transport.resume_reading.assert_called_once()


def _scope(size: int) -> dict[str, Any]:
    return {"raw_path": b"/", "query_string": b"", "headers": [(b"x-long", b"a" * size)]}
