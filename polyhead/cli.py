"""`polyhead COMMAND ...`: the tree of commands, for help, completion and errors of one style.

Commands of this package are functions here; `serve`, `export`, `heads` and `train` describe their flags themselves, and
are shown and completed here (`polyhead.described`). Nothing heavy is imported before a command is chosen.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from polyhead.described import Described, Training
from polyhead.output import FAILED, OutputError, one_line_failures, say, unwritten, write
from service.machine import own_version

EXAMPLES = """\
\b
a first embedding:
  polyhead encode "The cat sat on the mat."    one line of JSON, after polyhead export
  polyhead serve                               the default model over HTTP, on port 8000; a viewer of its heads at /
  polyhead serve BAAI/bge-small-en-v1.5        another one, exported first"""

SERVER = ("fastapi", "httptools", "prometheus_client", "uvicorn")  # what the extra brings
app = typer.Typer(
    name="polyhead",
    help="Serves an attention encoder, and shows its heads.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
cache = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
app.add_typer(cache, name="cache")


class OneLine(TyperCommand):
    """A command whose failures are one line."""

    def invoke(self, ctx: Any) -> Any:
        """Runs it."""
        with one_line_failures(ctx.command_path):
            return super().invoke(ctx)


_DEFAULT = "[default: POLYHEAD_MODEL, else artifacts/all-MiniLM-L6-v2]"
Artifact = Annotated[
    Path | None, typer.Argument(metavar="ARTIFACT", help=f"artifact, made by `polyhead export` {_DEFAULT}")
]
ModelFlag = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help=f"artifact, made by `polyhead export` {_DEFAULT}")
]
Aggregation = Literal["none", "simple", "first", "average", "max"]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="texts; - is standard input")]
SourceFlag = Annotated[
    str | None,
    typer.Option(
        "--input", metavar="FILE", help="file to read: .jsonl, .parquet, .csv, .tsv, else a text a line; also .gz"
    ),
]
FieldFlag = Annotated[str, typer.Option(help="the text's name in .jsonl, its column in tables")]
IdFlag = Annotated[str | None, typer.Option("--id", metavar="FIELD", help="name of ids, which are carried along")]
FormatFlag = Annotated[
    Literal["lines", "jsonl", "csv", "tsv"] | None,
    typer.Option("--format", help="of the file, instead of its ending's, or of standard input"),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="JSON lines")]
TopFlag = Annotated[int | None, typer.Option(min=1, help="only the best N [default: all]")]
SameAsFlag = Annotated[Path | None, typer.Option("--model", metavar="DIR", help="the same, as a flag")]
_TWICE = "--model is the argument as a flag: give one of the two"


def _show_version(wanted: bool) -> None:
    if wanted:
        write(f"polyhead {own_version()}\n")
        raise typer.Exit


@app.callback()
def _polyhead(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(
    cls=OneLine,
    epilog="""\
\b
examples:
  polyhead encode "The cat sat on the mat."              one line of JSON
  polyhead encode --input texts.txt --output out.npy     a text a line, float32 [texts, dimensions]
  polyhead encode --input docs.jsonl --field body --output out.parquet
  cat texts.txt | polyhead encode --dimensions 64 > out.jsonl
  polyhead encode --model artifacts/ranker --pairs "Where did the cat sit?" "The cat sat on the mat."

Exit code 0: everything is written; 1: no file is, and the last line on stderr says why; 2: wrong command line.""",
)
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
        Aggregation | None, typer.Option(help="of a model that labels tokens: how they become entities")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar, no last line")] = False,
) -> None:
    """Encode texts, files or standard input, without a server.

    As `POST /encode` does: the same vectors, to the bit.
    """
    from polyhead.encode import encode as run  # noqa: PLC0415 - imported when it is wanted

    if pair_field and not pairs:
        context.fail("--pair-field: only with --pairs")
    second = (pair_field or "text_pair") if pairs else None
    chosen = _source(context, texts, source, kind, (field, second, id_field))
    options = {
        "dimensions": dimensions,
        "normalize": False if no_normalize else None,
        "truncate": not no_truncate,
        "prompt_name": prompt_name,
        "prompt": prompt,
        "aggregation": aggregation,
    }
    run(chosen, model, output, options, is_quiet=quiet)


@app.command(
    cls=OneLine,
    epilog="""\
