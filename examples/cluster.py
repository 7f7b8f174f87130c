"""Clusters the lines of a file and draws them: `python -m examples.cluster LINES.txt --plot clusters.svg`.

k-means on unit vectors; the plot shows the two directions in which the lines differ most.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.command import parser_of
from model.artifact import ArtifactError
from polyhead import Engine, SourceError

STARTS, ROUNDS = 50, 100  # of k-means, which settles long before


def k_means(vectors: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The cluster of each of N unit vectors [N, D], largest cluster first; the same for the same vectors.

    Starts many times from lines drawn at random and keeps the clusters whose lines are nearest to their centres.
    """
    random = np.random.default_rng(0)
    starts = (vectors[random.choice(len(vectors), count, replace=False)] for _ in range(STARTS))
    _, labels = max((settle(vectors, centres) for centres in starts), key=lambda found: found[0])
    order = np.argsort(-np.bincount(labels, minlength=count), kind="stable")
    ranks: NDArray[np.int64] = np.argsort(order)[labels]
    return ranks


def settle(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> tuple[float, NDArray[np.int64]]:
    """Moves centres until nothing changes: how near all lines are to theirs, and whose each is."""
    labels = np.full(len(vectors), -1)
    for _ in range(ROUNDS):
        scores = vectors @ centres.T
        nearest = scores.argmax(axis=1)
        if (nearest == labels).all():
            break
        labels = nearest
        sums = [vectors[labels == k].sum(axis=0) if (labels == k).any() else centre for k, centre in enumerate(centres)]
        centres = np.array([total / np.linalg.norm(total) for total in sums])
    return float(scores.max(axis=1).sum()), labels


def flatten(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Places on a plane [N, 2]: the first two principal components."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    places: NDArray[np.float32] = centred @ directions[:2].T
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))  # a single line has one direction


def draw(places: NDArray[np.float32], labels: NDArray[np.int64], lines: Sequence[str], path: Path) -> None:
    """Writes the plot, .png, .svg or .pdf."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - the plot is optional, and so is the package

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot(xticks=[], yticks=[], title=f"{len(lines)} lines in {labels.max() + 1} clusters")
    axes.scatter(places[:, 0], places[:, 1], c=labels, cmap="tab10", vmin=0, vmax=9)
    for (x, y), line in zip(places, lines, strict=True):
        axes.annotate(line[:40], (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7, parse_math=False)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; a failure is one line."""
    parser = parser_of("cluster", __doc__)
    parser.add_argument("file", type=Path, help="one text a line")
    parser.add_argument("--clusters", type=int, default=4, help="how many (default: %(default)s)")
    parser.add_argument("--plot", type=Path, help="where to draw them: .png, .svg or .pdf (needs matplotlib)")
    options = parser.parse_args(arguments)
    try:
        run(parser, options)
    except (ArtifactError, SourceError, OSError, ValueError) as error:  # no such model or file, or one of another kind
        parser.exit(1, f"{parser.prog}: {error}\n")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Encodes, clusters, prints and draws."""
    lines = list(dict.fromkeys(filter(None, map(str.strip, options.file.read_text(encoding="utf-8").splitlines()))))
    if not 1 <= options.clusters <= len(lines):
        parser.error(f"--clusters {options.clusters}: {options.file} has {len(lines)} different lines")
    with Engine.load(options.model) as engine:
        if engine.manifest.task != "embedding":
            raise ValueError(f"{options.model} gives no vector of a text (its task is {engine.manifest.task})")
        vectors = np.asarray(engine.encode(lines, normalize=True).embeddings)
    labels = k_means(vectors, options.clusters)
    for cluster in range(options.clusters):
        print(f"cluster {cluster + 1}")
        print("".join(f"  {line}\n" for line, label in zip(lines, labels, strict=True) if label == cluster), end="")
    if options.plot:
        draw(flatten(vectors), labels, lines, options.plot)


if __name__ == "__main__":
    main()
