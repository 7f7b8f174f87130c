"""The parent without processes: children that stop answering, when who is started again, shares; messages to them."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from model.artifact import write_manifest
from service.processes import supervisor as shares
from service.processes.channel import Link, give_connection, line_of, take_connection
from service.processes.children import HUNG_LOOKS, LATE_LOOKS, SILENT_LOOKS, ChildProcess, Children, Distributor
from service.processes.supervisor import (
    MOST_DEATHS,
    STEADY_SECONDS,
    Supervisor,
    cores_of,
    delay_after_death,
    processes_of,
    share_of,
)
from service.settings import Settings, read_settings
from tests.service.fake_engine import make_manifest, write_fake_artifact


def child(index: int) -> Mock:
    return Mock(index=index, state="ready", silence=0, takes_connections=True)


def make() -> tuple[Children, list[Mock]]:
    children, made = Children(2), [child(0), child(1)]
    children.all.update(made)
    children.serving.update(enumerate(made))
    return children, made


def last_told(one: Mock) -> dict[str, bool]:
    told: dict[str, bool] = one.tell.call_args.kwargs
    return told


def test_a_child_that_is_silent_is_told_of_and_then_killed() -> None:
    children, (silent, other) = make()
    for look in range(1, HUNG_LOOKS + 1):
        assert not silent.kill.called
        children.look()
        other.silence = 0  # it says that it is there
        is_fine = look < SILENT_LOOKS
        assert last_told(other) == {"is_ready": is_fine, "is_alive": is_fine}
    silent.kill.assert_called_once()
    assert not other.kill.called


def test_a_child_that_starts_is_given_its_time() -> None:
    children, (starting, _) = make()
    starting.state, starting.takes_connections = "starting", False
    for _ in range(2 * HUNG_LOOKS):
        children.look()
    assert not starting.kill.called
    assert not children.is_ready()


def test_ready_is_every_place_and_nothing_less() -> None:
    children, (first, second) = make()
    assert children.is_ready()
    assert children.remove(first)
    assert not children.is_ready()
    assert children.is_alive()
    assert last_told(second) == {"is_ready": False, "is_alive": True}
    children.all.add(first)
    children.serving[0] = first
    children.is_ending = True
    assert not children.is_ready()


def test_each_start_comes_later_until_there_is_none() -> None:
    deaths: dict[int, int] = {}
    first, *delays = [delay_after_death(deaths, 0, None, 5.0) for _ in range(MOST_DEATHS + 1)]
    assert first is not None
    assert first < 1
    assert delays == [*(min(10, 2.0**row * first) for row in range(1, MOST_DEATHS)), None]


def test_a_process_that_served_for_long_begins_anew_and_places_are_apart() -> None:
    deaths: dict[int, int] = {}
    first = delay_after_death(deaths, 0, None, 0.0)
    assert delay_after_death(deaths, 0, 10.0, 10.0 + STEADY_SECONDS / 2) != first
    assert delay_after_death(deaths, 1, None, 0.0) == first
    assert delay_after_death(deaths, 0, 10.0, 10.0 + STEADY_SECONDS) == first


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Twelve cores, without a quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr(shares, "cgroup_quota", lambda: None)
    monkeypatch.setattr(shares, "core_limit", lambda: 12.0)
    monkeypatch.setattr(shares, "usable_cores", lambda: 12)
    return monkeypatch


def settings_of(artifact: Path, *flags: str) -> Settings:
    return read_settings(["--model", str(artifact), *flags])


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 12])
def test_every_core_is_one_process_s(machine: pytest.MonkeyPatch, fake_artifact: Path, processes: int) -> None:
    cores = [cores_of(index, processes) for index in range(processes)]
    assert sorted(core for part in cores for core in part or []) == list(range(12))
    sizes = [len(part or []) for part in cores]
    assert max(sizes) - min(sizes) <= 1
    workers = [share_of(settings_of(fake_artifact), index, processes).workers for index in range(processes)]
    assert workers == sizes


def test_processes_are_tied_to_no_cores_where_that_could_not_be_even(machine: pytest.MonkeyPatch) -> None:
    assert cores_of(0, 13) is None
    machine.setattr(shares, "cgroup_quota", lambda: 6.0)
    assert cores_of(0, 2) is None


def test_workers_share_a_quota(machine: pytest.MonkeyPatch, fake_artifact: Path) -> None:
    machine.setattr(shares, "cgroup_quota", lambda: 5.5)
    machine.setattr(shares, "core_limit", lambda: 5.5)
    settings = settings_of(fake_artifact)
    assert [share_of(settings, index, 2).workers for index in range(2)] == [2, 3]
    assert [share_of(settings, index, 8).workers for index in range(8)] == [1] * 8
    assert share_of(settings_of(fake_artifact, "--intra-op-threads", "2"), 1, 2).workers == 1
    assert share_of(settings_of(fake_artifact, "--workers", "7"), 1, 2).workers == 7


def test_limits_on_all_requests_are_shared_and_those_on_one_are_not(fake_artifact: Path) -> None:
    share = share_of(settings_of(fake_artifact), 0, 4)
    whole = settings_of(fake_artifact)
    assert share.max_connections == whole.max_connections // 4
    assert share.max_held_body_bytes == whole.max_held_body_bytes // 4
    assert share.max_held_answer_bytes == whole.max_held_answer_bytes // 4
    assert share.max_queue_tokens == whole.max_request_tokens  # a quarter would take no largest request
    assert share.max_body_bytes == whole.max_body_bytes
    assert share_of(settings_of(fake_artifact), 0, 100).max_held_body_bytes == whole.max_body_bytes


@pytest.mark.parametrize(
    ("precision", "flags", "cores", "expected"),
    [
        ("fp32", "--processes 0", 12, 2),
        ("int8", "--processes 0", 12, 3),
        ("int8", "--processes 0", 2, 1),
        ("fp32", "--processes 0 --provider cuda", 12, 1),
        (None, "--processes 0", 12, 1),  # no artifact, which one process complains of
        ("int8", "", 12, 1),
        ("int8", "--processes 7", 12, 7),
    ],
)
def test_the_number_is_chosen_by_cores_and_precision(
    machine: pytest.MonkeyPatch, tmp_path: Path, precision: Any, flags: str, cores: int, expected: int
) -> None:
    machine.setattr(shares, "usable_cores", lambda: cores)
    if precision is not None:
        write_manifest(tmp_path, replace(make_manifest(write_fake_artifact(tmp_path)), precision=precision))
    assert processes_of(settings_of(tmp_path, *flags.split())) == expected


class FakeChild:
    """A process that is ready at once, and ends when it is told to or killed."""

    pid, index, silence, metrics, was_ready, state, takes_connections = 1, 0, 0, None, 0.0, "ready", False

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.over = asyncio.Event()

    def tell(self, kind: str, **_: object) -> None:
        self.orders.append(kind)
        if kind in ("leave", "end"):
            self.over.set()

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        await self.over.wait()
        for message in list[dict[str, Any]]():
            yield message

    async def becomes_ready(self) -> bool:
        return True

    async def ended(self) -> int:
        return 0

    def kill(self) -> None:
        self.over.set()


Started = Callable[[Supervisor, list[FakeChild]], None]


def run_supervisor(monkeypatch: pytest.MonkeyPatch, processes: int, on_start: Started) -> list[FakeChild]:
    """Runs one to its end; `on_start` is called for each process that is started, before the parent has it."""
    children: list[FakeChild] = []

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            supervisor = Supervisor(settings_of(Path("any")), processes, [listener], "any:load", "test")

            async def start(_assignment: object) -> FakeChild:
                await asyncio.sleep(0.01)
                children.append(FakeChild())
                on_start(supervisor, children)
                return children[-1]

            monkeypatch.setattr(ChildProcess, "start", start)
            async with asyncio.timeout(10):
                assert await supervisor.run() == 0

    asyncio.run(test())
    return children


def test_an_end_while_processes_start_reaches_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_at_the_second(supervisor: Supervisor, children: list[FakeChild]) -> None:
        if len(children) == 2:
            supervisor._on_end_signal()

    children = run_supervisor(monkeypatch, 4, end_at_the_second)
    assert ["end" in child.orders for child in children] == [True, True]


def test_a_place_that_is_replaced_is_not_restarted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGHUP comes between a death and the start that follows it: the second process would serve forever."""

    async def die_and_replace(supervisor: Supervisor, first: FakeChild) -> None:
        supervisor._has_been_ready = True
        first.over.set()
        while supervisor._children.serving:
            await asyncio.sleep(0)
        await supervisor._replace(0)
        await asyncio.sleep(0.3)  # longer than the pause before the first restart
        supervisor._on_end_signal()

    def begin(supervisor: Supervisor, children: list[FakeChild]) -> None:
        if len(children) == 1:
            supervisor._start(die_and_replace(supervisor, children[0]))

    children = run_supervisor(monkeypatch, 1, begin)
    assert len(children) == 2
    assert "end" in children[1].orders


