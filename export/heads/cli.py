"""The command line of the head report: `python -m export heads ARTIFACT_OR_MODEL --corpus FILE`."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from export.command import CommandParser, count, run_command, wait_asleep
from export.errors import SourceError
from export.sources import ALLOW_PICKLES, DEFAULT_MODEL
from model.artifact import HEADS, HEADS_PAGE

PROGRAM = "python -m export heads"
DESCRIPTION = """\
Says what each head of an encoder does on a corpus: statistics with intervals, a role where a rule and a test support
one, redundancy, importance by several definitions, and with parses how well heads follow dependency relations. The
report goes into the artifact as heads.json, which `GET /heads` serves, and heads.html, a page of plots that loads
nothing else."""
EXAMPLES = f"""\
examples:
  python -m export heads artifacts/default --corpus texts.txt
  python -m export heads artifacts/default --corpus texts.txt --conllu parses.conllu --pairs rated.csv
  python -m export heads ./my-model --corpus texts.txt --output report

The network runs in PyTorch: an artifact's weights are looked up where its manifest says they came from ({DEFAULT_MODEL}
ships with the project), or in --weights. Exit code 0: the report is written; 1: it is not, and the last line on stderr
says why; 2: the command line is wrong; 130: interrupted."""


def parser(program: str = PROGRAM, default: Path | None = None) -> argparse.ArgumentParser:
    """The command line; `program` is what it was called by, `default` the artifact if none is named."""
    made = CommandParser(
        prog=program,
        description=DESCRIPTION,
        epilog=EXAMPLES.replace(PROGRAM, program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "model",
        nargs="?" if default else None,
        default=default and str(default),
        metavar="ARTIFACT_OR_MODEL",
        help="artifact, folder or Hugging Face id" + (" (default: %(default)s)" if default else ""),
    )
    made.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="UTF-8 text, one text a line")
    made.add_argument("--conllu", type=Path, metavar="FILE", help="dependency parses (CoNLL-U), for relations")
    made.add_argument("--pairs", type=Path, metavar="CSV", help="text,text,rating: importance for what ratings say")
    made.add_argument(
        "--output", type=Path, metavar="DIR", help="write the report there (needed where MODEL is no artifact)"
    )
    made.add_argument("--texts", type=count, default=1000, help="texts drawn from the corpus (default: %(default)s)")
    made.add_argument(
        "--max-tokens", type=count, default=128, help="tokens read of each text (default: %(default)s, or the model's)"
    )
    made.add_argument(
        "--importance-texts",
        type=count,
        default=200,
        metavar="N",
        help="texts (with --pairs: pairs) for importance, which runs the network once a head (default: %(default)s)",
    )
    made.add_argument("--sentences", type=count, metavar="N", help="first N parses (default: all)")
    made.add_argument("--weights", metavar="MODEL", help="an artifact's weights, where its manifest names a folder")
    made.add_argument("--revision", help="branch, tag or commit on the hub")
    made.add_argument(ALLOW_PICKLES, action="store_true", help="read weights that are not there as safetensors too")
    made.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    return made


def main(arguments: Sequence[str], program: str = PROGRAM, default: Path | None = None) -> int:
    """Runs the command line and returns the exit code."""
    wait_asleep()
    made = parser(program, default)
    options = made.parse_args(arguments)
    if options.sentences and not options.conllu:
        made.error("--sentences goes with --conllu")
    return run_command(
        lambda: _report(options),
        name="head report",
        left_behind=lambda: "nothing was written",
        flags=made._option_string_actions,
        debug=options.debug,
    )


def _report(options: argparse.Namespace) -> None:
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from export.heads.report import make_report, write_report  # noqa: PLC0415
    from export.heads.subject import find_subject  # noqa: PLC0415

    subject = find_subject(
        options.model, weights=options.weights, revision=options.revision, allows_pickles=options.allow_pickled_weights
    )
    if options.output is None and subject.artifact is None:
        raise SourceError(f"{options.model} is no artifact to write the report into: say where with --output DIR")
    destination: Path = options.output or Path(options.model)
    report = make_report(
        subject.checkpoint,
        options.corpus,
        most_texts=options.texts,
        max_tokens=options.max_tokens,
        importance_texts=options.importance_texts,
        rated=options.pairs,
        parsed=options.conllu,
        sentences=options.sentences,
        pruned=subject.pruned,
    )
    write_report(report, destination, into_artifact=options.output is None)
    sys.stderr.write(_summary(report, destination))


def _summary(report: dict[str, Any], destination: Path) -> str:
    roles = Counter(head["role"] for head in report["heads"])
    counted = ", ".join(f"{role.replace('_', ' ')} {count}" for role, count in roles.most_common())
    return (
        f"wrote {destination / HEADS} and {destination / HEADS_PAGE}: {len(report['heads'])} heads over "
        f"{report['corpus']['texts']} texts\n{counted}\n"
    )
