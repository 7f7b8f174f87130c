import pytest

from benchmarks.nginx import configuration


def test_ports_are_those_that_were_given() -> None:
    text = configuration(9000, [9001, 9002], retry=True)
    assert "listen 127.0.0.1:9000;" in text
    assert [line.split()[1] for line in text.splitlines() if line.strip().startswith("server 127")] == [
        "127.0.0.1:9001",
        "127.0.0.1:9002",
    ]
    assert "800" not in text


@pytest.mark.parametrize("retry", [True, False])
def test_what_was_sent_is_sent_again_where_that_is_wanted(retry: bool) -> None:
    (line,) = (line for line in configuration(1, [2, 3], retry=retry).splitlines() if "proxy_next_upstream " in line)
    assert ("non_idempotent" in line) is retry
