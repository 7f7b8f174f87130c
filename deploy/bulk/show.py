"""`python -m deploy.bulk.show --model DIR`: a run over generated rows whose node is killed halfway, and its figures.

A Ray head that computes nothing and one node run on this machine. When half of the rows are written, the node is
killed and another one begins. Then every row has to be there once, with its own vector. Memory is read all the time: if
it does not grow with the corpus, actors and driver hold as much at the end as at the beginning.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

# Ray reads these when it is imported.
os.environ |= {
    # Nodes and drivers know each other by the token.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a token of at least this many characters",
    # A node that is gone is missed within three seconds; one that is only slow has as long as Ray gives it by default.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "10",
}

from benchmarks.lib.report import Table
from benchmarks.lib.server import free_port
from benchmarks.lib.texts import load_texts
from deploy.bulk.__main__ import main as encode
from deploy.bulk.corpus import CHUNK_ROWS, EMBEDDING
from deploy.bulk.encoder import TextEncoder
from export.command import count
from service.inference.backend import Float32Array

NODE_ATTEMPTS = 5
FILE_ROWS = 500_000
DIMENSIONS = 8  # of the encoder that computes nothing
TOLERANCE = 1e-5


class NoNetwork(TextEncoder):
    """Computes nothing: a vector is the hash of its text, so a vector of another text is seen."""

    @classmethod
    def load(cls, directory: Path, **options: Any) -> "NoNetwork":  # noqa: ARG003 - it takes what an encoder takes
        """Reads no file."""
        made = cls.__new__(cls)
        made.dimensions = options["dimensions"] or DIMENSIONS
        return made

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """See `TextEncoder.encode`."""
        digests = b"".join(hashlib.shake_128(text.encode()).digest(self.dimensions) for text in texts)
        return np.frombuffer(digests, np.uint8).reshape(-1, self.dimensions).astype(np.float32)


@contextmanager
def node(*flags: str) -> Iterator[None]:
    """A Ray node on this machine, in a process group of its own, until the block ends.

    Ray gives its own processes some seconds to start, and ends if they need longer: then it is started again.
    """
    ray = Path(sys.executable).with_name("ray")
    words = [str(ray), "start", "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *flags]
    for _ in range(NODE_ATTEMPTS):
        with subprocess.Popen(  # noqa: S603 - Ray's
            words, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                if any(b"Ray runtime started" in line for line in process.stdout or ()):
                    yield
                    return
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    raise RuntimeError(f"no Ray node began in {NODE_ATTEMPTS} attempts: {' '.join(words)}")


class Cluster:
    """A head that computes nothing, and one node that does. Use it in a `with` block."""

    def __init__(self, cores: int) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._head = node("--head", "--num-cpus=0", f"--port={port}", "--include-dashboard=false")
        self._node = ExitStack()
        self._cores = cores

    def __enter__(self) -> "Cluster":
        self._head.__enter__()
        self.replace_node(self._cores)
        return self

    def replace_node(self, cores: int) -> None:
        """Kills the node, and starts another one."""
        self._node.close()
        self._node.enter_context(node("--address", self.address, f"--num-cpus={cores}"))

    def __exit__(self, *failure: object) -> None:
        self._node.close()
        self._head.__exit__(None, None, None)


def write_corpus(folder: Path, rows: int) -> None:
    """Parquet files of numbered rows; the texts of equal number are the same in every run."""
    texts = load_texts("short", CHUNK_ROWS)
    folder.mkdir()
    for start in range(0, rows, FILE_ROWS):
        ids = range(start, min(rows, start + FILE_ROWS))
        made = [f"{row}: {texts[row % CHUNK_ROWS]}" for row in ids]
        parquet.write_table(pa.table({"id": pa.array(ids, pa.int64()), "text": made}), folder / f"{start}.parquet")


class Watch:
    """Kills the node when half of the rows are written, and notes how much memory driver and actors hold."""

    def __init__(self, cluster: Cluster, output: Path, rows: int, cores: int) -> None:
        self.memory: dict[str, list[int]] = defaultdict(list)
        self.killed_after = 0
        self._cluster, self._output, self._rows, self._cores = cluster, output, rows, cores
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        half = max(1, self._rows // CHUNK_ROWS // 2)
        while not self._over.wait(0.25):
            self.memory["driver"].append(resident_bytes(os.getpid()))
            if actors := [resident_bytes(pid) for pid in actor_pids()]:
                self.memory["actor"].append(max(actors))
            if not self.killed_after and (done := sum(1 for _ in self._output.glob("*.parquet"))) >= half:
                self.killed_after = done
                self._cluster.replace_node(self._cores)

    def figures(self) -> dict[str, float]:
        """The most that each held in the first and in the last third of the run, in megabytes."""
        return {
            f"{who}_mb_{when}": max(part, default=0) / 1e6
            for who, seen in self.memory.items()
            for when, part in (("begin", seen[: len(seen) // 3]), ("end", seen[-(len(seen) // 3) :]))
        }


def actor_pids() -> Iterator[int]:
    """Processes of the actors that encode, as Ray names them."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if place.read_bytes().startswith(b"ray::") and b"EncodeShards" in place.read_bytes():
                yield int(place.parent.name)


