"""`polyhead tune`: which precision, engine and use of this machine's cores suit a model, measured over HTTP.

A server of each form and each way to use the cores runs as it would be served, and answers requests of one text of
natural length, one at a time and many at once.
"""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import numpy as np
import typer
from tokenizers import Tokenizer

from export.errors import SourceError
from model.artifact import OPENVINO, TOKENIZER, Artifact, Manifest
from model.processor import BF16_INSTRUCTIONS, processor_name, vector_instructions
from polyhead.models import (
    DEFAULT_SAID,
    TWICE,
    SameAsFlag,
    Tuned,
    Wanted,
    default_artifact,
    exported,
    is_artifact,
    keep_tuned,
    name_to_export,
)
from polyhead.output import OutputError, say, write
from service.machine import module_command, usable_cores
from service.settings import BATCH_TOKENS

Aim = Literal["throughput", "latency"]
TEXTS = 512
BUSY_CLIENT = 0.8  # of a core: above it, a layout's figure may be the client's
NOISE = 0.03  # two runs of one layout differ by as much: among those so near, the one with fewest processes is taken
READY = "listening on "
HEAD = "POST /encode HTTP/1.1\r\nHost: tune\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
# What would keep the client out, or answer something else than the model's speed.
NOT_MEASURED = ("UDS", "ADMIN_PORT", "API_KEYS", "API_KEYS_FILE", "ALLOWED_HOSTS", "TRACE_ENDPOINT", "LOG_LEVEL")
CONNECTIONS = 64  # requests under way while throughput is measured: enough that batches fill
LATENCY_SHARE = 0.4  # of a layout's seconds, for requests that come one at a time
WARM_UP_SHARE = 0.1
# Lengths of English sentences and short paragraphs in tokens: log-normal, 33 on average, a tail to several hundred.
MEDIAN_TOKENS, LENGTH_SPREAD = 25.0, 0.75


