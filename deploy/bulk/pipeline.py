"""The run: a corpus in shards, each read, split, filtered, encoded and written by one of Ray's actors, and its figures.

A shard is some of a file's chunks. Its actor reads the whole file, which takes a thousandth of what encoding takes, and
leaves out the chunks of others and those that are done. So no row ever passes through the driver or from node to node,
memory does not grow with the corpus, and an actor that begins again on another node goes on where the dead one was.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tqdm import tqdm

from deploy.bulk.corpus import SHARD_BYTES, Columns, Source, WrongCorpus, chunks
from deploy.bulk.encoder import TextEncoder
from deploy.bulk.output import Output

STDOUT, STDERR = 1, 2
INTERVAL = 0.5  # seconds between two looks
FAILURES_MOST = 1000  # ids that are kept; the count goes on
SHARDS_PER_WORKER = 4  # of all files together: the last to end is then a small part of the work

Load = Callable[..., TextEncoder]
"""Makes an encoder of an artifact's folder and the options of `TextEncoder.load`."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `of`-th chunk of a file, from `number` on."""

    source: Source
    number: int
    of: int


class EncodeShards:
    """What an actor does with a shard."""

    def __init__(self, load: Load, artifact: str, output: str, columns: Columns, tally: Any, **options: Any) -> None:
        self._encoder = load(Path(artifact), **options)
        self._output = Output(output)
        self._columns = columns
        self._tally = tally

    def __call__(self, batch: Mapping[str, Sequence[Shard]]) -> dict[str, list[str]]:
        """Names of the shard's chunks, or what is wrong with its file or the output; its figures go to the tally."""
        (shard,) = batch["shard"]
        try:
            told = dict(self._encode(shard))
        except WrongCorpus as error:
            return {"name": [""], "wrong": [str(error)]}
        except OSError as error:  # a disk that is full; raised, it would come out between Ray's own lines
            return {"name": [""], "wrong": [f"cannot encode {shard.source.uri} into {self._output.uri}: {error}"]}
        ray.get(list(told.values()))  # or the run could end, and its figures be read, before the tally has them
        return {"name": list(told), "wrong": [""] * len(told)}

    def _encode(self, shard: Shard) -> Iterator[tuple[str, ray.ObjectRef]]:
        for number, chunk in enumerate(chunks(shard.source, self._columns)):
            if number % shard.of != shard.number:
                continue
            counts, failed_ids = Counter(bytes=round(chunk.share * shard.source.size)), []
            failures = self._output.failures(chunk.name)
            if failures != 0:
                rows = chunk.rows if failures is None else self._output.read(chunk.name)
                before = len(rows) if failures is None else failures
                rows, failed = self._encoder.add_vectors(rows, self._columns.text)
                self._output.write(chunk.name, rows, failed=len(failed))
                without_text = rows[self._columns.text].null_count if failures is None else 0
                counts += Counter(encoded=before - without_text - len(failed), without_text=without_text)
                counts["failed"] = len(failed)
                failed_ids = rows[self._columns.id].take(pa.array(failed, pa.int64())).to_pylist()
            yield chunk.name, self._tally.add.remote(chunk.name, counts, failed_ids)


def encode_corpus(
    sources: Sequence[Source],
    columns: Columns,
    artifact: Path,
    output: str,
    *,
    tally: Any,
    workers: int,
    provider: str,
    load: Load,
    **options: Any,
) -> set[str]:
    """Encodes what is not done yet; the names of all chunks of the corpus.

    Every node has the artifact at this path, and sees the output's URI. At most `workers` actors, of a core or for the
    provider `cuda` of a GPU each, load an encoder with the options, and report to the tally.

    Raises:
        WrongCorpus: a file cannot be read to its end, or lacks a column, or the output cannot be written.
    """
    context = DataContext.get_current()
    context.enable_progress_bars = False  # ours is one line
    shards = make_shards(sources, workers)
    found = ray.data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards)).map_batches(
        EncodeShards,
        fn_constructor_args=(load, str(artifact), output, columns, tally),
        fn_constructor_kwargs={"provider": provider, **options},
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=workers),
        num_cpus=0 if provider == "cuda" else 1,
        num_gpus=1 if provider == "cuda" else 0,
    )
    names = set()
    for row in found.iter_rows():
        if row["wrong"]:
            raise WrongCorpus(row["wrong"])
        names.add(row["name"])
    return names


def make_shards(sources: Sequence[Source], workers: int) -> list[Shard]:
    """Every file whole if there are many, else in parts: each part's actor reads all of the file."""
    whole = sum(source.size for source in sources)
    shards = []
    for source in sources:
        wanted = SHARDS_PER_WORKER * workers * source.size // max(1, whole)
        of = max(1, min(wanted, source.size // SHARD_BYTES))
        shards += [Shard(source, number, of) for number in range(of)]
    return shards


@ray.remote(num_cpus=0, max_restarts=-1)
class Tally:
    """Adds up what the actors report, a chunk once: an actor that begins again may report one for the second time."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._failed_ids: list[Any] = []
        self._seen: set[str] = set()

    def add(self, name: str, counts: Counter[str], failed_ids: Sequence[Any]) -> None:
        """Takes in one chunk."""
        if name not in self._seen:
            self._seen.add(name)
            self._counts.update(counts)
            self._failed_ids += failed_ids[: FAILURES_MOST - len(self._failed_ids)]

    def read(self) -> tuple[Counter[str], list[Any]]:
        """Of all chunks so far: `bytes`, texts `encoded`, rows `without_text` and `failed`; ids of the first failed."""
        return self._counts, self._failed_ids


def start_tally() -> Any:
    """A tally on this process's own node: counts would be lost with any other."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Tally.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]  # Ray publishes no types


@contextmanager
def quiet(log: Path) -> Iterator[TextIO]:
    """Sends to a file all that is printed, Ray's own lines from C++ and other nodes, too; yields what was stderr."""
    kept = {number: os.dup(number) for number in (STDOUT, STDERR)}
    with log.open("ab") as file, os.fdopen(os.dup(STDERR), "w", encoding="utf-8") as terminal:
        _redirect(dict.fromkeys(kept, file.fileno()))
        try:
            yield terminal
        finally:
            _redirect(kept)
            for number in kept.values():
                os.close(number)


def _redirect(targets: Mapping[int, int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for number, target in targets.items():
        os.dup2(target, number)


@contextmanager
def shown(tally: Any, size: int, terminal: TextIO) -> Iterator[None]:
    """Draws one line until the block ends, only on a terminal; `size` is the corpus's, in bytes."""
    over, is_whole = threading.Event(), threading.Event()

    def draw() -> None:
        began = time.monotonic()
        with tqdm(total=size, desc="encoding", unit="B", unit_scale=True, file=terminal, disable=None) as bar:
            while not over.wait(INTERVAL):
                counts, _ = ray.get(tally.read.remote())
                bar.set_postfix_str(f"{counts['encoded'] / (time.monotonic() - began):.0f} texts/s", refresh=False)
                bar.update(min(counts["bytes"], size) - bar.n)
            if is_whole.is_set():
                bar.update(size - bar.n)  # since the last look

    thread = threading.Thread(target=draw, name="progress")
    thread.start()
    try:
        yield
        is_whole.set()
    finally:
        over.set()
        thread.join()
