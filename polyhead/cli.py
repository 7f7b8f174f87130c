"""`polyhead COMMAND ...`: the tree of commands, for help, completion and errors of one style.

Nothing heavy is imported before a command is chosen (`polyhead.described`).
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from polyhead.described import Described, Own, Training
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
    context_settings={"help_option_names": ["--help", "-h"]},  # of every command below, too
)
cache = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
app.add_typer(cache, name="cache")


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


@cache.command("clear")
def _clear_cache(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="what to remove [default: all]")] = None,
) -> None:
    """Remove exports from the cache."""
    with one_line_failures("polyhead cache clear"):
        from polyhead.models import clear_cache  # noqa: PLC0415 - imported when it is wanted

        for path in clear_cache(names or []):
            write(f"removed {path}\n")


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


def _heads_default() -> Path:
    """The default artifact, or the default model if it is not exported: the folder's name could be one on the hub."""
    from export.sources import DEFAULT_MODEL  # noqa: PLC0415 - imported when it is wanted
    from polyhead.models import DEFAULT_ARTIFACT, default_artifact  # noqa: PLC0415 - likewise

    found = default_artifact()
    return Path(DEFAULT_MODEL) if found == DEFAULT_ARTIFACT and not found.is_dir() else found


def _heads_parser() -> Any:
    from export.heads.cli import parser  # noqa: PLC0415 - imported when it is wanted

    return parser("polyhead heads", _heads_default())


def _heads(arguments: list[str]) -> int:
    from export.heads.cli import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments, "polyhead heads", _heads_default())


def tree() -> Any:
    """Every command."""
    found: Any = typer.main.get_command(app)
    commands = (
        Described("serve", "Serve a model or an artifact over HTTP.", _serve_parser, _serve),
        Own("encode", "Encode texts, files or standard input, without a server.", "polyhead.encode"),
        Own("rerank", "Order documents by how well they fit a query, best first.", "polyhead.score"),
        Own("similar", "Score a text with each of others, in their order.", "polyhead.score"),
        Own("classify", "Name the labels of texts and their scores, best first.", "polyhead.score"),
        Own("explain", "Show which tokens make two texts similar, or give a logit.", "polyhead.explain"),
        Described("export", "Make an artifact of a pretrained model.", _export_parser, _export),
        Training("train", "Train: heal a network that loses heads, distil one, or learn from pairs and labels."),
        Own("info", "Describe an artifact: its model, task, network and files.", "polyhead.info"),
        Own("verify", "Check an artifact's files, and that it loads.", "polyhead.info"),
        Described("heads", "Report what each head of a model does on a corpus.", _heads_parser, _heads),
        Own("tune", "Measure which precision, engine and use of the cores suit a model.", "polyhead.tune", "command"),
    )
    found.commands = {**{command.name: command for command in commands}, "cache": found.commands["cache"]}
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