def test_a_process_that_leaves_gets_no_connections_whatever_it_still_says() -> None:
    async def test() -> list[bool]:
        (ours, theirs), (control, their_control) = socket.socketpair(), socket.socketpair()
        with ours, theirs, their_control:
            child = ChildProcess(0, Mock(), ours, await Link.open(control))
            their_control.sendall(line_of("hello") + line_of("ready"))
            messages, takes = child.messages(), []
            await anext(messages)
            takes.append(child.takes_connections)
            child.tell("leave")
            await anext(messages)
            return [*takes, child.takes_connections]

    assert asyncio.run(test()) == [True, False]


def test_connections_that_no_process_takes_are_tried_again_together() -> None:
    async def test() -> int:
        full = Mock(takes_connections=True, silence=0, state="ready", load=0, given=0)
        full.give.return_value = False
        distributor = Distributor([])
        distributor._children = [full]
        with patch.object(asyncio.get_running_loop(), "call_later") as later:
            for _ in range(100):
                distributor._keep_or_hand_on(Mock(), was_answered=False)
        return int(later.call_count)

    assert asyncio.run(test()) == 1


def test_a_connection_that_no_process_took_before_the_end_holds_it_not_up() -> None:
    """A probe comes while all processes start, then SIGTERM; and only then one of them says that it is there."""

    async def test() -> None:
        listener, (ours, theirs) = socket.create_server(("127.0.0.1", 0)), socket.socketpair()
        with theirs, socket.create_connection(listener.getsockname()):
            distributor = Distributor([listener])
            distributor.close()
            distributor.add(late := Mock(takes_connections=False, connections=ours))
            ours.close()
            distributor.remove(late)
            distributor._waiting.pop()[0].close()

    asyncio.run(test())


