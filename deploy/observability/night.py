"""`python -m deploy.observability.night --model DIR --other DIR`: all that a night may bring, within an hour.

Two replicas of two processes each serve two models behind nginx, under steady load. In turn a process is killed, a bulk
run loses its node, a flood of requests comes, the replicas are replaced, and processes die again and again. Prometheus
scrapes both replicas each second and evaluates the rules as they stand. At the end stand three answers: how many
requests were lost, whether memory grew, and which alerts fired: each act has to bring about its own and no other. The
alert for slow answers has to fire in a flood if clients waited long enough for it, which depends on the machine. It
needs nginx, Debian's package `prometheus`, and the extra bulk.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.lib.command import parser_of, positive, program
from benchmarks.lib.comparison import encode_requests
from benchmarks.lib.load import Address, Request, Tally, poisson_schedule, run_open_loop
from benchmarks.lib.report import Table, emit, percentiles, slope
from benchmarks.lib.server import free_port
from benchmarks.lib.texts import load_texts, tokenize
from benchmarks.service.replicas import Replica, nginx, replace_all
from deploy.observability.objectives import BURNS, LATENCY, LATENCY_SECONDS
from deploy.observability.scrape import Prometheus, scraping
from model.artifact import Artifact
from service.observability.metrics import MEMORY_ANONYMOUS

WINDOW = 5.0  # seconds of one schedule of arrivals
CONNECTIONS = 512  # of each load, at most
KILLS = 4  # of processes, one after the other
POINTS = 400  # of a line in the picture
BULK_ROWS = 20_000
FOLDER = Path("build/night")  # for Prometheus's samples, which stay
PICTURE = Path("docs/pictures/night.svg")
FIRING = 'ALERTS{alertstate="firing",severity!="none"}'


class Act(NamedTuple):
    """A share of the night, with what brings it about at its beginning, and the alerts that have to fire then."""

    name: str
    share: float
    do: Callable[["Night"], object]
    alerts: frozenset[str] = frozenset()


@dataclass
class Night:
    """The running service, its answers so far, by load and window, and the code with which the bulk run ended."""

    address: Address  # of nginx
    replicas: Sequence[Replica]
    steady: Sequence[Request]  # for both models in turn
    flood: Sequence[Request]  # for the first model
    given: argparse.Namespace
    answers: dict[str, list[tuple[float, Tally]]] = field(default_factory=lambda: {"steady": [], "flood": []})
    bulk: int | None = None

    def seconds_of(self, name: str) -> float:
        """How long an act takes, at least."""
        return float(60 * self.given.minutes * next(act.share for act in ACTS if act.name == name))

    @contextmanager
    def offered(self, load: str, requests: Sequence[Request], rate: float) -> Iterator[None]:
        """Sends requests at random times until the block ends, however slow the answers are."""
        over, counted = threading.Event(), self.answers[load]

        def offer() -> None:
            while not over.is_set():
                began, schedule = time.time(), poisson_schedule(rate, WINDOW, len(counted))
                run = run_open_loop(self.address, requests, schedule, connections=CONNECTIONS)
                counted.append((began, run.due))

        thread = threading.Thread(target=offer, name=load)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def keep_killing(self) -> None:
        """Kills processes of the second replica."""
        for _ in range(KILLS):
            self.replicas[1].kill_child()
            time.sleep(self.seconds_of("processes keep dying") / (KILLS + 1))

    def run_bulk(self) -> None:
        """Runs a bulk run next to the service, and kills its node; every row has to be there once."""
        rows = ("--rows", str(BULK_ROWS), "--cores", "1")
        words = [sys.executable, "-m", "deploy.bulk.show", "--model", str(self.given.model), *rows]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:  # noqa: S603 - our own program
            try:
                self.bulk = process.wait()
            finally:
                process.terminate()  # it ends its Ray nodes

    def let_flood(self) -> None:
        """Sends the first model far more requests than it can answer."""
        with self.offered("flood", self.flood, self.given.flood):
            time.sleep(self.seconds_of("flood"))


ACTS = (
    Act("calm", 0.05, lambda _: None),
    Act("a process is killed", 0.05, lambda night: night.replicas[0].kill_child()),
    Act("a bulk run loses its node", 0.1, Night.run_bulk),
    Act("flood", 0.56, Night.let_flood, frozenset({"PolyheadShedding", "PolyheadQueueSaturated"})),
    Act("the replicas are replaced", 0.06, lambda night: replace_all(night.replicas)),
    Act("processes keep dying", 0.06, Night.keep_killing, frozenset({"PolyheadProcessRestarts"})),
    Act("calm again", 0.12, lambda _: None),
)
Times = dict[str, tuple[float, float]]


def live_through(night: Night) -> Times:
    """Every act in turn; when each began and ended."""
    times: Times = {}
    with tqdm(total=len(ACTS), desc="night", unit="act", disable=None) as bar:
        for act in ACTS:
            bar.set_postfix_str(act.name)
            began = time.time()
            act.do(night)
            time.sleep(max(0.0, night.seconds_of(act.name) - (time.time() - began)))
            times[act.name] = began, time.time()
            bar.update()
    return times


def describe_answers(night: Night, times: Times) -> Table:
    """Requests by act, as `count` has them."""
    table = Table("acts", "requests, by what happened")
    for name, (began, ended) in times.items():
        for load, counted in night.answers.items():
            tallies = [tally for at, tally in counted if began <= at < ended]
            if tallies:
                waits = percentiles([latency for tally in tallies for latency in tally.latencies])
                table.add(act=name, seconds=ended - began, load=load, **count(tallies), **waits)
    return table


def count(tallies: Sequence[Tally]) -> dict[str, int]:
    """A request is lost unless it is answered, or refused with 429 and Retry-After."""
    statuses = sum((tally.statuses for tally in tallies), Counter[int]())
    silent = sum(tally.refused - tally.with_retry_after for tally in tallies)
    refused = statuses[429] - silent
    sent = statuses.total()
    return {"sent": sent, "answered": statuses[200], "refused": refused, "lost": sent - statuses[200] - refused}


def required_alerts(night: Night, times: Times) -> dict[str, frozenset[str]]:
    """Alerts by act; the flood's include the alert for slow answers if enough were slow for its fastest burn."""
    required = {act.name: act.alerts for act in ACTS}
    began, ended = times["flood"]
    tallies = [tally for counted in night.answers.values() for at, tally in counted if began <= at < ended]
    waits = [wait for tally in tallies for wait in tally.latencies]
    slow = sum(wait > LATENCY_SECONDS["small"] for wait in waits)
    if slow > BURNS[0].factor * (1 - LATENCY) * len(waits):
        required["flood"] |= {"PolyheadLatencyBudgetBurn"}
    return required