\b
examples:
  polyhead explain "A cat sat down." "The kitten is resting."
  polyhead explain --json "A cat sat down." "The kitten is resting."    all of it, as `POST /explain` answers
  polyhead explain --model artifacts/sentiment --through network "I like it."    a classifier's logit""",
)
def explain(
    a: Annotated[str, typer.Argument(metavar="A", help="a text")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="another; of a model that reads pairs, the second of the pair")
    ] = None,
    *,
    model: ModelFlag = None,
    through: Annotated[
        Literal["pooling", "network"],
        typer.Option(help="what terms are of: the last layer's token vectors, or the input tokens"),
    ] = "pooling",
    at: Annotated[
        int | None,
        typer.Option(min=0, help="of a model that labels tokens: a character of A, whose token is explained"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="terms to print")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="every term, as JSON")] = False,
) -> None:
    """Show which tokens make two texts similar, or give a classifier's logit.

    The similarity is a sum over pairs of tokens, one of each text, special tokens included. The table shows the largest
    terms, as numbers and as shares of the sum; all others stand together in its last line. With --through network a
    classifier's largest logit is a sum over the input tokens, and the table shows its terms of the largest size.
    """
    from polyhead.explain import explain as run  # noqa: PLC0415 - imported when it is wanted

    run(a, b, model, through=through, at=at, top=top, as_json=as_json)


@app.command(
    cls=OneLine,
    epilog="""\
\b
examples:
  polyhead rerank "Where did the cat sit?" "It rained all day." "The cat sat on the mat."
  polyhead rerank "Where did the cat sit?" --input docs.csv --field body --id key --top 10 --json""",
)
def rerank(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="what documents are compared with")],
    documents: Texts = None,
    *,
    model: ModelFlag = None,
    source: SourceFlag = None,
    field: FieldFlag = "text",
    id_field: IdFlag = None,
    kind: FormatFlag = None,
    top: TopFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Order documents by how well they fit a query, best first, as `POST /rerank` does."""
    from polyhead.score import rerank as run  # noqa: PLC0415 - imported when it is wanted

    chosen = _source(context, documents, source, kind, (field, None, id_field))
    run(query, chosen, model, top=top, as_json=as_json)


@app.command(
    cls=OneLine,
    epilog="""\
\b
examples:
  polyhead similar "A cat sat down." "The kitten rests." "It rained."
  cat lines.txt | polyhead similar "A cat sat down." -""",
)
def similar(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="a text")],
    others: Annotated[list[str] | None, typer.Argument(metavar="OTHER", help="others; - is standard input")] = None,
    *,
    model: ModelFlag = None,
    source: SourceFlag = None,
    field: FieldFlag = "text",
    id_field: IdFlag = None,
    kind: FormatFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Score a text with each of others, in their order: cosines of an embedder, a reranker's own scores."""
    from polyhead.score import similar as run  # noqa: PLC0415 - imported when it is wanted

    chosen = _source(context, others, source, kind, (field, None, id_field))
    run(text, chosen, model, as_json=as_json)


@app.command(
    cls=OneLine,
    epilog="""\
\b
examples:
  polyhead classify --model artifacts/sentiment "I like it."
  polyhead classify "The cat sat on the mat." --label animals --label weather    labels of your own, any model""",
)
def classify(
    context: typer.Context,
    texts: Texts = None,
    *,
    model: ModelFlag = None,
    source: SourceFlag = None,
    field: FieldFlag = "text",
    id_field: IdFlag = None,
    kind: FormatFlag = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", help="a label to choose from, any number of times, as POST /zero-shot"),
    ] = None,
    top: TopFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Name the labels of texts and their scores, best first: a classifier's own, or yours by --label."""
    from polyhead.score import classify as run  # noqa: PLC0415 - imported when it is wanted

    chosen = _source(context, texts, source, kind, (field, None, id_field))
    run(chosen, labels or [], model, top=top, as_json=as_json)


