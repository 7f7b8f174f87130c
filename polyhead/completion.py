"""`polyhead completion SHELL`: a script that completes commands and flags."""

import argparse
import sys
from collections.abc import Sequence

from export.cli import parser as export_parser
from export.heads.cli import parser as heads_parser
from polyhead.cli import COMMANDS
from polyhead.encode import parser as encode_parser
from polyhead.explain import parser as explain_parser
from polyhead.info import parser as info_parser
from polyhead.tune.command import parser as tune_parser
from polyhead.verify import parser as verify_parser
from service.settings import Settings, cli_source
from train.cli import parser as train_parser

SHELLS = ("bash", "zsh", "tcsh")
INSTALL = """\
examples:
  polyhead completion bash > ~/.local/share/bash-completion/completions/polyhead
  polyhead completion zsh > ~/.zfunc/_polyhead        (with ~/.zfunc in fpath)"""


def main(arguments: Sequence[str]) -> int:
    """Prints the script; returns the exit code."""
    made = argparse.ArgumentParser(
        prog="polyhead completion",
        description="Prints a script that completes commands and flags of polyhead.",
        epilog=INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("shell", choices=SHELLS)
    options = made.parse_args(arguments)
    try:
        import shtab  # noqa: PLC0415 - an extra, needed here only
    except ImportError:
        sys.stderr.write("polyhead completion: shtab is missing: install the cli extra, pip install '.[cli]'\n")
        return 1
    try:
        sys.stdout.write(shtab.complete(whole_parser(), shell=options.shell) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        raise
    except OSError as error:
        sys.stdout = None  # or Python writes what is left once more when it ends, and fails once more
        sys.stderr.write(f"polyhead completion: cannot write standard output: {error.strerror or error}\n")
        return 1
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Every command with its flags, in one parser that only describes."""
    settings = cli_source(Settings, "polyhead serve").root_parser
    described = {
        "serve": settings,
        "encode": encode_parser(),
        "export": export_parser(),
        "heads": heads_parser(),
        "train": train_parser(),
        "tune": tune_parser(),
        "explain": explain_parser(),
        "info": info_parser(),
        "verify": verify_parser(),
    }
    made = argparse.ArgumentParser(prog="polyhead")
    commands = made.add_subparsers()
    for name, command in COMMANDS.items():
        parents = [described[name]] if name in described else []
        added = commands.add_parser(name, help=command.__doc__, parents=parents, add_help=False)
        if name == "completion":
            added.add_argument("shell", choices=SHELLS)
    return made
