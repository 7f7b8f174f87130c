"""Broken bytes on the raw socket: every answer is HTTP, none is a fault of ours, and the process is well afterwards."""

import json
import os
import re
from collections import Counter
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.fuzz.raw import broken_requests, send
from tests.service.process import ServerProcess

COUNT = int(os.environ.get("FUZZ_COUNT", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.alone
def test_broken_bytes(server: ServerProcess) -> None:
    statuses, before = Counter[int](), 0
    for number, message in enumerate(broken_requests(COUNT, SEED)):
        answer = send(server.address, message, patience=2.0)
        assert not answer or STATUS_LINE.match(answer), (message, answer[:200])
        found = [int(status) for status in STATUS_LINE.findall(answer)]
        faults = [status for status in found if status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED]
        assert not faults, (message, answer[:2000])  # 501 is for a transfer coding that is not spoken here
        statuses.update(found)
        if number == COUNT // 3:
            before = resident_bytes(server.pid)
    assert {200, 400} <= set(statuses), statuses
    assert resident_bytes(server.pid) - before < 64e6
    status, _, body = server.request("POST", "/encode", {"inputs": "still well"})
    assert (status, json.loads(body)["usage"]["tokens"]) == (200, 4)
    assert "The cat sat" not in server.log
