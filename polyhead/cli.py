"""`polyhead COMMAND ...`: finds the command and hands it the rest.

Each command parses its own flags, so that `polyhead serve` takes what `python -m service` takes; what is shown here is
put together from theirs. Nothing heavy is imported before it is known what is wanted.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from polyhead.artifact_option import DEFAULT_ARTIFACT, default_artifact
from service.versions import own_version

DESCRIPTION = "Serves an attention encoder, and shows its heads."
EXAMPLES = """\
a first embedding:
  polyhead export                              the default model, into artifacts/all-MiniLM-L6-v2
  polyhead encode "The cat sat on the mat."    one line of JSON
  polyhead serve                               the same over HTTP, on port 8000; a viewer of its heads at /

`polyhead COMMAND --help` explains each command, with examples."""
WRONG_USE = 2

Command = Callable[[list[str]], int]


def serve(arguments: list[str]) -> int:
    """Serve an artifact over HTTP."""
    from service.__main__ import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments, program="polyhead serve", model=DEFAULT_ARTIFACT)


def export(arguments: list[str]) -> int:
    """Make an artifact of a pretrained model."""
    from export.cli import main as run  # noqa: PLC0415 - imported when it is wanted
    from export.cli import parser as flags  # noqa: PLC0415 - imported when it is wanted

    program = "polyhead export"
    if arguments[:1] == ["heads"]:
        return run(arguments, program)
    model = flags(program, f"{DEFAULT_ARTIFACT.parent}/ and the model's name").parse_args(arguments).model
    output = DEFAULT_ARTIFACT if model is None else DEFAULT_ARTIFACT.parent / Path(model).resolve().name
    return run(["--output", str(output), *arguments], program)  # an --output among the arguments comes later, and wins


def heads(arguments: list[str]) -> int:
    """Report what each head of a model does on a corpus."""
    from export.heads.cli import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments, "polyhead heads", default_artifact())


def train(arguments: list[str]) -> int:
    """Train: heal a network that loses heads, distil one, or learn from pairs and labels."""
    from train.cli import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments)


def tune(arguments: list[str]) -> int:
    """Measure which use of this machine's cores suits an artifact."""
    from polyhead.tune.command import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments)


def encode(arguments: list[str]) -> int:
    """Encode texts from the command line, files or standard input, without a server."""
    from polyhead.encode import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments)


def explain(arguments: list[str]) -> int:
    """Show which pairs of tokens make two texts similar."""
    from polyhead.explain import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments)


def info(arguments: list[str]) -> int:
    """Describe an artifact."""
    from polyhead.info import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments)


def verify(arguments: list[str]) -> int:
    """Check an artifact's files, and that it loads."""
    from polyhead.verify import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments)


def completion(arguments: list[str]) -> int:
    """Print a shell's completion script."""
    from polyhead.completion import main as run  # noqa: PLC0415 - imported when it is wanted

    return run(arguments)


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        command.__name__: command
        for command in (serve, encode, explain, export, train, info, verify, heads, tune, completion)
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        return _run(COMMANDS[given[0]], given[1:])
    made = parser()
    made.parse_args(given)  # --help, --version and what is no command end here
    made.print_help(sys.stderr)
    return WRONG_USE


def parser() -> argparse.ArgumentParser:
    """The commands, for help and errors; their own flags are theirs to describe."""
    made = argparse.ArgumentParser(
        prog="polyhead",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"polyhead {own_version()}")
    commands = made.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.__doc__, add_help=False)
    return made


def _run(command: Command, arguments: list[str]) -> int:
    try:
        return command(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough, as `head` does
        sys.stderr.close()
        return 0
