"""The sizing of deploy/README.md follows from what docs/performance.md says was measured."""

import math
import re

from tests.deploy.tools import DEPLOY, ROOT

REPLICA_CORES = 2
SHARE = 0.7
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
SIZING = (DEPLOY / "README.md").read_text().partition("## Sizing")[2].partition("\n## ")[0]


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def _rates() -> dict[str, list[float]]:
    """Tokens a second of one core, by precision: with one text a request, and with 32."""
    rows = re.findall(r"^\| (fp32|int8) \|(.*)\|$", SIZING, re.MULTILINE)
    return {precision: _numbers(row) for precision, row in rows}


def test_a_core_gives_half_of_what_two_gave() -> None:
    measured = re.findall(r"^\| Polyhead (fp32|int8), HTTP,.*?\| ([\d,]+ / [\d,]+) \|", PERFORMANCE, re.MULTILINE)
    assert len(measured) == 2
    assert _rates() == {precision: [rate / 2 for rate in _numbers(rates)] for precision, rates in measured}


def test_the_example_is_reckoned_right() -> None:
    example = SIZING.partition("For example ")[2].partition("Larger models")[0]
    reckoned = re.findall(r"([\d,]+) / \(([\d,]+) x ([\d.]+)\) = ([\d.]+)\s+cores\D+(\d+) replicas[^\d]*(\d+)", example)
    assert len(reckoned) == 2
    for (precision, (rate, _)), found in zip(_rates().items(), reckoned, strict=True):
        tokens, of_a_core, share, cores, replicas, one_more = (float(number.replace(",", "")) for number in found)
        assert (of_a_core, share) == (rate, SHARE), precision
        assert round(tokens / (rate * SHARE), 1) == cores
        assert (math.ceil(cores / REPLICA_CORES), replicas + 1) == (replicas, one_more)
