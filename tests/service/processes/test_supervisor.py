"""Several real processes behind one port, with a fake backend: who answers, who is replaced, what is lost."""

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from service.observability.snapshots import PAGES_A_SECOND
from tests.service.process import ServerProcess, fake_server, read_sample, wait_until

pytestmark = pytest.mark.alone  # processes start, die and are replaced within limits of seconds

BODY = json.dumps({"inputs": "cat"})
JSON = {"content-type": "application/json"}


def two_processes(artifact: Path, *flags: str, **environment: str) -> ServerProcess:
    return fake_server(artifact, "--processes", "2", *flags, **environment)


@pytest.fixture(scope="module")
def may_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file without which no new process of `pair` becomes ready."""
    made = tmp_path_factory.mktemp("pair") / "may-load"
    made.touch()
    return made


@pytest.fixture(scope="module")
def pair(fake_artifact: Path, may_load: Path) -> Iterator[ServerProcess]:
    """Two processes, for tests that leave two behind."""
    with two_processes(fake_artifact, "--admin-port", "0", FAKE_LOAD_UNTIL=str(may_load)).wait_until_ready() as server:
        yield server
        assert server.stop() == 0
        assert server.records(), "every line is JSON"


def scrape(server: ServerProcess) -> str:
    """The metrics, asked for over a connection that is closed again, and so seldom that the page is a new one."""
    time.sleep(1 / PAGES_A_SECOND)
    with closing(Client(server.admin_address)) as client:
        client.request("GET", "/metrics")
        return client.getresponse().read().decode()


def pids(server: ServerProcess) -> dict[int, int]:
    """The newest process id of each place, from the log."""
    started = [record for record in server.records() if re.fullmatch(r"process \d+ started", record["message"])]
    return {int(record["message"].split()[1]): record["pid"] for record in started}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def is_unready(server: ServerProcess) -> bool:
    """Whether `/readyz` says so. What was handed to a process that is dying is reset, and asked again."""
    try:
        return server.request("GET", "/readyz")[0] == 503
    except OSError:
        return False


class Client(http.client.HTTPConnection):
    """A connection that stays; what the service does to it is not mended."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(*address, timeout=60)
        self.connect()
        self.first = self.sock

    def encode(self, request_id: str = "any") -> int:
        self.request("POST", "/encode", BODY, {**JSON, "x-request-id": request_id})
        answer = self.getresponse()
        answer.read()
        return answer.status

    @property
    def is_the_same(self) -> bool:
        return self.sock is self.first and self.first is not None


def clients(server: ServerProcess, stack: ExitStack, count: int) -> list[Client]:
    return [stack.enter_context(closing(Client(server.address))) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 4, 7])
