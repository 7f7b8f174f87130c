"""Rows about the processes: queue and saturation, and each instance."""

from deploy.observability.panels import Panel, make_lines, make_table
from deploy.observability.promql import ANSWERED, STEP, WORK, mean, quantile, rate, series, total
from service import metric_names as names

Row = tuple[str, list[Panel]]

# What prometheus-client says of every process.
CPU = "process_cpu_seconds_total"
MEMORY = "process_resident_memory_bytes"
STARTED = "process_start_time_seconds"
OPEN_FILES = "process_open_fds"
MOST_FILES = "process_max_fds"

EACH = ("instance",)


def saturation() -> Row:
    """What runs full first."""
    return "Queue and saturation", [
        make_lines(
            "Queue",
            "Tokens that wait for a worker, and how many may. A queue that stays up needs more cores or instances.",
            {"waiting": total(names.QUEUE_TOKENS), "limit": total(names.QUEUE_LIMIT_TOKENS)},
        ),
        make_lines(
            "Texts and requests",
            "Texts that wait for a worker; requests being answered.",
            {"texts waiting": total(names.QUEUE_TEXTS), "requests in flight": total(names.REQUESTS_IN_FLIGHT)},
        ),
        make_lines(
            "Longest wait",
            "Age of the oldest text in the queue, at each scrape.",
            {"{{instance}}": f"max by (instance) ({series(names.QUEUE_OLDEST_AGE)})"},
            unit="s",
        ),
        make_lines(
            "Workers busy",
            "Share of the workers' time that the model ran. At 100 % only more cores help.",
            {"{{instance}}": f"{rate(names.WORKER_BUSY, by=EACH)} / {total(names.WORKERS, by=EACH)}"},
            unit="percentunit",
        ),
        make_lines(
            "CPU",
            "Cores used, and the cores that affinity and cgroup leave.",
            {"used": rate(CPU), "limit": total(names.CPU_LIMIT)},
        ),
        make_lines(
            "Memory",
            "Resident memory of the largest instance, and the least limit of one.",
            {"used": f"max({series(MEMORY)})", "limit": f"min({series(names.MEMORY_LIMIT)})"},
            unit="bytes",
        ),
        make_lines(
            "Event loop lag",
            "How late timers fire: what holds the event loop up delays every request of the instance.",
            {"mean": mean(names.LOOP_LAG), "p99": quantile(0.99, names.LOOP_LAG)},
            unit="s",
        ),
        make_lines(
            "Open files",
            "File descriptors: connections mostly. The limit is the process's (ulimit -n).",
            {"open": f"max({series(OPEN_FILES)})", "limit": f"min({series(MOST_FILES)})"},
        ),
        make_lines(
            "Restarts",
            "Processes that started in the step before.",
            {"{{instance}}": f"changes({series(STARTED)}[{STEP}])"},
        ),
    ]


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
                "Memory": total(MEMORY, by=EACH),
                "Up for": f"time() - max by (instance) ({series(STARTED)})",
                "Loaded in": f"max by (instance) ({series(names.MODEL_LOAD)})",
                "Workers": total(names.WORKERS, by=EACH),
                "Threads a run": total(names.INTRA_OP_THREADS, by=EACH),
            },
            key="instance",
            units={"Requests": "reqps", "p95": "s", "Memory": "bytes", "Up for": "s", "Loaded in": "s"},
            hidden=("Serves", "Time", "__name__", "job", "source"),
        )
    ]
