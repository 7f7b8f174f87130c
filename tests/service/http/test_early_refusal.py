"""Clients that ask again at once while the queue refuses."""

import json
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from benchmarks.lib.load import Address, Request, run_closed_loop
from service.app import ROUTES, UNMATCHED
from service.errors import Overloaded
from service.http.access import HostAndPortPolicy, KeyRing
from service.http.early_refusal import ALERT_SECONDS, FIRST_PAUSE, PAUSE_GROWTH, EarlyRefusals
from service.http.protocol import LEAST_RETRY_AFTER
from service.http.route import RouteTable
from service.observability.metrics import Metrics
from tests.service.http.test_protocol import PROBE, connected, metric, request_bytes
from tests.service.process import fake_server

KEY = "k" * 20
REQUEST = request_bytes({"inputs": "cat"})
RETRY_AFTER = 3


class Queue:
    """Refuses, or does not."""

    is_full = True
    asked = 0  # tokens
    refused = 0  # tokens that come again
    room = 0  # requests that may be on their way

    def early_refusal(self, tokens: int, others: int, refused: int) -> Overloaded | None:
        self.asked, self.refused = tokens, refused
        is_refused = self.is_full and others >= self.room
        return Overloaded("too much waits", retry_after=RETRY_AFTER - 0.5) if is_refused else None


class Storm:
    """A connection, by a clock of its own."""

    def __init__(self, *keys: str, is_read_by_browsers: bool = False, early: EarlyRefusals | None = None) -> None:
        self.now = 100.0
        self.queue, self.metrics = Queue(), Metrics([], ["overloaded"])
        self.early = early or EarlyRefusals(
            RouteTable(ROUTES, UNMATCHED),
            self.queue.early_refusal,
            KeyRing(keys, None),
            HostAndPortPolicy(None, []),
            self.metrics,
            is_read_by_browsers=is_read_by_browsers,
        )
        self.tasks = 0
        self.loop = Mock(time=lambda: self.now, create_task=self._create_task)
        self.protocol = connected(Mock(), self.early, self.loop)
        self.transport: Any = self.protocol.transport

    def _create_task(self, work: Coroutine[Any, Any, None]) -> Mock:
        self.tasks += 1
        work.close()
        return Mock()

    def ask(self, data: bytes = REQUEST) -> bytes:
        """Sends; returns the immediate answer."""
        self.transport.write.reset_mock()
        self.protocol.data_received(data)
        return b"".join(call.args[0] for call in self.transport.write.call_args_list)

    def pause(self) -> float:
        """How long the connection is not read; it is read again then."""
        called = [call.args for call in self.loop.call_later.call_args_list if "_read_again" in str(call.args[1])]
        self.loop.call_later.reset_mock()
        for seconds, read_again in called:
            self.now += seconds
            read_again()
        return float(sum(seconds for seconds, _ in called))


@pytest.fixture
def storm() -> Storm:
    made = Storm()
    made.early.note()
    return made


def test_a_refusal_is_a_whole_answer_without_a_task(storm: Storm) -> None:
    head, _, body = storm.ask(request_bytes({"inputs": "cat"}, "X-Request-Id: mine")).partition(b"\r\n\r\n")
    assert storm.tasks == 0
    assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    lines = head.decode().split("\r\n")[1:]
    headers = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}
    assert len(headers) == len(lines)
    assert {"retry-after": "3", "x-request-id": "mine", "content-length": str(len(body))}.items() <= headers.items()
    assert headers["x-content-type-options"] == "nosniff"
    assert "connection" not in headers
    assert json.loads(body)["error"]["code"] == "overloaded"


def test_a_request_is_as_long_as_its_body_says(storm: Storm) -> None:
    storm.ask(request_bytes({"inputs": "cat " * 100}))
    assert storm.queue.asked == pytest.approx(100, rel=0.2)
    storm.ask(request_bytes({"inputs": "cat " * 1000}))
    assert storm.queue.asked == pytest.approx(1000, rel=0.25)


