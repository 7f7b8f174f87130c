"""`polyhead encode`: texts in, embeddings out, on this machine and without a server."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyhead import Engine
from polyhead.models import load_engine
from polyhead.output import say
from polyhead.texts import STANDARD_INPUT, InputError, Row, as_they_come, count_texts, read_texts
from polyhead.vectors import Write, open_output
from service.machine import bound_heap

PORTION = 4096  # most texts in memory at once


@dataclass(frozen=True, slots=True)
class Source:
    """Where texts come from: the command line, else a file, else standard input.

    Attributes:
        texts: of the command line; two by two where pairs are read.
        path: of a file, or `-`.
        field: the text's name in tables and JSON lines.
        pair_field: the same of a pair's second text; None for single texts.
    """

    texts: tuple[str, ...]
    path: str
    field: str
    pair_field: str | None

    def rows(self) -> Iterable[Row]:
        """Every text, or pair of texts."""
        if not self.texts:
            return read_texts(self.path, self.field, self.pair_field)
        return self.texts if self.pair_field is None else zip(self.texts[::2], self.texts[1::2], strict=True)


def encode(source: Source, model: Path, output: str | None, options: Mapping[str, Any], *, shows_bar: bool) -> None:
    """Encodes texts and writes them, a portion at a time; says at the end how many were cut.

    Args:
        source: of the texts.
        model: the artifact.
        output: a file; None for JSON lines on standard output.
        options: `Engine.encode`'s.
        shows_bar: whether progress is shown, if standard error is a terminal.

    Raises:
        ArtifactError, InputError, OutputError, ServiceError: see there.
    """
    bound_heap()
    with open_output(output) as write, load_engine(model) as engine:
        options = _for_task(options, engine.manifest.task)
        count = cut = 0
        with _progress(source, shows_bar=shows_bar) as progress:
            for portion in as_they_come(_checked(source.rows()), PORTION):
                cut += _encode(engine, portion, write, {**options, "progress": progress}, source.pair_field)
                count += len(portion)
        if not count:
            raise InputError("no texts were given")
        longest = engine.manifest.max_sequence_length
    if cut:
        say(f"polyhead encode: {cut} of {count} texts were cut to the {longest} tokens that the model reads")


def _for_task(options: Mapping[str, Any], task: str) -> dict[str, Any]:
    """`Engine.encode`'s options: of a token classifier entities, long texts in windows unless they are refused."""
    given = dict(options)
    aggregation = given.pop("aggregation", None)
    if aggregation is not None or task == "token_classification":
        given["entities"] = {"aggregation": aggregation or "simple"}
        given["long_texts"] = "windows" if given["truncate"] else None
    return given


def _encode(engine: Engine, rows: list[Row], write: Write, options: dict[str, Any], pair_field: str | None) -> int:
    """Writes a portion; returns how many texts were cut."""
    given: dict[str, Any] = {"inputs" if pair_field is None else "pairs": rows}
    encoded = engine.encode(**given, **options)
    write(rows, encoded)
    return sum(item["truncated"] for item in encoded.items)


def _checked(rows: Iterable[Row]) -> Iterator[Row]:
    """What tokenizers take: no bytes of another encoding (in arguments) and no halves of a character (in JSON)."""
    for number, text in enumerate(rows, 1):
        try:
            (text if isinstance(text, str) else "\n".join(text)).encode()
        except UnicodeEncodeError as error:
            raise InputError(f"text {number}: not UTF-8 (character {error.start + 1} of the text)") from error
        yield text


@contextmanager
def _progress(source: Source, *, shows_bar: bool) -> Iterator[Callable[[int], object] | None]:
    """A bar on the terminal, if somebody is there to see it and waits for a file."""
    is_seen = shows_bar and not source.texts and sys.stderr is not None and sys.stderr.isatty()
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an extra; without it there is no bar
    except ImportError:
        is_seen = False
    if not is_seen:
        yield None
        return
    with tqdm(unit=" texts", unit_scale=True, total=count_texts(source.path)) as bar:
        yield bar.update


def read_source(
    texts: list[str], path: str | None, field: str, pair_field: str | None, complain: Callable[[str], None]
) -> Source:
    """The texts' source as the command line names it; `complain` ends a wrong one with its message."""
    if texts == [STANDARD_INPUT]:
        texts, path = [], STANDARD_INPUT
    if texts and (path or STANDARD_INPUT in texts):
        complain("give texts, or --input FILE, or - for standard input: not both")
    if pair_field is not None and len(texts) % 2:
        complain(f"--pairs: {len(texts)} texts are no pairs: give two for each")
    if not (texts or path) and (sys.stdin is None or sys.stdin.isatty()):  # None: it was closed
        complain("nothing to encode: give texts, --input FILE, or pipe them in")
    return Source(tuple(texts), path or STANDARD_INPUT, field, pair_field)
