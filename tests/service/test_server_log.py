"""What the process writes to its log, and what becomes of it when no one reads."""

import signal
from pathlib import Path

from tests.service.process import fake_server, wait_until

CANARY = "xylophonist-4711"


def test_every_line_of_the_log_is_json_and_none_holds_a_text(fake_artifact: Path) -> None:
    with fake_server(fake_artifact, "--log-level", "debug", POLYHEAD_LOGLEVEL="debug").wait_until_ready() as server:
        server.request("POST", "/encode", {"inputs": CANARY}, x_request_id="known-1")
        server.request("POST", "/encode", {"inputs": [CANARY, 1]})
        server.request("POST", f"/{CANARY}", {"inputs": CANARY})
        server.request("GET", f"/info?text={CANARY}")
        server.request("POST", "/tokenize", {"inputs": [CANARY]}, x_request_id=CANARY + " with a space")
        metrics = server.request("GET", "/metrics")[2]
        with server.connect() as connection:
            connection.sendall(f"{CANARY} nonsense\r\n\r\n".encode())
            connection.recv(1000)
        assert server.stop() == 0
        assert CANARY not in server.log
        assert CANARY.encode() not in metrics
        assert "no setting is called POLYHEAD_LOGLEVEL; did you mean POLYHEAD_LOG_LEVEL?" in server.log
        messages = {record["message"].split(" ")[0]: record for record in server.records()}
        assert messages["starting"]["settings"]["log_level"] == "debug"
        found = {name: messages["model"][name] for name in ("model", "precision", "workers")}
        assert found == {"model": "tests/fake", "precision": "fp32", "workers": 1}
        lines = [record for record in server.records() if record["logger"] == "service.request"]
        assert {"time", "level", "request_id", "route", "method", "status", "duration_s"} <= set(lines[0])
        assert lines[0]["request_id"] == "known-1"
        assert {key: lines[0][key] for key in ("status", "texts", "tokens", "truncated")} == {
            "status": 200,
            "texts": 1,
            "tokens": 5,
            "truncated": 0,
        }
        assert [line["route"] for line in lines] == [
            "/encode",
            "/encode",
            "unmatched",
            "/info",
            "/tokenize",
            "/metrics",
        ]


def test_a_log_that_nobody_reads_any_more_stops_nothing(fake_artifact: Path) -> None:
    with fake_server(fake_artifact).wait_until_ready() as server:
        server.may_read.clear()
        for _ in range(400):  # lines of more bytes than a pipe takes
            assert server.request("GET", "/info")[0] == 200
        server.may_read.set()
        wait_until(lambda: server.log.count('"route":"/info"') == 400)
        server.may_read.clear()
        for _ in range(400):
            assert server.request("GET", "/info")[0] == 200
        server.signal(signal.SIGTERM)
        wait_until(lambda: not server.is_running())
        assert server.wait() == 0