def test_new_connections_go_to_processes_that_answer() -> None:
    late, busy = (
        Mock(state="ready", takes_connections=True, given=0, load=load, silence=0 if load else LATE_LOOKS)
        for load in (0, 5)
    )
    distributor = Distributor([])
    distributor._children = [late, busy]
    connection = Mock()
    assert distributor._hand_on(connection, was_answered=True)
    busy.give.assert_called_once_with(connection, True)
    late.give.assert_not_called()


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_connections_come_in_their_order_and_go_on_where_the_giver_stopped(
    channel: tuple[socket.socket, socket.socket],
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    for index, (client, served) in enumerate(pairs):
        client.sendall(b"sent before")
        with served:
            assert give_connection(channel[0], served.fileno(), was_answered=index == 1)
    for index, (client, _) in enumerate(pairs):
        found = take_connection(channel[1])
        assert found is not None
        with client, found[0] as taken:
            assert found[1] == (index == 1)
            assert taken.recv(100) == b"sent before"
            taken.sendall(b"%d" % index)
            assert client.recv(100) == b"%d" % index
            taken.close()
            assert client.recv(100) == b""
    with pytest.raises(BlockingIOError):
        take_connection(channel[1])


def test_the_end_comes_behind_the_last_connection(channel: tuple[socket.socket, socket.socket]) -> None:
    client, served = socket.socketpair()
    with client, served:
        assert give_connection(channel[0], served.fileno())
        channel[0].close()
        found = take_connection(channel[1])
        assert found is not None
        found[0].close()
        assert take_connection(channel[1]) is None


def test_nothing_is_given_to_who_takes_none(channel: tuple[socket.socket, socket.socket]) -> None:
    client, served = socket.socketpair()
    with client, served:
        given = 0
        while give_connection(channel[0], served.fileno()):
            given += 1
            assert given < 100_000, "a channel that is never full"
        channel[1].close()
        assert not give_connection(channel[0], served.fileno())


async def test_metrics_are_asked_for_and_none_come_of_who_is_gone() -> None:
    ours, theirs = socket.socketpair()
    asking, asked = await Link.open(ours), await Link.open(theirs)
    heard, said = asked.messages(), asyncio.ensure_future(anext(asking.messages()))
    first = asyncio.gather(asking.ask_metrics(), asking.ask_metrics())
    assert await anext(heard) == {"kind": "scrape"}
    asked.send("snapshot", metrics=[{"name": "seen"}])
    assert list(await first) == [[{"name": "seen"}]] * 2
    assert (await said)["kind"] == "snapshot"
    second = asyncio.create_task(asking.ask_metrics())
    await anext(heard)
    await asked.finish()
    assert [message async for message in asking.messages()] == []
    assert await second is None
    await asking.finish()