def test_connections_that_stay_are_shared_evenly(pair: ServerProcess, count: int) -> None:
    with ExitStack() as stack:
        for number, client in enumerate(clients(pair, stack, count)):
            assert client.encode(f"share-{count}-{number}") == 200
        pair.wait_for_line(f"share-{count}-{count - 1}")
        wait_until(lambda: pair.log.count(f"share-{count}-") == count)
        lines = [record for record in pair.records() if record.get("request_id", "").startswith(f"share-{count}-")]
        shares = Counter(record["process"] for record in lines)
        assert sorted(shares.values()) == [count // 2, count - count // 2]


def test_metrics_are_those_of_all_whoever_is_asked(pair: ServerProcess) -> None:
    with ExitStack() as stack:
        before = read_sample(scrape(pair), "polyhead_texts_total")
        asked = clients(pair, stack, 5)
        for number in range(23):
            assert asked[number % 5].encode() == 200
        pages = [scrape(pair) for _ in range(4)]
        assert [read_sample(page, "polyhead_texts_total") - before for page in pages] == [23] * 4
        expected = {"processes": 2, "workers": 2, "ready": 1, "process_restarts_total": 0, "intra_op_threads": 1}
        assert {name: read_sample(pages[0], f"polyhead_{name}") for name in expected} == expected
        count = 'polyhead_request_duration_seconds_count{method="POST",route="/encode",status="200"}'
        assert read_sample(pages[0], count) == read_sample(pages[0], "polyhead_texts_total")


def test_a_killed_process_loses_at_most_what_it_held(pair: ServerProcess, may_load: Path) -> None:
    with ExitStack() as stack:
        asked = clients(pair, stack, 6)
        assert [client.encode(f"who-{number}") for number, client in enumerate(asked)] == [200] * 6
        total = read_sample(scrape(pair), "polyhead_texts_total")
        wait_until(lambda: pair.log.count("who-") == 6)
        holders = {record["request_id"]: record["process"] for record in pair.records() if "request_id" in record}
        may_load.unlink()
        victim = pids(pair)[0]
        os.kill(victim, signal.SIGKILL)
        stack.callback(may_load.touch)  # a child that loads forever would outlive the tests
        wait_until(lambda: is_unready(pair))
        for number, client in enumerate(asked):
            if holders[f"who-{number}"] == 0:
                with pytest.raises((http.client.HTTPException, OSError)):
                    client.encode()
                client.close()
            assert client.encode() == 200, "the others serve on, and whoever comes again is served by them"
        assert pair.request("GET", "/healthz")[0] == 200
        assert read_sample(scrape(pair), "polyhead_ready") == 0
        may_load.touch()
        wait_until(lambda: pair.request("GET", "/readyz")[0] == 200)
        page = scrape(pair)
        assert read_sample(page, "polyhead_texts_total") == total + 6
        assert read_sample(page, "polyhead_process_restarts_total") == 1
        assert pids(pair)[0] != victim


class Load:
    """Clients that ask without a pause, each over the connection that it has from the start."""

    def __init__(self, server: ServerProcess, stack: ExitStack, count: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.clients = clients(server, stack, count)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(client,)) for client in self.clients]
        for thread in self._threads:
            thread.start()
        stack.callback(self.end)  # also of a test that fails: the next ones want the machine for themselves

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, client: Client) -> None:
        while not self._is_over.is_set():
            try:
                status = client.encode()
            except (OSError, http.client.HTTPException):
                status = 0
            self.statuses[status] += 1


def replace_all(server: ServerProcess) -> None:
    server.signal(signal.SIGHUP)


def replace_one(server: ServerProcess) -> None:
    os.kill(pids(server)[1], signal.SIGTERM)


@pytest.mark.parametrize(("event", "replaced"), [(replace_all, {0, 1}), (replace_one, {1})])
def test_replacing_processes_loses_nothing(
    pair: ServerProcess, event: Callable[[ServerProcess], None], replaced: set[int]
) -> None:
    total, restarts = "polyhead_texts_total", "polyhead_process_restarts_total"
    with ExitStack() as stack:
        before, first_page = pids(pair), scrape(pair)
        idle = clients(pair, stack, 3)
        assert [client.encode() for client in idle] == [200] * 3
        load = Load(pair, stack, 4)
        event(pair)
        for place in replaced:
            wait_until(partial(is_gone, before[place]))
            assert pair.request("GET", "/readyz")[0] == 200
        load.end()
        assert [client.encode() for client in idle] == [200] * 3
        assert set(load.statuses) == {200}
        assert all(client.is_the_same for client in (*idle, *load.clients))
        assert {place for place, pid in pids(pair).items() if pid != before[place]} == replaced
        page = scrape(pair)
        assert read_sample(page, total) - read_sample(first_page, total) == load.statuses.total() + 6
        assert read_sample(page, restarts) == read_sample(first_page, restarts)


def test_an_idle_connection_is_kept_as_long_by_the_process_that_it_is_handed_to(fake_artifact: Path) -> None:
    with two_processes(fake_artifact, "--receive-timeout", "1").wait_until_ready() as server, ExitStack() as stack:
        before, (idle,) = pids(server), clients(server, stack, 1)
        assert idle.encode() == 200
        replace_all(server)
        wait_until(lambda: all(map(is_gone, before.values())))
        time.sleep(2.5)
        assert idle.encode() == 200
        assert idle.is_the_same


