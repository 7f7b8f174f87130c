"""A Prometheus of one's own beside running services, and its HTTP interface; needs Debian's package `prometheus`."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.load import Address
from benchmarks.lib.server import free_port, started

RULES = Path(__file__).parents[1] / "prometheus"
INTERVAL = "1s"  # between two scrapes: a demonstration is minutes long, not days


class NoPrometheus(CannotMeasure):
    """The program `prometheus` is not installed."""


class Series(NamedTuple):
    """One line: its labels, and its values by time in seconds since 1970."""

    labels: Mapping[str, str]
    times: Sequence[float]
    values: Sequence[float]

    @property
    def is_finite(self) -> bool:
        """Whether it has a value that can be drawn."""
        return any(math.isfinite(value) for value in self.values)


class Prometheus:
    """What a running Prometheus answers."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def query(self, expression: str, at: float) -> list[Series]:
        """Values at one moment.

        Raises:
            httpx.HTTPStatusError: Prometheus refuses the expression; the message has its words.
        """
        return self._series("query", query=expression, time=at)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Values over time; raises as `query` does."""
        return self._series("query_range", query=expression, start=start, end=end, step=step)

    def exemplars(self, expression: str, start: float, end: float) -> list[Mapping[str, str]]:
        """Labels of the exemplars of an expression's series."""
        found: Any = self._get("query_exemplars", query=expression, start=start, end=end)
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its `health` and `lastError`."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _series(self, path: str, **parameters: Any) -> list[Series]:
        found = []
        for one in self._get(path, **parameters)["result"]:
            times, values = zip(*one.get("values", [one.get("value")]), strict=True)
            found.append(Series(one["metric"], times, [float(value) for value in values]))
        return found

    def _get(self, path: str, **parameters: Any) -> Any:
        answer = self._client.get(f"/api/v1/{path}", params=parameters)
        if answer.is_error:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        return answer.json()["data"]


@contextmanager
def scraping(services: Sequence[Address], folder: Path, *, patient: bool = True) -> Iterator[Prometheus]:
    """Runs a Prometheus that scrapes these services each second and knows our rules, until the block ends.

    Its configuration and data stay in the folder. Alerts fire at once unless it is `patient`.

    Raises:
        NoPrometheus: it is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise NoPrometheus("prometheus is not installed (Debian package prometheus)")
    config = folder / "prometheus.yml"
    targets = [f"{service.host}:{service.port}" for service in services]
    configuration = {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(path.resolve()) for path in _hasty_rules(folder, patient)],  # else below the file's folder
        "scrape_configs": [{"job_name": "polyhead", "static_configs": [{"targets": targets}]}],
    }
    config.write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    url = f"http://127.0.0.1:{port}"
    with started(command, port, "/-/ready", {}), httpx.Client(base_url=url, timeout=30) as client:
        yield Prometheus(client)


def _hasty_rules(folder: Path, patient: bool) -> Iterator[Path]:
    """Our rule files, every group evaluated as often as all else: some have minutes between two evaluations."""
    for name in ("rules.yaml", "alerts.yaml"):
        document = yaml.safe_load((RULES / name).read_text())
        for group in document["groups"]:
            group.pop("interval", None)
            for rule in () if patient else group["rules"]:
                rule.pop("for", None)
        path = folder / name
        path.write_text(yaml.safe_dump(document))
        yield path