class NotMeasured(OutputError):
    """The server ended too early, or answered something else than 200; the message says what it said."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A use of the cores, and the size of a batch."""

    processes: int  # that serve, each with a model of its own
    workers: int  # threads of each process that run the model
    intra_op_threads: int  # inside one run
    max_batch_tokens: int | None = None  # padded; None for what the server has otherwise

    def __str__(self) -> str:
        """For people."""
        cores = f"processes {self.processes}, workers {self.workers}, threads {self.intra_op_threads}"
        return cores if self.max_batch_tokens is None else f"{cores}, batches of {self.max_batch_tokens} tokens"

    @property
    def variables(self) -> dict[str, str]:
        """The settings that make it, as environment variables."""
        return {f"POLYHEAD_{name.upper()}": str(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Rates:
    """Answers in a time."""

    texts_per_second: float
    tokens_per_second: float
    seconds: Sequence[float]  # of each request
    client_share: float  # of a core; near 1 if the client held up

    def latency(self, share: float) -> float:
        """Seconds within which this share of the requests was answered."""
        return float(np.quantile(self.seconds, share))


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a form of a model and a layout gave."""

    artifact: Path
    layout: Layout
    alone: Rates  # requests of one text one at a time
    together: Rates  # many at once
    memory: float | None = None  # megabytes of all processes then, shared ones counted once, if the system says


Text = tuple[bytes, int]
"""A request, and the tokens that its text was made of."""


def command(
    context: typer.Context,
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL", help=f"artifacts, checkpoints' folders or Hugging Face ids {DEFAULT_SAID}"),
    ] = None,
    *,
    model: SameAsFlag = None,
    seconds: Annotated[float, typer.Option(min=0, help="time for each way, besides its start")] = 6.0,
    cores: Annotated[
        int | None, typer.Option(min=1, help="cores to share out [default: those this process may use]")
    ] = None,
    max_batch_tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="TOKENS", help="also try batches of this size; may be given several times"),
    ] = None,
    aim: Annotated[
        Aim | None,
        typer.Option("--write", help="keep what is best at this for `polyhead serve MODEL` on this machine"),
    ] = None,
) -> None:
    """Measure which precision, engine and use of this machine's cores suit a model.

    A model that is no artifact is exported in every form that suits this processor: fp32 and int8, and with OpenVINO
    fp32 and bf16. Each way to share out the cores (processes, workers, threads) serves each form for some seconds, to a
    client on the same machine that sends texts of natural lengths over HTTP. The answer is a table with rate, waiting
    time, memory and fidelity, and commands to copy: for the most texts a second, and for the shortest wait of a text
    that comes alone. Sizes of batches are tried in the way that gave each form the most texts a second.
    """
    if cores is not None and cores > usable_cores():
        context.fail(f"--cores must be from 1 to {usable_cores()}, those this process may use")
    if models and model:
        context.fail(TWICE)
    tune(models or [model or default_artifact()], cores or usable_cores(), seconds, aim, max_batch_tokens or [])


def tune(models: Sequence[Path], cores: int, seconds: float, kept: Aim | None, batch_tokens: Sequence[int]) -> None:
    """Measures every form of the models in every way to share out the cores, for seconds each, and prints the table.

    Sizes of batches are tried in the fastest way of each form. What is best for each model at `kept`, if that is named,
    `polyhead serve` then takes.
    """
    found = {model: forms(model) for model in models}
    manifests = {artifact: Artifact.open(artifact).manifest for made in found.values() for artifact in made}
    total = len(manifests) * (len(layouts(cores)) + len(batch_tokens))
    steps = (f"{number} of {total}" for number in count(1))
    measured: list[Measurement] = []
    for artifact, manifest in manifests.items():
        texts = natural_texts(artifact / TOKENIZER, TEXTS, manifest.max_sequence_length)
        measured += measure_form(artifact, texts, seconds, cores, batch_tokens=batch_tokens, steps=steps)
    write(report(measured, manifests))
    for model, made in found.items() if kept else ():
        choose = most_throughput if kept == "throughput" else least_latency
        best = choose([one for one in measured if one.artifact in made])
        manifest = manifests[best.artifact]
        engine = OPENVINO if manifest.engine == OPENVINO else None
        keep_tuned(model, Tuned(processor_name(), cores, manifest.precision, engine, **asdict(best.layout)))
        where = f"{cores} core{'' if cores == 1 else 's'} of this machine"
        say(f"`polyhead serve {model}` takes these settings for {kept} from now on, if it may use {where}")


def forms(model: Path) -> list[Path]:
    """The artifacts to compare: the model itself if it is one, else its exports for this processor."""
    if is_artifact(model):
        return [model]
    named = name_to_export(model)
    wanted = [Wanted(named), Wanted(named, precision="int8")]
    if find_spec(OPENVINO) is not None:
        wanted.append(Wanted(named, engine=OPENVINO))
        if not BF16_INSTRUCTIONS.isdisjoint(vector_instructions()):
            wanted.append(Wanted(named, precision="bf16", engine=OPENVINO))
    made = []
    for form in wanted:
        try:
            made.append(exported(form))
        except SourceError as error:
            if form.precision == "fp32" and form.engine is None:
                raise
            say(f"polyhead tune: left out {' '.join(form.flags)}: {error}")
    return made


def measure_form(
    artifact: Path,
    texts: Sequence[Text],
    seconds: float,
    cores: int,
    *,
    batch_tokens: Sequence[int],
    steps: Iterator[str],
) -> list[Measurement]:
    """Measures every way to share out the cores, then the sizes of batches in the best of them; `steps` number both."""

    def measured(layout: Layout) -> Measurement:
        say(f"{next(steps)}: {artifact.name}, {layout}")
        return measure_layout(artifact, layout, texts, seconds, cores)

    found = [measured(layout) for layout in layouts(cores)]
    best = most_throughput(found).layout
    return found + [measured(replace(best, max_batch_tokens=tokens)) for tokens in batch_tokens]


def measure_layout(model: Path, layout: Layout, texts: Sequence[Text], seconds: float, cores: int) -> Measurement:
    """Serves one layout, and asks it for about this many seconds."""
    allowed = frozenset(sorted(os.sched_getaffinity(0))[:cores]) if hasattr(os, "sched_getaffinity") else None
    with served(model, layout, allowed) as (address, pid):
        alone, together = asyncio.run(measure(address, texts, seconds))
        return Measurement(model, layout, alone, together, held_memory(pid))


def held_memory(pid: int) -> float | None:
    """Megabytes that a process and its children hold, shared ones counted once; None if the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    own = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
    return own + sum(held_memory(int(child)) or 0.0 for child in children)


def report(measured: Sequence[Measurement], manifests: Mapping[Path, Manifest]) -> str:
    """The table, and the form and settings for either aim."""
    heads = ("processes", "workers", "threads", "batch", "texts/s", "tokens/s", "p50 ms", "p95 ms", "MB")
    lines = [f"{'precision':>9}{'engine':>12}" + "".join(f"{head:>10}" for head in heads) + "  fidelity"]
    for one in measured:
        manifest, layout = manifests[one.artifact], one.layout
        memory = "-" if one.memory is None else f"{one.memory:.0f}"
        lines.append(
            f"{manifest.precision:>9}{manifest.engine:>12}{layout.processes:>10}{layout.workers:>10}"
            f"{layout.intra_op_threads:>10}{layout.max_batch_tokens or '-':>10}"
            f"{one.together.texts_per_second:>10.0f}{one.together.tokens_per_second:>10.0f}"
            f"{1e3 * one.alone.latency(0.5):>10.2f}{1e3 * one.alone.latency(0.95):>10.2f}"
            f"{memory:>10}  {fidelity(manifest)}"
        )
    if any(one.layout.max_batch_tokens for one in measured):
        own = "{cpu}, on a GPU {cuda}".format_map(BATCH_TOKENS)
        lines.append(f"a dash under batch is the server's own size: POLYHEAD_MAX_BATCH_TOKENS, or {own}")
    for aim, best in (("throughput", most_throughput(measured)), ("latency", least_latency(measured))):
        settings = " ".join(f"{name}={value}" for name, value in best.layout.variables.items())
        lines.append(f"for {aim}: {settings} polyhead serve {best.artifact}")
    if max(one.together.client_share for one in measured) > BUSY_CLIENT:
        lines.append("the client had no core to spare: with several machines that send, more may come out")
    return "\n".join(lines) + "\n"


def fidelity(manifest: Manifest) -> str:
    """How near an artifact's answers are to float32's, as its export measured on held-out text."""
    parity = manifest.parity.get(OPENVINO, {}) if manifest.engine == OPENVINO else manifest.parity
    figures = parity.get("quality", {})
    return next((f"{name} {value:.4f}" for name, value in figures.items() if name != "texts"), "as float32")


def layouts(cores: int) -> list[Layout]:
    """Every way to give all cores to equal processes with equal workers, from the fewest processes on."""
    return [
        Layout(processes, cores // processes // threads, threads)
        for processes in _divisors(cores)
        for threads in _divisors(cores // processes)
    ]


def most_throughput(measured: Sequence[Measurement]) -> Measurement:
    """The most texts a second; if others are as good, the fewest processes, and the server's own size of batches."""
    best = max(one.together.texts_per_second for one in measured)
    return _simplest(one for one in measured if one.together.texts_per_second >= best * (1 - NOISE))


def least_latency(measured: Sequence[Measurement]) -> Measurement:
    """The shortest wait of a request that comes alone; likewise. It is a batch by itself, so the size has no part."""
    found = [one for one in measured if one.layout.max_batch_tokens is None]
    best = min(one.alone.latency(0.5) for one in found)
    return _simplest(one for one in found if one.alone.latency(0.5) <= best * (1 + NOISE))


def _simplest(found: Iterable[Measurement]) -> Measurement:
    return min(found, key=lambda it: (it.layout.processes, it.layout.intra_op_threads, it.layout.max_batch_tokens or 0))


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@contextmanager
def served(model: Path, layout: Layout, cores: frozenset[int] | None = None) -> Iterator[tuple[tuple[str, int], int]]:
    """Serves a model on a free port of this machine, whose address and process are given.

    Settings besides the layout are the environment's. `NotMeasured`: it did not become ready.
    """
    command = [*module_command("polyhead"), "serve", "--model", str(model), "--host", "127.0.0.1", "--port", "0"]
    left_out = {f"POLYHEAD_{name}" for name in NOT_MEASURED}
    # Measuring refuses nothing: however long the queue, its work must be done.
    patient = {"POLYHEAD_MAX_QUEUE_DELAY": "3600", "POLYHEAD_REQUEST_TIMEOUT": "3600"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    with subprocess.Popen(  # noqa: S603 - our own program
        command,
        env={**kept, **layout.variables, **patient},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if cores is None else partial(os.sched_setaffinity, 0, cores),  # noqa: PLW1509 - a system call
    ) as process:
        try:
            yield _address(process), process.pid
        finally:
            process.terminate()
            process.communicate()


def _address(process: "subprocess.Popen[str]") -> tuple[str, int]:
    last = "it ended without a word"
    for line in process.stderr or ():
        last = _message(line)
        if last.startswith(READY):
            where = urlsplit(last.removeprefix(READY))
            return where.hostname or "", where.port or 0
    raise NotMeasured(last)


def _message(line: str) -> str:
    """What a line of the log says; the line itself if it is none of the log's, as the last one of a failure."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["message"])
    return line.strip()


def natural_texts(tokenizer: Path, count: int, longest: int) -> list[Text]:
    """Texts of natural lengths, of at most `longest` tokens, from the words of a `tokenizer.json`, as requests."""
    read = Tokenizer.from_file(str(tokenizer))
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(np.log(MEDIAN_TOKENS), LENGTH_SPREAD, count).round().astype(int).clip(3, longest)
    drawn = [generator.integers(0, read.get_vocab_size(), length).tolist() for length in lengths]
    bodies = [json.dumps({"inputs": text}).encode() for text in read.decode_batch(drawn)]
    return [(HEAD.format(len(body)).encode() + body, len(ids)) for body, ids in zip(bodies, drawn, strict=True)]


async def measure(address: tuple[str, int], texts: Sequence[Text], seconds: float) -> tuple[Rates, Rates]:
    """What requests one at a time give, and many at once, in about this many seconds."""
    await _send(address, texts, seconds * WARM_UP_SHARE, CONNECTIONS)
    alone = await _send(address, texts, seconds * LATENCY_SHARE, 1)
    return alone, await _send(address, texts, seconds * (1 - LATENCY_SHARE - WARM_UP_SHARE), CONNECTIONS)


async def _send(address: tuple[str, int], texts: Sequence[Text], seconds: float, connections: int) -> Rates:
    started, busy = time.perf_counter(), time.process_time()
    ways = (_keep_asking(address, texts, place, started + seconds) for place in range(connections))
    done = [one for way in await asyncio.gather(*ways) for one in way]
    took, busy = time.perf_counter() - started, time.process_time() - busy
    tokens = sum(tokens for tokens, _ in done)
    return Rates(len(done) / took, tokens / took, [each for _, each in done], busy / took)


async def _keep_asking(
    address: tuple[str, int], texts: Sequence[Text], place: int, end: float
) -> list[tuple[int, float]]:
    """Sends one request after the other on a connection until the end; tokens and seconds of each."""
    reader, writer = await asyncio.open_connection(*address)
    done: list[tuple[int, float]] = []
    try:
        while not done or time.perf_counter() < end:
            # A prime: connections begin at texts far apart.
            request, tokens = texts[(place * 7919 + len(done)) % len(texts)]
            started = time.perf_counter()
            writer.write(request)
            await _answer(reader)
            done.append((tokens, time.perf_counter() - started))
    except (EOFError, ConnectionError) as error:
        raise NotMeasured("the server ended while it was measured, which happens where memory is short") from error
    finally:
        writer.close()
    return done


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    body = await reader.readexactly(length)
    status = int(head.split(" ", 2)[1])
    if status != HTTPStatus.OK:
        raise NotMeasured(f"a request of the measurement was answered {status}: {body[:300].decode(errors='replace')}")
