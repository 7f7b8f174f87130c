"""Addresses that can be listened on."""

from pathlib import Path

import pytest

from service.machine.listener import address_of, bind

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