@app.command(cls=OneLine)
def info(
    context: typer.Context,
    artifact: Artifact = None,
    model: SameAsFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="the whole manifest, as JSON")] = False,
) -> None:
    """Describe an artifact: its model, task, network and files. `polyhead verify` checks the files."""
    from polyhead.info import info as run  # noqa: PLC0415 - imported when it is wanted

    run(_artifact(context, artifact, model), as_json=as_json)


@app.command(cls=OneLine)
def verify(context: typer.Context, artifact: Artifact = None, model: SameAsFlag = None) -> None:
    """Check an artifact's files, and that it loads.

    Every file has the size and SHA-256 that the manifest says, the tokenizer can be read, and the graph loads. Exit
    code 0: all of it is so; 1: it is not, and one line on stderr says what; 2: wrong command line.
    """
    from polyhead.info import verify as run  # noqa: PLC0415 - imported when it is wanted

    run(_artifact(context, artifact, model))


@app.command(cls=OneLine)
def tune(
    context: typer.Context,
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL", help=f"artifacts, checkpoints' folders or Hugging Face ids {_DEFAULT}"),
    ] = None,
    *,
    model: SameAsFlag = None,
    seconds: Annotated[float, typer.Option(min=0, help="time for each way, besides its start")] = 6.0,
    cores: Annotated[
        int | None, typer.Option(min=1, help="cores to share out [default: those this process may use]")
    ] = None,
    max_batch_tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="TOKENS", help="also try batches of this size; may be given several times"),
    ] = None,
    aim: Annotated[
        Literal["throughput", "latency"] | None,
        typer.Option("--write", help="keep what is best at this for `polyhead serve MODEL` on this machine"),
    ] = None,
) -> None:
    """Measure which precision, engine and use of this machine's cores suit a model.

    A model that is no artifact is exported in every form that suits this processor: fp32 and int8, and with OpenVINO
    fp32 and bf16. Each way to share out the cores (processes, workers, threads) serves each form for some seconds, to a
    client on the same machine that sends texts of natural lengths over HTTP. The answer is a table with rate, waiting
    time, memory and fidelity, and commands to copy: for the most texts a second, and for the shortest wait of a text
    that comes alone. Sizes of batches are tried in the way that gave each form the most texts a second.
    """
    from polyhead.models import default_artifact  # noqa: PLC0415 - imported when it is wanted
    from polyhead.tune import tune as run  # noqa: PLC0415 - likewise
    from service.machine import usable_cores  # noqa: PLC0415 - likewise

    if cores is not None and cores > usable_cores():
        context.fail(f"--cores must be from 1 to {usable_cores()}, those this process may use")
    if models and model:
        context.fail(_TWICE)
    run(models or [model or default_artifact()], cores or usable_cores(), seconds, aim, max_batch_tokens or [])


@cache.callback()
def _list_cache(context: typer.Context) -> None:
    """List the exports that `polyhead serve MODEL` keeps, or clear them."""
    if context.invoked_subcommand is not None:
        return
    with one_line_failures("polyhead cache"):
        from polyhead.models import cache_folder, cached_artifacts  # noqa: PLC0415 - imported when it is wanted

        for path in cached_artifacts():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            write(f"{size / 2**20:9.1f} MiB  {path.name}\n")
        say(f"in {cache_folder()}")


@cache.command("clear", cls=OneLine)
def _clear_cache(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="what to remove [default: all]")] = None,
) -> None:
    """Remove exports from the cache."""
    from polyhead.models import clear_cache  # noqa: PLC0415 - imported when it is wanted

    for path in clear_cache(names or []):
        write(f"removed {path}\n")


