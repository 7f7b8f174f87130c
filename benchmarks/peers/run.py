"""What comparisons with other engines and servers share: texts, artifacts, and peers that may be missing."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from numpy.typing import ArrayLike

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.comparison import Way
from benchmarks.lib.engines import Engine, all_layouts
from benchmarks.lib.payloads import WrongAnswer, check_vectors
from benchmarks.lib.server import ServerFailed
from benchmarks.lib.texts import load_texts
from benchmarks.lib.tokens import TokenIds, standard_plans, tokenize
from benchmarks.lib.weights import add_weights_argument, checkpoint_folder
from benchmarks.peers.environments import Environment, NotInstallable
from benchmarks.peers.process import PeerFailed, PeerProcess, start_worker
from benchmarks.peers.worker import Task

SKIPPING = (NotInstallable, PeerFailed, ServerFailed, WrongAnswer)


@dataclass
class Peers:
    """Peers of one run: their environments, what was started, and who is missing.

    Attributes:
        cache: folder of the environments.
        stack: ends servers and workers with the run.
        skipped: why a peer is missing, by name.
        versions: of the peers that are there.
    """

    cache: Path
    stack: ExitStack
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def attempt(self, name: str, make: Callable[[], dict[str, Way]]) -> dict[str, Way]:
        """A peer's ways, or none and the reason why."""
        try:
            return make()
        except SKIPPING as error:
            self.skipped[name] = str(error)
            print(f"skipping {name}: {error}", flush=True)
            return {}

    def prepare(self, environment: Environment) -> Path:
        """A peer's interpreter; notes its versions."""
        python = environment.python(self.cache)
        self.versions[environment.name] = environment.versions(self.cache)
        return python


@dataclass
class Run:
    """What every peer of one run encodes.

    Attributes:
        arguments: the command line.
        engines: this project's artifacts; the first one's vectors are what all others are compared with.
        texts: what is encoded.
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
        self, python: Path, module: str, precisions: Sequence[str] = (), calibration: Sequence[TokenIds] = ()
    ) -> PeerProcess:
        """A peer without HTTP, in a process of its own."""
        cores, plans = len(os.sched_getaffinity(0)), standard_plans(self.rows)
        task = Task(str(self.weights), cores, self.texts, self.rows, plans, precisions, calibration)
        return self.peers.stack.enter_context(start_worker(python, module, task))


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
    texts = load_texts(arguments.corpus, arguments.texts, arguments.seed)
    rows = tokenize(engines[0].artifact, texts)
    with ExitStack() as stack:
        yield Run(arguments, engines, texts, rows, folders[0].path, Peers(arguments.cache, stack))


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Artifacts, their checkpoint, and where the peers' environments are kept."""
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts of one checkpoint, any precision")
    add_weights_argument(parser)
    parser.add_argument(
        "--cache", type=Path, default=Path("build/peers"), help="where the peers' environments are kept"
    )
