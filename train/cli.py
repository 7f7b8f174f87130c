"""`polyhead train COMMAND`: the training commands, each a recipe for one loop."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from export.command import run_command
from export.threads import wait_asleep
from train.cli_heal import add_heal, heal
from train.cli_options import add_run_options

PROGRAM = "polyhead train"
DESCRIPTION = """\
Makes, heals and learns networks. Each command writes a folder that `polyhead export` takes: the best network so far,
its tokenizer, training.json (settings, hashes of the data, versions, curves) and training.svg."""

Add = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], None]

COMMANDS: Mapping[str, tuple[Add, Run]] = MappingProxyType({"heal": (add_heal, heal)})


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line, described."""
    made = argparse.ArgumentParser(
        prog=program,
        description=DESCRIPTION,
        epilog="`polyhead train COMMAND --help` explains each command, with an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (add, run) in COMMANDS.items():
        title, _, text = (run.__doc__ or "").partition("\n")
        own = commands.add_parser(
            name,
            help=title.rstrip("."),
            description=f"{title}{text}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add(own)
        add_run_options(own)
    return made


def main(arguments: Sequence[str], program: str = PROGRAM) -> int:
    """Runs the command line and returns the exit code."""
    wait_asleep()
    options = parser(program).parse_args(arguments)
    _, run = COMMANDS[options.command]
    saved = f"what was saved is in {options.output}; to go on, give the same command with --resume"
    return run_command(
        lambda: run(options), name=f"{program} {options.command}", left_behind=saved, debug=options.debug
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