def test_running_requests_are_answered_before_the_end(fake_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with two_processes(fake_artifact, "--uds", str(path), FAKE_RUN_SECONDS="0.5") as server:
        server.wait_for_line(f"listening on unix:{path}")
        answers: list[bytes] = []
        asked = [threading.Thread(target=lambda: answers.append(ask(path, "POST", "/encode", BODY))) for _ in range(4)]
        for thread in asked:
            thread.start()
        wait_until(lambda: b"polyhead_requests_in_flight 5.0" in ask(path, "GET", "/metrics"))
        assert server.stop() == 0
        for thread in asked:
            thread.join()
        assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 4


def ask(path: Path, method: str, target: str, body: str = "") -> bytes:
    """A whole answer over a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        head = f"{method} {target} HTTP/1.1\r\nHost: any\r\nConnection: close\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_probes_tell_draining_and_a_second_signal_ends_all_at_once(fake_artifact: Path) -> None:
    with two_processes(fake_artifact, "--drain-delay", "60").wait_until_ready() as server:
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503)
        assert server.request("GET", "/healthz")[0] == 200
        status, headers, _ = server.request("POST", "/encode", {"inputs": "cat"})
        assert (status, headers["connection"]) == (200, "close")
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        assert all(is_gone(pid) for pid in pids(server).values())


def test_ctrl_c_and_a_lost_terminal_are_the_parent_s_even_while_processes_import(fake_artifact: Path) -> None:
    with two_processes(fake_artifact) as server:
        server.wait_for_line("process 1 started")
        for pid in pids(server).values():
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGHUP)
        server.wait_until_ready()
        server.signal(signal.SIGINT)
        assert server.wait() == 0


@pytest.mark.parametrize("is_loading", [False, True])
def test_processes_whose_parent_is_killed_end(fake_artifact: Path, tmp_path: Path, is_loading: bool) -> None:
    until = {"FAKE_LOAD_UNTIL": str(tmp_path / "never")} if is_loading else {}
    with two_processes(fake_artifact, **until) as server:
        server.wait_for_line("process 1 started") if is_loading else server.wait_until_ready()
        wait_until(lambda: not is_loading or server.request("GET", "/healthz")[0] == 200)
        server.signal(signal.SIGKILL)
        wait_until(lambda: all(is_gone(pid) for pid in pids(server).values()))


def test_a_model_that_does_not_load_ends_the_service_at_once(fake_artifact: Path) -> None:
    with two_processes(fake_artifact, FAKE_LOAD_ERROR="the graph is\nbroken") as server:
        assert server.wait() == 1
        assert f"python -m service: cannot load {fake_artifact}: the graph is broken" in server.lines
        assert "a process ended before all were ready: the service ends" in server.log


def test_the_log_says_what_ended_a_process_that_loads(fake_artifact: Path, tmp_path: Path) -> None:
    with two_processes(fake_artifact, FAKE_LOAD_UNTIL=str(tmp_path / "never")) as server:
        server.wait_for_line("process 1 started")
        os.kill(pids(server)[1], signal.SIGKILL)
        assert server.wait() == 1
        codes = [record["code"] for record in server.records() if record["message"] == "process 1 ended"]
        assert codes == [-signal.SIGKILL]


@pytest.mark.slow
def test_the_service_ends_when_processes_keep_dying(fake_artifact: Path, tmp_path: Path) -> None:
    may_load = tmp_path / "loads-as-long-as-this-is-here"
    may_load.touch()
    with two_processes(fake_artifact, FAKE_LOAD_WHILE=str(may_load)).wait_until_ready() as server:
        may_load.unlink()
        os.kill(pids(server)[1], signal.SIGKILL)
        assert server.wait(180) == 1, "eight starts, with 13 seconds of pauses between them"
        assert "processes keep dying: the service ends" in server.log
        assert server.log.count('"process 1 ended"') > 2
