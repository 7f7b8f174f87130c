"""How commands speak: standard output through one writer, failures as one line on standard error."""

import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

FAILED, INTERRUPTED = 1, 130  # the second as a shell counts a program that Ctrl-C ended

JsonFlag = Annotated[bool, typer.Option("--json", help="JSON lines")]


class OutputError(Exception):
    """Standard output or a file cannot be written; the message says why."""


def write(data: str | bytes) -> None:
    """Writes to standard output at once; letters that a terminal's encoding lacks become escapes.

    Raises:
        OutputError: it is closed, or a full disk.
        BrokenPipeError: whoever reads has seen enough.
    """
    if sys.stdout is None:  # closed before we came
        raise OutputError("standard output is closed")
    if isinstance(data, str):
        data = data.encode(getattr(sys.stdout, "encoding", None) or "utf-8", errors="backslashreplace")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> OutputError:
    """The failure of standard output, which is not written once more when Python ends."""
    sys.stdout = None
    return OutputError(f"cannot write standard output: {error.strerror or error}")


def say(message: str) -> None:
    """A line on standard error, if somebody listens."""
    if sys.stderr is not None:
        sys.stderr.write(f"{message}\n")


@contextmanager
def one_line_failures(program: str, export_flags: Container[str] = ()) -> Iterator[None]:
    """Ends a command that fails with one line that begins with its name, and its exit code.

    SIGTERM and SIGHUP do what Ctrl-C does, so that files are whole or not there. `export_flags` are those of `polyhead
    export` that the command takes too.
    """
    from export.command import endings_interrupt, is_interruption, with_flags_placed  # noqa: PLC0415
    from export.errors import ExportError, with_extra  # noqa: PLC0415 - the command line answers --help without them
    from model.artifact import ArtifactError  # noqa: PLC0415
    from polyhead.texts import InputError  # noqa: PLC0415
    from service.errors import ServiceError  # noqa: PLC0415

    try:
        with endings_interrupt():
            yield
    except (KeyboardInterrupt, ImportError) as error:
        if is_interruption(error):
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        if not isinstance(error, ModuleNotFoundError):
            raise
        say(f"{program}: {with_extra(error)}")
        raise typer.Exit(FAILED) from None
    except BrokenPipeError:  # whoever read our output has seen enough, as `head` does
        sys.stdout = None
        raise typer.Exit(0) from None
    except (ArtifactError, ExportError, InputError, OutputError, OSError, ServiceError) as error:
        message = " ".join(str(error).split())
        say(f"{program}: {with_flags_placed(message, export_flags) if isinstance(error, ExportError) else message}")
        raise typer.Exit(FAILED) from None