def describe_alerts(prometheus: Prometheus, times: Times, required: Mapping[str, frozenset[str]]) -> Table:
    """Lists every alert that fired and every one that had to; the verdict is empty if it was right."""
    start, end = times[ACTS[0].name][0], times[ACTS[-1].name][1]
    table = Table("alerts", "alerts")
    missing = {(act, alert) for act, alerts in required.items() for alert in alerts}
    for series in prometheus.query_range(FIRING, start, end, 1):
        alert = series.labels["alertname"]
        act = next(name for name, (_, ended) in times.items() if series.times[0] <= ended)
        expected = [one for one, alerts in required.items() if alert in alerts and times[one][0] <= series.times[0]]
        missing -= {(one, alert) for one in expected}
        shown = [name for name in ("severity", "window", "model", "instance") if name in series.labels]
        table.add(
            alert=alert,
            labels=", ".join(f"{name} {series.labels[name]}" for name in shown),
            act=act,
            fired_s=series.times[0] - start,
            for_s=len(series.times),
            verdict="" if expected else "UNEXPECTED",
        )
    for act, alert in sorted(missing):
        table.add(alert=alert, act=act, verdict="MISSING")
    return table


def describe_memory(prometheus: Prometheus, times: Times) -> Table:
    """Memory of each replica over the two longest acts without a new process: at both ends, and its slope."""
    table = Table("memory", "anonymous memory, MB")
    for act in ("flood", "calm again"):
        for series in prometheus.query_range(MEMORY_ANONYMOUS, *times[act], 1):
            third = len(series.times) // 3  # by then the act's own load is in full swing
            at, megabytes = series.times[third:], [value / 1e6 for value in series.values[third:]]
            table.add(
                act=act,
                instance=series.labels["instance"],
                begin=megabytes[0],
                end=megabytes[-1],
                mb_per_hour=3600 * slope(at, megabytes),
            )
    return table


