import logging
import resource
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.machine.descriptors import make_room
from tests.service.http.test_protocol import read_answer
from tests.service.process import fake_server

Limits = tuple[int, int]


@pytest.mark.parametrize(
    ("limits", "raised", "fitting"),
    [
        ((2000, 3000), (3000, 3000), 1000),
        ((1032, 1032), None, 1000),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 1000),
        ((256, 3000), (3000, 3000), 1000),
        ((256, resource.RLIM_INFINITY), (2**20, resource.RLIM_INFINITY), 1000),
        ((256, 1000), (1000, 1000), 968),
        ((20, 20), None, 1),
    ],
)
def test_the_limit_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: Limits,
    raised: Limits | None,
    fitting: int,
) -> None:
    found: list[Limits] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: found.append(values))
    with caplog.at_level(logging.WARNING):
        assert make_room(1000) == fitting
    assert found == ([] if raised is None else [raised])
    assert ("ulimit -n" in caplog.text) == (fitting < 1000)


def test_a_limit_that_cannot_be_raised_is_lived_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert make_room(1000) == 256 - 32


def test_clients_beyond_the_descriptors_are_told_so(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, FAKE_DESCRIPTORS="112").wait_until_ready() as server, ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(40)]
        for client in clients:
            client.sendall(b"GET /info HTTP/1.1\r\nHost: test\r\n\r\n")
        statuses = Counter(read_answer(client)[0] for client in clients)
        assert statuses == {200: 16, 503: 24}
