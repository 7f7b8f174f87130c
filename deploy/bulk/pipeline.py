"""The pipeline: Parquet in, without the rows that are done, an actor a core that encodes, Parquet out.

A file is written by one task under a name of its own, which a task that takes its place on another node writes over. So
each row comes out once, wherever a run was ended and however often it goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from pyarrow.dataset import dataset
from pyarrow.fs import FileSystem
from ray.data import ActorPoolStrategy, DataContext

from deploy.bulk.corpus import EMBEDDING
from deploy.bulk.done import LeaveOutDone
from deploy.bulk.encoder import TextEncoder
from service.errors import InferenceFailed
from service.inference.backend import Float32Array

ROWS = 1024  # handed to an actor at once: enough to find texts of equal length, little enough to be spread evenly


@dataclass(frozen=True, slots=True)
class Corpus:
    """Parquet files with an id and a text a row; other columns are passed on.

    Attributes:
        inputs: URIs of files, local or of an object store.
        output: URI of the folder for the result; every node has to see it.
        id_column: unique over all rows.
        text_column: what is encoded; a row without a text gets no vector.
    """

    inputs: tuple[str, ...]
    output: str
    id_column: str
    text_column: str


class EncodeTexts:
    """What an actor does with a table: adds the column `embedding`, a list of float32 of fixed size, and reports.

    A text that the model cannot encode costs its own row alone: its table is encoded again, text by text.
    """

    def __init__(self, corpus: Corpus, artifact: str, tally: Any, **options: Any) -> None:
        self._corpus = corpus
        self._tally = tally
        self._encoder = TextEncoder.load(Path(artifact), **options)

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with vectors."""
        column = table[self._corpus.text_column]
        given = column.is_valid().to_numpy(zero_copy_only=False)
        encoded, vectors = self._encode(column.drop_null().to_pylist())
        is_there = given.copy()
        is_there[given] = encoded
        rows = np.zeros((len(table), self._encoder.dimensions), dtype=np.float32)
        rows[is_there] = vectors
        flat, missing = pa.array(rows.reshape(-1)), pa.array(~is_there)
        failed = table[self._corpus.id_column].filter(pa.array(given & ~is_there)).to_pylist()
        self._tally.add.remote(len(table), int((~given).sum()), failed)
        return table.append_column(
            EMBEDDING, pa.FixedSizeListArray.from_arrays(flat, self._encoder.dimensions, mask=missing)
        )

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, Float32Array]:
        """Which texts were encoded, and the vectors of those."""
        try:
            return np.ones(len(texts), dtype=bool), self._encoder.encode(texts)
        except InferenceFailed:
            single = [self._encode_one(text) for text in texts]
        encoded = np.array([vector is not None for vector in single])
        kept = [vector for vector in single if vector is not None]
        return encoded, np.array(kept, dtype=np.float32).reshape(-1, self._encoder.dimensions)

    def _encode_one(self, text: str) -> Float32Array | None:
        try:
            vector: Float32Array = self._encoder.encode([text])[0]
        except InferenceFailed:
            return None
        return vector


def encode_corpus(
    corpus: Corpus,
    artifact: Path,
    *,
    done: Sequence[str],
    tally: Any,
    workers: int,
    gpus: float = 0,
    **options: Any,
) -> None:
    """Encodes what is not done yet.

    Args:
        corpus: what and where.
        artifact: on every node at this path.
        done: files of the output whose rows are left out.
        tally: the actor that the others report to.
        workers: actors at most, of one core each, or of `gpus`.
        gpus: of an actor; 0 is none.
        options: of `TextEncoder.load`.
    """
    context = DataContext.get_current()
    context.use_datasource_v2 = False  # its actors that read footers took minutes to begin on two busy cores
    context.enable_progress_bars = False  # ours is one line
    # None but the encoders hold cores of Ray's count. When a node dies, its encoders begin again on the others, and may
    # take every core there: they would wait for ever for what nobody could read.
    rows = ray.data.read_parquet(list(corpus.inputs), num_cpus=0, concurrency=workers)
    if done:
        rows = rows.map_batches(
            LeaveOutDone,
            fn_constructor_args=(corpus.output, done, corpus.id_column),
            batch_size=None,  # as they were read
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=1),
            num_cpus=0,
        )
    encoded = rows.map_batches(
        EncodeTexts,
        fn_constructor_args=(corpus, str(artifact), tally),
        fn_constructor_kwargs=options,
        batch_size=ROWS,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(min_size=1, max_size=workers),
        num_cpus=0 if gpus else 1,
        num_gpus=gpus,
    )
    encoded.write_parquet(corpus.output, ray_remote_args={"num_cpus": 0}, concurrency=workers)


def count_rows(uris: Sequence[str]) -> int:
    """Rows of Parquet files, or of a folder of them, from their footers."""
    found = [FileSystem.from_uri(uri) for uri in uris]
    return sum(dataset(path, filesystem=filesystem, format="parquet").count_rows() for filesystem, path in found)