def draw(night: Night, prometheus: Prometheus, times: Times) -> None:
    """Answers a second, memory and firing alerts over time, with the acts."""
    start, end = times[ACTS[0].name][0], times[ACTS[-1].name][1]
    step = max(1.0, (end - start) / POINTS)

    def minutes(moments: Sequence[float]) -> list[float]:
        return [(moment - start) / 60 for moment in moments]

    figure = Figure(figsize=(9, 7), layout="constrained")
    rates, latency, memory, alerts = figure.subplots(4, 1, sharex=True)
    at = minutes([began for began, _ in night.answers["steady"]])
    tallies = [tally for _, tally in night.answers["steady"]]
    rates.plot(at, [tally.statuses[200] / WINDOW for tally in tallies], label="answered")
    rates.plot(at, [tally.statuses[429] / WINDOW for tally in tallies], label="refused with 429")
    rates.set_ylabel("steady load,\nrequests/s")
    rates.legend(frameon=False, loc="lower left")
    latency.plot(at, [percentiles(tally.latencies).get("p99_ms", float("nan")) for tally in tallies])
    latency.set(ylabel="p99, ms", yscale="log")
    for series in prometheus.query_range(MEMORY_ANONYMOUS, start, end, step):
        memory.plot(minutes(series.times), [value / 1e6 for value in series.values])
    memory.set(ylabel="memory, MB", ylim=(0, None))
    fired = prometheus.query_range(FIRING, start, end, step)
    rows = sorted({series.labels["alertname"] for series in fired})
    for series in fired:
        row = rows.index(series.labels["alertname"])
        alerts.plot(minutes(series.times), [row] * len(series.times), linewidth=4, color="#c4673a")
    for row, alert in enumerate(rows):
        alerts.text(0, row, alert.removeprefix("Polyhead"), va="center")
    alerts.set(ylabel="alerts that fire", xlabel="minutes", yticks=[], ylim=(-0.5, None))
    for name, begin in zip(times, minutes([began for began, _ in times.values()]), strict=True):
        for axis in (rates, latency, memory, alerts):
            axis.axvline(begin, color="#97a2ac", linewidth=0.6)
        rates.text(begin, 1.02, name, transform=rates.get_xaxis_transform(), rotation=15, fontsize=7)
    figure.savefig(PICTURE, metadata={"Date": None})


@contextmanager
def running(given: argparse.Namespace) -> Iterator[tuple[Night, Prometheus]]:
    """Starts replicas, nginx and Prometheus, until the block ends."""
    first, texts = Artifact.open(given.model), load_texts("short", 640)
    one = encode_requests(texts, tokenize(first, texts), 1, {"model": first.manifest.model})
    other = encode_requests(texts, tokenize(Artifact.open(given.other), texts), 1, {"model": "other"})
    admin = [free_port() for _ in range(2)]
    FOLDER.mkdir(parents=True, exist_ok=True)
    more = {"POLYHEAD_PROCESSES": "2", "POLYHEAD_MORE_MODELS": f"other={given.other.resolve()}"}
    with ExitStack() as stack:
        replicas = [Replica(given.model, 1.0, POLYHEAD_ADMIN_PORT=str(port), **more) for port in admin]
        for replica in replicas:
            replica.start()
            stack.callback(replica.stop)
        proxy = stack.enter_context(nginx([replica.port for replica in replicas], retry=True))
        places = [Address("127.0.0.1", port) for port in admin]
        prometheus = stack.enter_context(scraping(places, FOLDER))
        steady = [request for pair in zip(one, other, strict=True) for request in pair]
        yield Night(proxy.address, replicas, steady, one, given), prometheus


@program
def main() -> None:
    """Lives through the night, prints and draws it; exits with 1 if a request was lost or an alert was wrong."""
    parser = parser_of(__doc__, takes="an hour")
    parser.prog = "python -m deploy.observability.night"
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact of the first model")
    parser.add_argument("--other", type=Path, required=True, metavar="DIR", help="artifact of the second model")
    parser.add_argument("--minutes", type=positive, default=60.0, help="that the night takes")
    parser.add_argument("--rate", type=positive, default=20.0, help="requests a second, to both models in turn")
    parser.add_argument("--flood", type=positive, default=600.0, help="requests a second of the flood")
    given = parser.parse_args()
    with running(given) as (night, prometheus):
        with night.offered("steady", night.steady, given.rate):
            times = live_through(night)
        tables = [describe_answers(night, times), describe_alerts(prometheus, times, required_alerts(night, times)),
                  describe_memory(prometheus, times)]  # fmt: skip
        draw(night, prometheus, times)
    lost = sum(int(row["lost"]) for row in tables[0].rows)
    wrong = sum(bool(row["verdict"]) for row in tables[1].rows)
    figures = {"lost": lost, "wrong_alerts": wrong, "bulk_exit_code": night.bulk}
    emit("night", tables, minutes=given.minutes, rate=given.rate, **figures)
    print(json.dumps(figures))  # noqa: T201 - the verdict
    raise SystemExit(int(any(figures.values())))


if __name__ == "__main__":
    main()