def test_requests_on_their_way_to_the_queue_are_counted_until_they_are_there(storm: Storm) -> None:
    storm.queue.room = 1
    assert storm.ask() == b""
    (begin_turn,) = storm.loop.call_soon.call_args.args
    assert Storm(early=storm.early).ask().startswith(b"HTTP/1.1 429")
    begin_turn()
    assert Storm(early=storm.early).ask() == b""


def test_who_asks_again_at_once_is_read_later_and_later(storm: Storm) -> None:
    for longest in [0, 0.1, 0.4, 1.6] + [RETRY_AFTER] * 2000:
        assert storm.ask().startswith(b"HTTP/1.1 429")
        assert longest / 2 <= storm.pause() <= longest


def test_a_connection_that_is_not_read_is_kept_for_its_next_request(storm: Storm) -> None:
    """Closed meanwhile, it would be reset under a request that waits to be read."""
    for _ in range(9):
        storm.ask()
        *_, kept = [args[0] for args, _ in storm.loop.call_later.call_args_list if "keep_alive" in str(args[1])]
        assert kept == pytest.approx(storm.pause() + storm.protocol.timeout_keep_alive)


def test_clients_refused_together_are_read_again_apart(storm: Storm) -> None:
    clients = [storm, *(Storm(early=storm.early) for _ in range(9))]
    for client in clients:
        client.ask()
        client.ask()
    assert len({client.pause() for client in clients}) > 5


def test_the_queue_is_told_how_much_comes_again(storm: Storm) -> None:
    another = Storm(early=storm.early)
    long, short = request_bytes({"inputs": "cat " * 1000}), request_bytes({"inputs": "cat " * 100})
    asked = [0]
    for client, body in [(storm, long), (storm, long), (another, short), (another, short)]:
        client.ask(body)
        assert storm.queue.refused == min(sum(asked), (len(asked) if sum(asked) else 0) * storm.queue.asked)
        asked = [storm.queue.asked] if client is storm else [asked[0], storm.queue.asked]
        client.pause()
    storm.queue.is_full = False
    storm.ask()
    storm.protocol.cycle.response_complete = True
    storm.protocol.on_response_complete()
    storm.queue.is_full = True
    another.ask(short)
    assert storm.queue.refused == asked[1]
    another.protocol.connection_lost(None)
    storm.ask()
    assert storm.queue.refused == 0


def test_who_waits_as_asked_is_never_held_up(storm: Storm) -> None:
    for _ in range(5):
        assert storm.ask().startswith(b"HTTP/1.1 429")
        assert storm.pause() == 0
        storm.now += RETRY_AFTER


def test_who_is_refused_on_the_usual_way_is_read_later_too() -> None:
    storm = Storm()
    pauses = []
    for was_refused in (True, True, True, True, False, True):
        storm.ask()
        storm.protocol.cycle.response_complete = True
        storm.protocol.connection.was_refused = was_refused
        storm.protocol.on_response_complete()
        pauses.append(storm.pause())
    longest = [0, FIRST_PAUSE, PAUSE_GROWTH * FIRST_PAUSE, LEAST_RETRY_AFTER, 0, 0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))


def test_the_body_of_a_refused_request_is_read_past(storm: Storm) -> None:
    body = request_bytes({"inputs": "cat " * 50})
    answer = b"".join(storm.ask(part) for part in (body[:-90], body[-90:-1], body[-1:]))
    assert answer.count(b"HTTP/1.1 429") == 1
    assert storm.ask().startswith(b"HTTP/1.1 429")
    assert storm.tasks == 0


def test_requests_in_one_read_are_not_all_refused_at_once(storm: Storm) -> None:
    assert storm.ask(REQUEST * 10).count(b"HTTP/1.1 429") == 2
    assert storm.tasks == 1  # the others wait behind each other, as requests in one read always do


