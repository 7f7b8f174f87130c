"""`polyhead encode`: texts in, embeddings out, on this machine and without a server."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.models import load_engine
from polyhead.output import OutputError, say
from polyhead.texts import Fields, InputError, Row, as_they_come, count_texts, read_texts
from polyhead.vectors import open_output
from service.machine import bound_heap

PORTION = 4096  # most texts in memory at once


@dataclass(frozen=True, slots=True)
class Source:
    """Where texts come from: the command line, else a file, else standard input."""

    texts: tuple[str, ...]  # of the command line; two by two where pairs are read
    path: str  # of a file, or `-`
    fields: Fields
    kind: str | None = None  # of the file, instead of its ending's

    def rows(self) -> Iterator[Row]:
        """Every text, or pair of texts, that a tokenizer can read.

        Raises:
            InputError: bytes of another encoding (in arguments), halves of a character (in JSON), or as `read_texts`.
        """
        rows = self._of_arguments() if self.texts else read_texts(self.path, self.fields, self.kind)
        for number, row in enumerate(rows, 1):
            try:
                (row.text if isinstance(row.text, str) else "\n".join(row.text)).encode()
            except UnicodeEncodeError as error:
                raise InputError(f"text {number}: not UTF-8 (character {error.start + 1} of the text)") from error
            yield row

    def _of_arguments(self) -> Iterator[Row]:
        if self.fields.pair is None:
            return map(Row, self.texts)
        return map(Row, zip(self.texts[::2], self.texts[1::2], strict=True))


def encode(
    source: Source, model: Path | None, output: str | None, options: Mapping[str, Any], *, is_quiet: bool
) -> None:
    """Encodes texts by `Engine.encode`'s options and writes them, a portion at a time; says how many were cut.

    Without a model it is the default one, without an output JSON lines on standard output.
    """
    bound_heap()
    if output is not None and output.lower().endswith(".npy") and source.fields.id is not None:
        raise OutputError(f"{output}: an array has no place for ids; name a file that ends in .parquet or .jsonl")
    with open_output(output) as write, load_engine(model) as engine:
        options = _for_task(options, engine.manifest.task)
        name = "inputs" if source.fields.pair is None else "pairs"
        count = cut = size = 0
        with _progress(source, output, is_quiet=is_quiet) as progress:
            for portion in as_they_come(source.rows(), PORTION):
                given: dict[str, Any] = {name: [row.text for row in portion], "progress": progress}
                encoded = engine.encode(**given, **options)
                write(portion, encoded)
                cut += sum(item["truncated"] for item in encoded.items)
                count += len(portion)
                size = encoded.values.shape[1] if isinstance(encoded.values, np.ndarray) else 0
        if not count:
            raise InputError("no texts were given")
        longest = engine.manifest.max_sequence_length
    if output is not None and not is_quiet:
        say(f"polyhead encode: wrote {count:,}{f' x {size:,}' if size else ''} to {output}, {cut:,} cut")
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


@contextmanager
def _progress(source: Source, output: str | None, *, is_quiet: bool) -> Iterator[Callable[[int], object] | None]:
    """A bar on the terminal, if somebody is there to see it and waits for a file or a pipe."""
    is_seen = not is_quiet and not source.texts and sys.stderr is not None and sys.stderr.isatty()
    is_seen = is_seen and (output is not None or not sys.stdout.isatty())  # else it would stand among the lines
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an extra; without it there is no bar
    except ImportError:
        is_seen = False
    if not is_seen:
        yield None
        return
    with tqdm(unit=" texts", unit_scale=True, total=count_texts(source.path)) as bar:
        yield bar.update
