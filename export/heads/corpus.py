"""Text for the report: a sample of a file with one text a line, read as a stream.

Memory holds the sample, never the file: every line has the same chance to be in it (reservoir sampling, Vitter 1985,
algorithm R). It does not know tokens.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from export.errors import SourceError

LONGEST_TEXT = 20_000  # characters; encoders read a few thousand at most, and a file may be one line of gigabytes
FEWEST_TEXTS = 8  # below this an interval over texts says nothing


@dataclass(frozen=True, slots=True)
class Sample:
    """Texts drawn from a corpus.

    Attributes:
        name: the file's name.
        sha256: of the whole file.
        seen: texts in the file.
        texts: those drawn, in the order of the file.
    """

    name: str
    sha256: str
    seen: int
    texts: tuple[str, ...]


def sample_corpus(path: Path, count: int, seed: int = 0) -> Sample:
    """Draws at most `count` texts from a file, one a line; empty lines are none.

    Raises:
        SourceError: the file cannot be read, is no UTF-8, or holds fewer than 8 texts.
    """
    drawn = random.Random(seed)  # noqa: S311 - a sample, no secret
    digest = hashlib.sha256()
    chosen: list[tuple[int, str]] = []
    seen = 0
    try:
        for text in _lines(path, digest):
            place = seen if seen < count else drawn.randrange(seen + 1)
            if place < count:
                chosen[place : place + 1] = [(seen, text)]
            seen += 1
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read as UTF-8 text: {error}") from error
    if seen < FEWEST_TEXTS:
        raise SourceError(f"{path} holds {seen} texts, one a line: at least {FEWEST_TEXTS} are needed")
    return Sample(path.name, digest.hexdigest(), seen, tuple(text for _, text in sorted(chosen)))


def _lines(path: Path, digest: "hashlib._Hash") -> Iterator[str]:
    """The texts of a file, cut to `LONGEST_TEXT`; what is read is hashed."""
    with path.open("rb") as file:
        begins = True
        while piece := file.readline(4 * LONGEST_TEXT):
            digest.update(piece)
            if begins and (text := _decode(piece).strip()):
                yield text[:LONGEST_TEXT]
            begins = piece.endswith(b"\n")


def _decode(piece: bytes) -> str:
    """UTF-8 text; the piece of a very long line may end inside a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        if error.end == len(piece) and error.start > len(piece) - 4 and not piece.endswith(b"\n"):
            return piece[: error.start].decode()
        raise
