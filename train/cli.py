"""`polyhead train COMMAND`: the training commands, each a recipe for one loop."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from pathlib import Path

from export.command import CommandParser, Store, run_command, wait_asleep
from train.commands import COMMANDS, Command
from train.errors import RunError
from train.experiments.commands import EXPERIMENTS
from train.settings import WEIGHTS, RunSettings, add_flags, has_checkpoint

PROGRAM = "polyhead train"
DESCRIPTION = """\
Makes, heals and learns networks. Each command writes a folder that `polyhead export` takes: the best network so far,
its tokenizer, training.json (settings, hashes of the data, versions, curves) and training.svg. An experiment trains
many networks, and writes what it found as JSON, as a table and as a picture."""

EVERY: Mapping[str, type[Command]] = {**COMMANDS, **EXPERIMENTS}


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line, described."""
    made = CommandParser(
        prog=program,
        description=DESCRIPTION,
        epilog="`polyhead train COMMAND --help` explains each command, with an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, settings in EVERY.items():
        described, _, example = cleandoc(settings.__doc__ or "").partition("\n\nExample:\n")
        own = subparsers.add_parser(
            name,
            help=described.partition(".\n")[0],
            description=described,
            epilog=f"example:\n{example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.register("action", None, Store)
        if name in COMMANDS:
            group = own.add_argument_group("the run")
            add_flags(group, RunSettings)
            group.add_argument(
                "--artifact", type=Path, metavar="DIR", help="in the end, export the best network into DIR"
            )
        add_flags(own, settings)
        if settings.of_run:
            add_flags(own, RunSettings, settings.of_run)
        own.add_argument("--debug", action="store_true", help="show the traceback of a failure")
        own.set_defaults(**settings.defaults, flags=frozenset(own._option_string_actions))
    return made


def main(arguments: Sequence[str], program: str = PROGRAM) -> int:
    """Runs the command line and returns the exit code."""
    wait_asleep()
    options = parser(program).parse_args(arguments)
    return run_command(
        lambda: _run(options),
        name=f"{program} {options.command}",
        left_behind=lambda: _left_behind(options),
        flags=options.flags,
        debug=options.debug,
    )


def _left_behind(options: argparse.Namespace) -> str:
    if options.command == "texts" or not options.output.exists():
        return "nothing was written"
    if options.command in EXPERIMENTS or has_checkpoint(options.output):
        again = "" if options.command in EXPERIMENTS else " with --resume"
        return f"saved results are in {options.output}; to go on, give the same command{again}"
    if not (options.output / WEIGHTS).is_file():
        return f"{options.output} holds no checkpoint yet: remove it, and give the same command"
    export = f"`polyhead export {options.output} --output {options.artifact}`"
    return f"{options.output} holds the trained network" + (
        f"; {export} makes the artifact" if options.artifact else ""
    )


def _run(options: argparse.Namespace) -> None:
    run = EVERY[options.command].run
    if options.command in EXPERIMENTS or options.artifact is None:
        run(options)
        return
    from export.checkpoint import read_checkpoint  # noqa: PLC0415 - torch takes seconds to import
    from export.exporter import export_artifact, require_free  # noqa: PLC0415
    from export.sources import find_folder  # noqa: PLC0415

    require_free(options.artifact, force=False)
    if options.artifact.resolve() == options.output.resolve():
        raise RunError(f"--artifact {options.artifact} is --output: the network and its artifact need a folder each")
    run(options)
    if os.environ.get("RANK", "0") != "0":  # of the processes of `torchrun` the first one writes
        return
    export_artifact(read_checkpoint(find_folder(str(options.output))), options.artifact)
    sys.stderr.write(f"wrote {options.artifact}; serve it: polyhead serve --model {options.artifact}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
