"""Addresses that can be listened on."""

import socket
from pathlib import Path

import pytest

from service.machine.listener import StartFailure, address_of, bind, bind_unix

INTERFACES = Path("/proc/net/if_inet6")  # address, index, length, scope, flags, name
LINK_SCOPE = "20"


def test_an_address_of_one_link_is_listened_on() -> None:
    rows = [line.split() for line in INTERFACES.read_text().splitlines()] if INTERFACES.exists() else []
    found = next(((row[0], row[5]) for row in rows if row[3] == LINK_SCOPE), None)
    if found is None:
        pytest.skip("no interface has a link-local address")
    digits, name = found
    address = ":".join(digits[start : start + 4] for start in range(0, 32, 4))
    with bind(f"{address}%{name}", 0) as listener:
        assert address_of(listener).startswith("http://[fe80:")


@pytest.mark.parametrize(
    ("host", "reached"),
    [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("0.0.0.0", ["127.0.0.1"])],  # noqa: S104 - what is tested
)
def test_every_address_is_both_families_where_ipv6_is_asked_for(host: str, reached: list[str]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6, or keeps the families apart")
    with bind(host, 0) as listener:
        port = listener.getsockname()[1]
        assert [address for address in ("127.0.0.1", "::1") if is_reached(address, port)] == reached


def is_reached(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_unix_socket_replaces_the_file_of_one_that_is_gone_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    bind_unix(path).close()  # a process that was killed leaves its file
    with bind_unix(path) as listener:
        assert address_of(listener) == f"unix:{path}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
        with pytest.raises(StartFailure, match=f"cannot listen on {path}: Address already in use; .* another --uds"):
            bind_unix(path)
    path.unlink()
    path.write_text("a file of somebody's")
    with pytest.raises(StartFailure, match="Address already in use"):
        bind_unix(path)
    assert path.read_text() == "a file of somebody's"
    with pytest.raises(StartFailure, match="No such file or directory"):
        bind_unix(tmp_path / "nowhere" / "socket")
