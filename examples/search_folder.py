"""Semantic search over a folder of text files: `python -m examples.search_folder FOLDER "what to look for"`.

Paragraphs are encoded once and kept in an .npz file; later calls encode only what changed since.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.command import parser_of
from model.artifact import ArtifactError, identity
from polyhead import Engine, SourceError
from service.requests.roles import prompt_of_kind

Paragraphs = dict[str, tuple[float, list[str]]]
"""Modification time and paragraphs, by file name."""


def read_folder(folder: Path, pattern: str) -> Paragraphs:
    """Every file's paragraphs: what blank lines divide."""
    found: Paragraphs = {}
    for path in sorted(path for path in folder.rglob(pattern) if path.is_file()):
        blocks = path.read_text(encoding="utf-8", errors="replace").split("\n\n")
        found[str(path.relative_to(folder))] = (path.stat().st_mtime, [b.strip() for b in blocks if b.strip()])
    return found


def update(engine: Engine, paragraphs: Paragraphs, index: Path) -> dict[str, NDArray[np.float32]]:
    """Unit vectors [n, D] of each file's n paragraphs; the index holds them by model, modification time and name."""
    prompt, made_by = prompt_of_kind("document", engine.manifest), identity(engine.manifest)
    keys = {name: f"{made_by}/{mtime}/{name}" for name, (mtime, _) in paragraphs.items()}
    vectors: dict[str, Any] = {}
    if index.exists():
        with np.load(index, allow_pickle=False) as kept:
            vectors = {name: kept[key] for name, key in keys.items() if key in kept}
    for name, (_, texts) in paragraphs.items():
        if name not in vectors:
            vectors[name] = np.asarray(engine.encode(texts, normalize=True, prompt_name=prompt).embeddings)
    partial = index.with_name(f"{index.name}.partial")  # the next call could not read half an index
    with partial.open("wb") as file:  # given a path, numpy would add .npz to it
        np.savez(file, **{keys[name]: rows for name, rows in vectors.items()})
    partial.replace(index)
    return vectors


def search(
    engine: Engine, paragraphs: Paragraphs, vectors: dict[str, NDArray[np.float32]], query: str, top: int
) -> list[tuple[float, str, str]]:
    """The paragraphs nearest to a query: cosine, file, text; best first."""
    prompt = prompt_of_kind("query", engine.manifest)
    (asked,) = np.asarray(engine.encode([query], normalize=True, prompt_name=prompt).embeddings)
    hits = [
        (float(score), name, text)
        for name, (_, texts) in paragraphs.items()
        for score, text in zip(vectors[name] @ asked, texts, strict=True)
    ]
    return sorted(hits, reverse=True)[:top]


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; a failure is one line."""
    parser = parser_of("search_folder", __doc__)
    parser.add_argument("folder", type=Path, help="where the text files are, folders below included")
    parser.add_argument("query", help="what to look for, in words of your own")
    parser.add_argument("--pattern", default="*.txt", help="which files (default: %(default)s)")
    parser.add_argument("--index", type=Path, help="where vectors are kept (default: FOLDER/.search.npz)")
    parser.add_argument("--top", type=int, default=5, help="hits to print (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        run(parser, options)
    except (ArtifactError, SourceError, OSError, ValueError, NotImplementedError) as error:  # the last: of a pattern
        parser.exit(1, f"{parser.prog}: {error}\n")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Indexes, searches, prints."""
    paragraphs = read_folder(options.folder, options.pattern)
    if not paragraphs:
        parser.error(f"{options.folder} holds no {options.pattern}")
    with Engine.load(options.model) as engine:
        if engine.manifest.task != "embedding":
            raise ValueError(f"{options.model} gives no vector of a text (its task is {engine.manifest.task})")
        vectors = update(engine, paragraphs, options.index or options.folder / ".search.npz")
        for score, name, text in search(engine, paragraphs, vectors, options.query, options.top):
            print(f"{score:.3f}  {name}: {' '.join(text.split())[:100]}")


if __name__ == "__main__":
    main()
