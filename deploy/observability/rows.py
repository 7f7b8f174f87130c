"""The dashboard's rows below the objectives: latency, traffic, models, batching, saturation, attention, instances."""

from grafana_foundation_sdk.models.common import StackingMode

from deploy.observability.overview import REQUESTS
from deploy.observability.panels import (
    ANSWERED,
    EACH,
    EACH_LEGEND,
    SHARE,
    STEP,
    WORK,
    Panel,
    buckets,
    make_heatmap,
    make_lines,
    make_table,
    mean,
    quantile,
    rate,
    series,
    total,
)
from service.observability import metrics as names

SPENT = f"{names.STAGE_DURATION}_sum"
PADDING = rate(names.PADDING_TOKENS)
MODEL = ("model",)
# What prometheus-client says of every process.
CPU = "process_cpu_seconds_total"
MEMORY = "process_resident_memory_bytes"
STARTED = "process_start_time_seconds"

ROWS: dict[str, list[Panel]] = {
    "Latency": [
        make_lines(
            "Latency",
            "Quantiles of POST requests answered 200, headers to end of answer. Points are exemplars.",
            {f"p{q}": quantile(q / 100, names.REQUEST_DURATION, WORK, ANSWERED) for q in (50, 90, 95, 99)},
            unit="s",
            exemplars=True,
        ),
        make_heatmap(
            "Latency, all of it",
            "POST requests answered 200, by how long they took: two humps are two kinds of requests.",
            buckets(names.REQUEST_DURATION, WORK, ANSWERED),
            unit="s",
        ),
        make_lines(
            "Latency by route",
            "95 % of the POST requests answered 200 took at most this long.",
            {"{{route}}": quantile(0.95, names.REQUEST_DURATION, WORK, ANSWERED, by=("route",))},
            unit="s",
        ),
        make_lines(
            "Where the time goes",
            "Share of each stage in what requests took. Mostly inference is healthy; mostly queue needs more cores.",
            {"{{stage}}": f"{rate(SPENT, by=('stage',))} / ignoring (stage) group_left () {rate(SPENT)}"},
            unit=SHARE,
            width=12,
            stacking=StackingMode.NORMAL,
        ),
        make_lines(
            "Stages",
            "95 % of the requests took at most this long for a stage.",
            {"{{stage}}": quantile(0.95, names.STAGE_DURATION, by=("stage",))},
            unit="s",
            width=12,
        ),
    ],
    "Traffic": [
        make_lines(
            "Requests by route",
            "A second, probes and scrapes included.",
            {"{{method}} {{route}}": f"{rate(REQUESTS, by=('method', 'route'))} > 0"},
            unit="reqps",
        ),
        make_lines(
            "Latency by size",
            "99 % of the answers took at most this long, by the tokens of their request.",
            {"{{size}}": quantile(0.99, names.ANSWER_DURATION, by=("size",))},
            unit="s",
        ),
        make_lines(
            "Refused requests",
            "A second, by the code in the error body. 429: overloaded, the queue's expected wait was too long; "
            "too_many_bytes_held, bodies or answers of all requests would take more than they may.",
            {
                "{{reason}}": f"{rate(names.REQUESTS_REJECTED, by=('reason',))} > 0",
                "client left": rate(names.CLIENT_DISCONNECTS),
            },
            unit="reqps",
        ),
        make_lines("Tokens", "Encoded a second, special tokens included.", {"tokens/s": rate(names.TOKENS)}),
        make_lines(
            "Texts",
            "Encoded a second, and how many of them were longer than the model takes and lost their end.",
            {"texts/s": rate(names.TEXTS), "truncated": rate(names.TRUNCATED_TEXTS)},
        ),
        make_heatmap("Length of texts", "Texts by their tokens, after truncation.", buckets(names.INPUT_TOKENS)),
    ],
    "Models": [
        make_lines(
            "Answers by model",
            "Requests answered 200, a second.",
            {"{{model}}": rate(f"{names.ANSWER_DURATION}_count", by=MODEL)},
            unit="reqps",
        ),
        make_lines(
            "Latency by model",
            "99 % of the answers took at most this long.",
            {"{{model}}": quantile(0.99, names.ANSWER_DURATION, by=MODEL)},
            unit="s",
        ),
        make_lines(
            "Load by model",
            "Workers that run each model, on average, and how many of its instances cannot answer.",
            {
                "{{model}}": rate(names.WORKER_BUSY, by=MODEL),
                "{{model}} not ready": f"sum by (model) (1 - {series(names.MODEL_READY)})",
            },
        ),
    ],
    "Batching and padding": [
        make_lines(
            "Texts a run",
            "How many texts share one run of the model.",
            {"mean": mean(names.BATCH_TEXTS), "p95": quantile(0.95, names.BATCH_TEXTS)},
        ),
        make_heatmap(
            "Tokens a run",
            "Runs of the model by their tokens, without padding.",
            buckets(names.BATCH_TOKENS),
        ),
        make_lines(
            "Padding",
            "Share of positions that were padding: of all, and of the worst runs. It costs in attention only.",
            {
                "of all positions": f"{PADDING} / ({PADDING} + {rate(f'{names.BATCH_TOKENS}_sum')})",
                "p95 of a run": quantile(0.95, names.BATCH_PADDING_RATIO),
            },
            unit=SHARE,
        ),
    ],
    "Queue and saturation": [
        make_lines(
            "Queue",
            "Tokens that wait for a worker, characters of long texts that wait for the tokenizer, and token vectors to "
            "explain. A queue that stays up needs more cores or instances.",
            {
                EACH_LEGEND: total(names.QUEUE_TOKENS, by=EACH),
                "characters to tokenise": total(names.TOKENIZER_QUEUE_CHARACTERS),
                "token vectors to explain": total(names.EXPLAIN_QUEUE_VECTORS),
            },
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
            "Share of the workers' time that models ran, as far as cores let them. At 100 % only more cores help.",
            {EACH_LEGEND: f"{rate(names.WORKER_BUSY, by=EACH)} / {total(names.BUSY_LIMIT, by=EACH)}"},
            unit=SHARE,
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
            "Of instances with several: how many serve, and how many were started instead of ones that died.",
            {
                f"{EACH_LEGEND} serve": total(names.PROCESSES, by=EACH),
                f"{EACH_LEGEND} replaced": f"increase({series(names.PROCESS_RESTARTS)}[{STEP}])",
            },
        ),
    ],
    "Attention": [
        make_lines(
            "Attention requests",
            "Answers with attention weights, a second.",
            {"requests/s": rate(names.ATTENTION_REQUESTS)},
            unit="reqps",
        ),
        make_lines(
            "Attention answered",
            "Bytes of weights a second, as float32.",
            {"bytes/s": rate(names.ATTENTION_BYTES)},
            unit="Bps",
        ),
        make_lines(
            "Size of an answer",
            "Average bytes of weights in an answer that has any; --max-attention-bytes bounds each.",
            {"mean": f"{rate(names.ATTENTION_BYTES)} / {rate(names.ATTENTION_REQUESTS)}"},
            unit="bytes",
        ),
    ],
    "Instances": [
        make_table(
            "Instances",
            "One line an instance. All of them should serve the same model with the same precision.",
            {
                "Serves": series(names.MODEL_INFO),
                "Ready": total(names.READY, by=EACH),
                "Requests": rate(REQUESTS, WORK, by=EACH),
                "p95": quantile(0.95, names.REQUEST_DURATION, WORK, ANSWERED, by=EACH),
                "CPU": rate(CPU, by=EACH),
                "Cores": total(names.CPU_LIMIT, by=EACH),
                "Memory": total(MEMORY, by=EACH),
                "Up for": f"time() - max by (instance, pod) ({series(STARTED)})",
                "Loaded in": f"max by (instance, pod) ({series(names.MODEL_LOAD)})",
                "Workers": total(names.WORKERS, by=EACH),
                "Threads a run": total(names.INTRA_OP_THREADS, by=EACH),
            },
            units={"Requests": "reqps", "p95": "s", "Memory": "bytes", "Up for": "s", "Loaded in": "s"},
            hidden=("Serves", "Time", "__name__", "job", "source"),
        )
    ],
}
