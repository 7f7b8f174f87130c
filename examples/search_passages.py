"""Late interaction over many passages: `python -m examples.search_passages passages.txt "what to look for"`.

A passage a line. Each becomes a vector a token, half of them with `--pool-factor 2`, in an index of Qdrant's that lives
in this process (`pip install qdrant-client`); a hit is scored by MaxSim. The model is a late-interaction one, such as
`python -m export --output artifacts/colbert lightonai/GTE-ModernColBERT-v1`.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from examples.command import parser_of
from model.artifact import ArtifactError, identity
from polyhead import Engine, SourceError

AT_ONCE = 256  # passages that are encoded and put into the index together


def collection_of(engine: Engine, pool_factor: float) -> str:
    """Name of what holds the vectors of this model with this many tokens a vector."""
    return f"{identity(engine.manifest)[:16]}-{pool_factor:g}"


def open_index(path: Path, collection: str, size: int) -> Any:
    """Qdrant's index at a path, with the collection, made for token vectors of this size if there is none."""
    from qdrant_client import QdrantClient, models  # noqa: PLC0415 - only this example needs it

    index = QdrantClient(path=str(path))
    if not index.collection_exists(collection):
        max_sim = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        vectors = models.VectorParams(size=size, distance=models.Distance.DOT, multivector_config=max_sim)
        index.create_collection(collection, vectors_config=vectors)
    return index


def add(engine: Engine, index: Any, collection: str, passages: Sequence[str], pool_factor: float) -> None:
    """Encodes the passages that the index does not hold yet: a later call goes on where an earlier one ended.

    Raises:
        ValueError: it holds others.
    """
    from qdrant_client import models  # noqa: PLC0415

    held = index.count(collection).count
    points = index.retrieve(collection, range(held), with_vectors=False)
    if {point.id: point.payload["text"] for point in points} != dict(enumerate(passages[:held])):
        raise ValueError("the index holds other passages: remove it, or name another with --index")
    for start in range(held, len(passages), AT_ONCE):
        texts = passages[start : start + AT_ONCE]
        vectors = engine.encode(texts, role="document", pool_factor=pool_factor).embeddings
        points = [
            models.PointStruct(id=place, vector=rows.tolist(), payload={"text": text})
            for place, (rows, text) in enumerate(zip(vectors, texts, strict=True), start)
        ]
        index.upsert(collection, points)
        sys.stderr.write(f"\r{start + len(texts)} of {len(passages)} passages")
    sys.stderr.write("\n")


def search(engine: Engine, index: Any, collection: str, query: str, top: int) -> Iterator[tuple[float, str]]:
    """The best passages: MaxSim, text."""
    (vectors,) = engine.encode([query], role="query").embeddings
    for hit in index.query_points(collection, query=vectors.tolist(), limit=top).points:
        yield hit.score, hit.payload["text"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; a failure is one line."""
    parser = parser_of("search_passages", __doc__, "artifacts/colbert")
    parser.add_argument("passages", type=Path, help="a passage a line")
    parser.add_argument("query", help="what to look for")
    parser.add_argument("--index", type=Path, help="where the index is kept (default: PASSAGES.index)")
    parser.add_argument(
        "--pool-factor", type=float, default=2, help="tokens that share a vector (default: %(default)s)"
    )
    parser.add_argument("--top", type=int, default=5, help="hits to print (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except ImportError as error:
        parser.exit(1, f"{parser.prog}: {error}: `pip install qdrant-client`\n")
    except (ArtifactError, SourceError, OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def run(options: argparse.Namespace) -> None:
    """Indexes, searches, prints."""
    passages = [line for line in options.passages.read_text(encoding="utf-8").splitlines() if line.strip()]
    with Engine.load(options.model) as engine:
        if engine.manifest.task != "multi_vector":
            raise ValueError(f"{options.model} gives no vectors of tokens (its task is {engine.manifest.task})")
        collection = collection_of(engine, options.pool_factor)
        path = options.index or options.passages.with_suffix(".index")
        index = open_index(path, collection, engine.manifest.config.output_size)
        try:
            add(engine, index, collection, passages, options.pool_factor)
            started = time.perf_counter()
            hits = list(search(engine, index, collection, options.query, options.top))
            taken = time.perf_counter() - started
        finally:
            index.close()
    for score, text in hits:
        print(f"{score:.3f}  {' '.join(text.split())[:100]}")
    print(f"{len(passages)} passages searched in {taken:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
