"""Rows about the processes: queue and saturation, and each instance."""

from deploy.observability.panels import Panel, Row, make_lines, make_table
from deploy.observability.promql import ANSWERED, EACH, EACH_LEGEND, STEP, WORK, mean, quantile, rate, series, total
from service.observability import metric_names as names

# What prometheus-client says of every process.
CPU = "process_cpu_seconds_total"
MEMORY = "process_resident_memory_bytes"
STARTED = "process_start_time_seconds"
OPEN_FILES = "process_open_fds"
MOST_FILES = "process_max_fds"


def limits() -> Panel:
    """What runs full first."""
    return make_lines(
        "Of each limit",
        "How much of each limit is in use, by the instance that is closest to it.",
        {
            "workers": f"max({rate(names.WORKER_BUSY, by=EACH)} / {total(names.WORKERS, by=EACH)})",
            "queue": _fullest(names.QUEUE_TOKENS, names.QUEUE_LIMIT_TOKENS),
            "memory": _fullest(MEMORY, names.MEMORY_LIMIT),
            "open files": _fullest(OPEN_FILES, MOST_FILES),
        },
        unit="percentunit",
    )


def saturation() -> Row:
    """What each instance does with what it has."""
    return "Queue and saturation", [
        make_lines(
            "Queue",
            "Tokens that wait for a worker. A queue that stays up needs more cores or instances.",
            {EACH_LEGEND: total(names.QUEUE_TOKENS, by=EACH)},
        ),
        make_lines(
            "Texts and requests",
            "Texts that wait for a worker; requests being answered.",
            {"texts waiting": total(names.QUEUE_TEXTS), "requests in flight": total(names.REQUESTS_IN_FLIGHT)},
        ),
        make_lines(
            "Longest wait",
            "Age of the oldest text in the queue, at each scrape.",
            {EACH_LEGEND: f"max by (instance, pod) ({series(names.QUEUE_OLDEST_AGE)})"},
            unit="s",
        ),
        make_lines(
            "Workers busy",
            "Share of the workers' time that the model ran. At 100 % only more cores help.",
            {EACH_LEGEND: f"{rate(names.WORKER_BUSY, by=EACH)} / {total(names.WORKERS, by=EACH)}"},
            unit="percentunit",
        ),
        make_lines(
            "CPU",
            "Cores used: a worker takes one, the event loop and the tokenizer some of another.",
            {EACH_LEGEND: rate(CPU, by=EACH)},
        ),
        make_lines("Memory", "Resident memory.", {EACH_LEGEND: total(MEMORY, by=EACH)}, unit="bytes"),
        make_lines(
            "Event loop lag",
            "How late timers fire: what holds the event loop up delays every request of the instance.",
            {"mean": mean(names.LOOP_LAG), "p99": quantile(0.99, names.LOOP_LAG)},
            unit="s",
        ),
        make_lines(
            "Restarts",
            "Processes that started in the step before.",
            {EACH_LEGEND: f"changes({series(STARTED)}[{STEP}])"},
        ),
        make_lines(
            "Processes",
            "Of instances with several: how many serve, and how many were started in place of ones that died.",
            {
                f"{EACH_LEGEND} serve": total(names.PROCESSES, by=EACH),
                f"{EACH_LEGEND} replaced": f"increase({series(names.PROCESS_RESTARTS)}[{STEP}])",
            },
        ),
    ]


def _fullest(used: str, limit: str) -> str:
    return f"max({series(used)} / {series(limit)})"


def instances() -> Row:
    """Each process, and the model it serves."""
    return "Instances", [
        make_table(
            "Instances",
            "One line an instance. All of them should serve the same model with the same precision.",
            {
                "Serves": series(names.MODEL_INFO),
                "Ready": total(names.READY, by=EACH),
                "Requests": rate(f"{names.REQUEST_DURATION}_count", WORK, by=EACH),
                "p95": quantile(0.95, names.REQUEST_DURATION, WORK, ANSWERED, by=EACH),
                "CPU": rate(CPU, by=EACH),
                "Cores": total(names.CPU_LIMIT, by=EACH),
                "Memory": total(MEMORY, by=EACH),
                "Up for": f"time() - max by (instance, pod) ({series(STARTED)})",
                "Loaded in": f"max by (instance, pod) ({series(names.MODEL_LOAD)})",
                "Workers": total(names.WORKERS, by=EACH),
                "Threads a run": total(names.INTRA_OP_THREADS, by=EACH),
            },
            key="instance",
            units={"Requests": "reqps", "p95": "s", "Memory": "bytes", "Up for": "s", "Loaded in": "s"},
            hidden=("Serves", "Time", "__name__", "job", "source"),
        )
    ]
