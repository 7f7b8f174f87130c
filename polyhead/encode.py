"""`polyhead encode`: texts in, embeddings out, on this machine and without a server."""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from export.interrupts import endings_interrupt
from model.manifest import ArtifactError
from polyhead.artifact_option import add_model, chosen_artifact
from polyhead.complaint import complain
from polyhead.loading import load_engine
from polyhead.texts import STANDARD_INPUT, InputError, Row, read_texts
from polyhead.vectors import OutputError, Write, open_output
from service.engine import Engine
from service.errors import ServiceError
from service.machine.heap import bound_heap

PROGRAM = "polyhead encode"
PORTION = 4096  # texts in memory at once
EXAMPLES = """\
examples:
  polyhead encode "The cat sat on the mat."              one line of JSON
  polyhead encode --input texts.txt --output out.npy     a text a line, float32 [texts, dimensions]
  polyhead encode --input docs.jsonl --field body --output out.parquet
  cat texts.txt | polyhead encode --dimensions 64 > out.jsonl
  polyhead encode --model artifacts/ranker --pairs "Where did the cat sit?" "The cat sat on the mat."

Exit code 0: everything is written; 1: no file is, and the last line on stderr says why; 2: wrong command line."""


def parser() -> argparse.ArgumentParser:
    """The command line, described."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Encodes texts without a server, as `POST /encode` does: the same vectors, to the bit.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, --input or standard input is read")
    add_model(made)
    made.add_argument("--input", metavar="FILE", help="texts to read: .jsonl, .parquet, else one a line; - is stdin")
    made.add_argument("--field", default="text", help="the text's name in .jsonl and .parquet (default: %(default)s)")
    made.add_argument(
        "--pairs",
        action="store_true",
        help="read two texts together, for a cross-encoder: arguments two by two, lines with a tab between them",
    )
    made.add_argument(
        "--pair-field", default="text_pair", help="a pair's second text in .jsonl and .parquet (default: %(default)s)"
    )
    made.add_argument("--output", metavar="FILE", help="file to write: .npy, .parquet or .jsonl (default: JSON lines)")
    made.add_argument("--dimensions", type=int, help="keep the first so many dimensions")
    made.add_argument("--no-normalize", action="store_true", help="leave the vectors' lengths as they are")
    made.add_argument("--no-truncate", action="store_true", help="refuse texts longer than the model takes")
    made.add_argument("--prompt-name", help="one of the model's prompts, such as query")
    made.add_argument("--prompt", help="text to put before each text")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    return made


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if options.texts and options.input:
        made.error("give texts or --input, not both")
    if options.pairs and len(options.texts) % 2:
        made.error(f"--pairs: {len(options.texts)} texts are no pairs: give two for each")
    if not (options.texts or options.input) and (sys.stdin is None or sys.stdin.isatty()):  # None: it was closed
        made.error("nothing to encode: give texts, --input FILE, or pipe them in")
    bound_heap()
    try:
        with endings_interrupt(), open_output(options.output) as write, load_engine(chosen_artifact(options)) as engine:
            _encode(engine, _texts(options), write, options)
    except (ArtifactError, InputError, OutputError) as error:
        return complain(PROGRAM, error)
    except ServiceError as error:
        return complain(PROGRAM, error.message)
    return 0


def _texts(options: argparse.Namespace) -> Iterable[Row]:
    if options.texts and options.pairs:
        return zip(options.texts[::2], options.texts[1::2], strict=True)
    if options.texts:
        return list(options.texts)
    return read_texts(options.input or STANDARD_INPUT, options.field, options.pair_field if options.pairs else None)


def _encode(engine: Engine, texts: Iterable[Row], write: Write, options: argparse.Namespace) -> None:
    chosen = {
        "dimensions": options.dimensions,
        "normalize": not options.no_normalize,
        "truncate": not options.no_truncate,
        "prompt_name": options.prompt_name,
        "prompt": options.prompt,
    }
    remaining, empty = _checked(texts), True
    with _progress(options) as progress:
        while portion := list(itertools.islice(remaining, PORTION)):
            empty = False
            given: dict[str, Any] = {"pairs" if options.pairs else "inputs": portion}
            write(portion, engine.encode(**given, progress=progress, **chosen))
    if empty:
        raise InputError("no texts were given")


def _checked(texts: Iterable[Row]) -> Iterator[Row]:
    """What tokenizers take: no bytes of another encoding (in arguments) and no halves of a character (in JSON)."""
    for number, text in enumerate(texts, 1):
        try:
            (text if isinstance(text, str) else "\n".join(text)).encode()
        except UnicodeEncodeError as error:
            raise InputError(f"text {number}: not UTF-8 (character {error.start + 1} of the text)") from error
        yield text


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Callable[[int], object] | None]:
    """A bar on the terminal, where somebody is there to see it and waits for a file."""
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an extra; without it there is no bar
    except ImportError:
        yield None
        return
    is_hidden = options.quiet or bool(options.texts) or sys.stderr is None or not sys.stderr.isatty()
    with tqdm(unit=" texts", unit_scale=True, disable=is_hidden) as bar:
        yield bar.update