def resident_bytes(pid: int) -> int:
    """Memory of a process; 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def check(output: Path, rows: int, encoder: TextEncoder, every: int) -> dict[str, int]:
    """How many rows are missing, there more than once, or have no vector or another text's, as every n-th shows."""
    seen, wrong = np.zeros(rows, np.int32), 0
    for path in output.glob("*.parquet"):
        found = parquet.read_table(path)
        seen += np.bincount(found["id"].to_numpy(), minlength=rows).astype(np.int32)
        wrong += found[EMBEDDING].null_count
        some = found.filter(found[EMBEDDING].is_valid()).take(
            np.arange(0, len(found) - found[EMBEDDING].null_count, every)
        )
        vectors = some[EMBEDDING].combine_chunks().flatten().to_numpy().reshape(len(some), -1)
        expected = encoder.encode(some["text"].to_pylist())
        wrong += int(np.any(np.abs(vectors - expected) > TOLERANCE, axis=1).sum())
    return {"missing": int(np.sum(seen == 0)), "doubled": int(np.sum(seen > 1)), "wrong": wrong}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it all and prints one table; returns 1 if a row is missing, doubled or wrong, or if no node was killed."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bulk.show", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact")
    parser.add_argument("--rows", type=count, default=100_000, help="of the corpus; %(default)s")
    parser.add_argument("--no-network", action="store_true", help="compute nothing: a vector is its text's hash")
    parser.add_argument("--dimensions", type=count, help="of a vector; the model's, and 8 if nothing is computed")
    parser.add_argument("--cores", type=count, default=2, help="of the node; %(default)s")
    given = parser.parse_args(arguments)
    load, every = (NoNetwork.load, 1) if given.no_network else (TextEncoder.load, 100)
    with tempfile.TemporaryDirectory(prefix="polyhead-show-") as folder, Cluster(given.cores) as cluster:
        corpus, output = Path(folder, "corpus"), Path(folder, "output")
        write_corpus(corpus, given.rows)
        began = time.monotonic()
        places = ["--model", str(given.model), "--input", str(corpus), "--output", str(output)]
        if given.dimensions:
            places += ["--dimensions", str(given.dimensions)]
        with Watch(cluster, output, given.rows, given.cores) as watch:
            code = encode([*places, "--address", cluster.address], load=load)
        seconds = time.monotonic() - began
        if code:
            return code
        files = sum(1 for _ in output.glob("*.parquet"))
        found = check(output, given.rows, load(given.model, dimensions=given.dimensions), every)
    table = Table("show", "a run whose node is killed halfway")
    table.add(
        encoder="none" if given.no_network else str(given.model),
        rows=given.rows,
        seconds=seconds,
        files=files,
        killed_after=watch.killed_after,
        **found,
        **watch.figures(),
    )
    sys.stdout.write("\n".join(table.lines()) + "\n")
    return int(any(found.values()) or not watch.killed_after)


if __name__ == "__main__":
    sys.exit(main())
