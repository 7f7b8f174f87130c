"""The pipeline: Parquet in, an actor a core that encodes, Parquet out, and a checkpoint of the rows that are done.

Ray Data writes the checkpoint in two phases around each output file, and on the next run takes away what was half
written and leaves out what is done; a run that was ended anywhere goes on with each row once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from pyarrow.dataset import dataset
from pyarrow.fs import FileSystem
from ray.data import ActorPoolStrategy, DataContext
from ray.data.checkpoint import CheckpointConfig

from deploy.bulk.encoder import TextEncoder

EMBEDDING = "embedding"
ROWS = 1024  # handed to an actor at once: enough to find texts of equal length, little enough to be spread evenly


class WrongCorpus(Exception):
    """The input cannot be encoded; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Parquet files with an id and a text a row; other columns are passed on.

    Attributes:
        inputs: URIs of files or folders, local or of an object store.
        output: URI of the folder for the result.
        checkpoint: URI of the folder that says what is done; every node has to see it.
        id_column: unique over all rows.
        text_column: what is encoded; a row without a text gets no vector.
    """

    inputs: tuple[str, ...]
    output: str
    checkpoint: str
    id_column: str
    text_column: str


class EncodeTexts:
    """What an actor does with a table: adds the column `embedding`, a list of float32 of fixed size."""

    def __init__(self, column: str, artifact: str, **options: Any) -> None:
        self._column = column
        self._encoder = TextEncoder.load(Path(artifact), **options)

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with vectors."""
        column = table[self._column]
        given = column.is_valid().to_numpy(zero_copy_only=False)
        vectors = np.zeros((len(table), self._encoder.dimensions), dtype=np.float32)
        vectors[given] = self._encoder.encode(column.drop_null().to_pylist())
        flat, missing = pa.array(vectors.reshape(-1)), pa.array(~given)
        return table.append_column(
            EMBEDDING, pa.FixedSizeListArray.from_arrays(flat, self._encoder.dimensions, mask=missing)
        )


def encode_corpus(corpus: Corpus, artifact: Path, *, workers: int, gpus: float = 0, **options: Any) -> None:
    """Encodes what is not done yet.

    Args:
        corpus: what and where.
        artifact: on every node at this path.
        workers: actors at most, of one core each, or of `gpus`.
        gpus: of an actor; 0 is none.
        options: of `TextEncoder.load`.

    Raises:
        WrongCorpus: a column is missing or no text.
    """
    context = DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(
        id_column=corpus.id_column, checkpoint_path=corpus.checkpoint, delete_checkpoint_on_success=False
    )
    context.use_datasource_v2 = False  # its actors that read footers took minutes to begin on two busy cores
    rows = ray.data.read_parquet(list(corpus.inputs))
    _check_columns(rows.schema(), corpus)
    encoded = rows.map_batches(
        EncodeTexts,
        fn_constructor_args=(corpus.text_column, str(artifact)),
        fn_constructor_kwargs=options,
        batch_size=ROWS,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(min_size=1, max_size=workers),
        num_cpus=0 if gpus else 1,
        num_gpus=gpus,
    )
    encoded.write_parquet(corpus.output)


def count_rows(output: str) -> int:
    """Rows that the output holds, from the files' footers."""
    filesystem, folder = FileSystem.from_uri(output)
    rows: int = dataset(folder, filesystem=filesystem, format="parquet").count_rows()
    return rows


def _check_columns(schema: Any, corpus: Corpus) -> None:
    types: dict[str, Any] = dict(zip(schema.names, schema.types, strict=True))
    _check_present(types, (corpus.id_column, corpus.text_column))
    text = types[corpus.text_column]
    if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
        raise WrongCorpus(f"column {corpus.text_column} holds {text}, not texts")
    if EMBEDDING in types:
        raise WrongCorpus(f"the corpus has a column {EMBEDDING} already")


def _check_present(types: dict[str, Any], wanted: Iterable[str]) -> None:
    for name in wanted:
        if name not in types:
            raise WrongCorpus(f"the corpus has no column {name}; it has {', '.join(types)}")
