"""`polyhead encode`: texts in, embeddings out, on this machine and without a server."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from polyhead.models import ModelFlag, load_engine
from polyhead.output import OutputError, say
from polyhead.texts import (
    TEXT_PAIR,
    FieldFlag,
    Fields,
    FormatFlag,
    IdFlag,
    InputError,
    Source,
    SourceFlag,
    Texts,
    as_they_come,
    count_texts,
)
from polyhead.vectors import open_output
from service.errors import ServiceError
from service.machine import bound_heap

PORTION = 4096  # most texts in memory at once


def encode(
    context: typer.Context,
    *,
    texts: Texts = None,
    model: ModelFlag = None,
    source: SourceFlag = None,
    field: FieldFlag = "text",
    id_field: IdFlag = None,
    kind: FormatFlag = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="read two texts together: arguments two by two, lines with a tab between")
    ] = False,
    pair_field: Annotated[
        str | None, typer.Option(help="the same of a pair's second text, with --pairs [default: text_pair]")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="file to write: .npy, .parquet or .jsonl [default: JSON lines]")
    ] = None,
    dimensions: Annotated[int | None, typer.Option(help="truncate vectors to this many dimensions")] = None,
    no_normalize: Annotated[
        bool, typer.Option("--no-normalize", help="leave the vectors' lengths as they are")
    ] = False,
    no_truncate: Annotated[
        bool, typer.Option("--no-truncate", help="refuse texts longer than the model reads, which are cut otherwise")
    ] = False,
    prompt_name: Annotated[str | None, typer.Option(help="one of the model's prompts, such as query")] = None,
    prompt: Annotated[str | None, typer.Option(help="text to put before each text")] = None,
    aggregation: Annotated[
        Literal["none", "simple", "first", "average", "max"] | None,
        typer.Option(help="of a model that labels tokens: how they become entities"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar, no last line")] = False,
) -> None:
    """Encode texts, files or standard input, without a server.

    As `POST /encode` does: the same vectors, to the bit.

    Examples:
      polyhead encode "The cat sat on the mat."              one line of JSON
      polyhead encode --input texts.txt --output out.npy     a text a line, float32 [texts, dimensions]
      polyhead encode --input docs.jsonl --field body --output out.parquet
      cat texts.txt | polyhead encode --dimensions 64 > out.jsonl
      polyhead encode --model artifacts/ranker --pairs "Where did the cat sit?" "The cat sat on the mat."

    Exit code 0: everything is written; 1: no file is, and the last line on stderr says why; 2: wrong command line.
    """
    if pair_field and not pairs:
        context.fail("--pair-field: only with --pairs")
    named = Fields(field, (pair_field or TEXT_PAIR) if pairs else None, id_field)
    given = {"dimensions": dimensions, "prompt_name": prompt_name, "prompt": prompt, "truncate": not no_truncate}
    given |= {"normalize": False if no_normalize else None, "aggregation": aggregation}
    _encode(Source.given(context, texts, source, kind, named), model, output, given, is_quiet=quiet)


def _encode(source: Source, model: Path | None, output: str | None, options: dict[str, Any], *, is_quiet: bool) -> None:
    """Encodes a portion at a time by `Engine.encode`'s options and `aggregation`, and says how many were cut."""
    bound_heap()
    if output is not None and output.lower().endswith(".npy") and source.fields.id is not None:
        raise OutputError(f"{output}: an array has no place for ids; name a file that ends in .parquet or .jsonl")
    if output is not None and Path(output).exists() and source.is_file(Path(output)):
        raise OutputError(f"{output} is the input, which would be lost: name another file")
    aggregation = options.pop("aggregation")
    with open_output(output) as write, load_engine(model) as engine:
        if aggregation is not None or engine.manifest.task == "token_classification":
            options["entities"] = {"aggregation": aggregation or "simple"}
            options["long_texts"] = "windows" if options["truncate"] else None
        name = "inputs" if source.fields.pair is None else "pairs"
        count = cut = size = 0
        with _progress(source, output, is_quiet=is_quiet) as progress:
            for portion in as_they_come(source.rows(), PORTION):
                texts: Any = {name: [row.text for row in portion]}
                try:
                    encoded = engine.encode(**texts, progress=progress, **options)
                except ServiceError as error:
                    raise _counted_from_first(error, name, count) from error
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


def _counted_from_first(error: ServiceError, name: str, before: int) -> Exception:
    """A failure of one text with that text's number among all, from 1; it had the place in its portion, from 0."""
    found = re.match(rf"{name}\[(\d+)\]", error.message)
    if found is None:
        return error
    one = "text" if name == "inputs" else "pair"
    return InputError(f"{one} {before + int(found[1]) + 1}{error.message[found.end() :]}")


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