def test_a_connection_that_is_to_close_is_closed(storm: Storm) -> None:
    assert b"connection: close\r\n" in storm.ask(request_bytes({"inputs": "cat"}, "Connection: close"))
    assert storm.transport.write_eof.called
    at_once = Storm(early=storm.early)
    at_once.protocol.timeout_keep_alive = 0
    assert b"connection: close\r\n" in at_once.ask()


@pytest.mark.parametrize(
    ("keys", "sent", "is_refused"),
    [
        ((), PROBE, False),
        ((), request_bytes({"inputs": "cat"}, path="/tokenize"), False),  # waits in no queue
        ((), request_bytes({"inputs": "cat"}, path="/no-such-route"), False),
        ((), request_bytes({"inputs": "cat"}, path="/%65ncode"), False),
        ((), request_bytes({"inputs": "cat"}, "Expect: 100-continue"), False),
        ((), request_bytes({"inputs": "cat"}, "Host: another"), False),
        ((), request_bytes({"inputs": "cat"}, "Origin: https://example.com"), False),  # to be read by a page
        ((KEY,), REQUEST, False),  # who has no key is not told that the queue is full
        ((KEY,), request_bytes({"inputs": "cat"}, f"X-API-Key: {KEY}"), True),
    ],
)
def test_what_takes_its_usual_way(keys: tuple[str, ...], sent: bytes, is_refused: bool) -> None:
    storm = Storm(*keys, is_read_by_browsers=True)
    assert b" 429 " not in storm.ask(), "no client was refused yet"
    assert storm.tasks == 1
    storm = Storm(*keys, is_read_by_browsers=True)
    storm.early.note()
    assert (b" 429 " in storm.ask(sent)) == is_refused


def test_the_alert_ends(storm: Storm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storm.early.is_alert
    clock = Mock(return_value=0.0)
    monkeypatch.setattr("service.http.early_refusal.time.monotonic", clock)
    storm.early.note()
    clock.return_value = ALERT_SECONDS
    assert not storm.early.is_alert


def test_each_refusal_is_counted_and_all_are_one_line(storm: Storm, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for path in ("/encode", "/encode", "/v1/embeddings"):
            storm.ask(request_bytes({"inputs": "cat"}, path=path))
            storm.pause()
        storm.early.report()
        storm.early.report()
    registry = storm.metrics.registry
    assert registry.get_sample_value("polyhead_requests_rejected_total", {"reason": "overloaded"}) == 3
    labels = {"route": "/encode", "method": "POST", "status": "429"}
    assert registry.get_sample_value("polyhead_request_duration_seconds_count", labels) == 2
    refusals = [vars(record)["fields"] for record in caplog.records if "refused" in vars(record).get("fields", {})]
    assert refusals == [{"refused": {"/encode": 2, "/v1/embeddings": 1}}]


def test_a_real_queue_refuses_early(fake_artifact: Path) -> None:
    slow = {"FAKE_QUEUE_DELAY": "0", "FAKE_RUN_SECONDS": "0.05"}  # of equal requests sixteen may wait
    with fake_server(fake_artifact, "--max-batch-tokens", "32", **slow).wait_until_ready() as server:
        requests = [Request(request_bytes({"inputs": ["cat"] * 16}), texts=16, tokens=48)]
        tally = run_closed_loop(Address(*server.address), requests, connections=60, seconds=1, warmup=0)
        server.wait_for_line("requests refused early")
        assert set(tally.statuses) <= {200, 429}
        assert tally.with_retry_after == tally.refused
        rejected, answered = (
            metric(server, series)
            for series in (
                'polyhead_requests_rejected_total{reason="overloaded"}',
                'polyhead_request_duration_seconds_count{method="POST",route="/encode",status="429"}',
            )
        )
        assert rejected == answered >= max(1, tally.refused)