def _source(
    context: typer.Context,
    given: list[str] | None,
    path: str | None,
    kind: str | None,
    names: tuple[str, str | None, str | None],
) -> Any:
    """The texts that the command line names; `names` are those of a text, of a pair's second one, and of ids."""
    from polyhead.encode import Source  # noqa: PLC0415 - imported when it is wanted
    from polyhead.texts import STANDARD_INPUT, Fields  # noqa: PLC0415 - likewise

    texts, fields = given or [], Fields(*names)
    if texts == [STANDARD_INPUT]:
        texts, path = [], STANDARD_INPUT
    if texts and (path or STANDARD_INPUT in texts):
        context.fail("give texts, or --input FILE, or - for standard input: not both")
    if texts and (kind or fields.are_chosen):
        context.fail("--field, --id and --format are for files: texts of the command line have none of these")
    if fields.pair is not None and len(texts) % 2:
        context.fail(f"--pairs: {len(texts)} texts are no pairs: give two for each")
    if not (texts or path) and (sys.stdin is None or sys.stdin.isatty()):  # None: it was closed
        context.fail("no texts: give them as arguments, with --input FILE, or pipe them in")
    return Source(tuple(texts), path or STANDARD_INPUT, fields, kind)


def _artifact(context: typer.Context, argument: Path | None, flag: Path | None) -> Path:
    """The artifact that the command line names, or the default one."""
    from model.artifact import ArtifactError  # noqa: PLC0415 - imported when it is wanted
    from polyhead.models import default_artifact, is_hub_id  # noqa: PLC0415 - likewise

    if argument and flag:
        context.fail(_TWICE)
    found = argument or flag or default_artifact()
    if is_hub_id(found):
        raise ArtifactError(f"{found} is no folder here: `polyhead export {found}` makes an artifact of it")
    return found


def _serve_parser() -> Any:
    from polyhead.serve import parser  # noqa: PLC0415 - imported when it is wanted

    return parser()


def _serve(arguments: list[str]) -> int:
    with one_line_failures("polyhead serve", ("--revision", "--allow-pickled-weights")):
        if missing := [name for name in SERVER if find_spec(name) is None]:
            raise OutputError(f"serving needs {', '.join(missing)}: pip install 'polyhead[server]'")
        from polyhead.serve import read_and_export  # noqa: PLC0415 - imported when it is wanted
        from service.__main__ import run  # noqa: PLC0415 - likewise

        settings = read_and_export(arguments)
    return run(settings, program="polyhead serve")  # which has its own ways to end


def _export_parser() -> Any:
    from export.cli import parser  # noqa: PLC0415 - imported when it is wanted

    return parser("polyhead export", "artifacts/ and the model's name")


def _export(arguments: list[str]) -> int:
    from export.cli import main as run  # noqa: PLC0415 - imported when it is wanted

    if arguments[:1] == ["heads"]:
        return run(arguments, "polyhead export")
    model = _export_parser().parse_args(arguments).model
    folder = Path("artifacts") / (Path(os.path.realpath(model)).name if model else "all-MiniLM-L6-v2")
    return run(["--output", str(folder), *arguments], "polyhead export")  # an --output of the arguments wins


def _heads_parser() -> Any:
    from export.heads.cli import parser  # noqa: PLC0415 - imported when it is wanted
    from polyhead.models import default_artifact  # noqa: PLC0415 - likewise

    return parser("polyhead heads", default_artifact())


def _heads(arguments: list[str]) -> int:
    from export.heads.cli import main as run  # noqa: PLC0415 - imported when it is wanted
    from polyhead.models import default_artifact  # noqa: PLC0415 - likewise

    return run(arguments, "polyhead heads", default_artifact())


def tree() -> Any:
    """Every command."""
    found: Any = typer.main.get_command(app)
    described = (
        Described("serve", "Serve a model or an artifact over HTTP.", _serve_parser, _serve),
        Described("export", "Make an artifact of a pretrained model.", _export_parser, _export),
        Described("heads", "Report what each head of a model does on a corpus.", _heads_parser, _heads),
        Training("train", "Train: heal a network that loses heads, distil one, or learn from pairs and labels."),
    )
    for command in described:
        found.add_command(command)
    order = (
        *("serve", "encode", "rerank", "similar", "classify", "explain"),
        *("export", "train", "info", "verify", "heads", "tune", "cache"),
    )
    found.commands = {name: found.commands[name] for name in order}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    code = 0
    try:
        try:
            tree().main(list(sys.argv[1:] if arguments is None else arguments), prog_name="polyhead")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OutputError, OSError) as error:  # of --version; of help
        say(f"polyhead: {unwritten(error) if isinstance(error, OSError) else error}")
        return FAILED
    return code
