"""Commands that are read when they are wanted, until when each is a name and a line of help.

Those of this package are functions of Typer's; others have flags that argparse describes, which are shown and completed
as all others, and read over there.
"""

import argparse
import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from polyhead.output import one_line_failures

Parser = Callable[[], argparse.ArgumentParser]
Run = Callable[[list[str]], int]


class Own(TyperCommand):
    """A command of this package, a function whose failures are one line; examples stand last in its docstring."""

    def __init__(self, name: str, short: str, module: str, function: str = "") -> None:
        super().__init__(name, short_help=short, rich_markup_mode=None)
        self._module, self._function = module, function or name

    def get_params(self, ctx: Any) -> list[Any]:
        """The flags, and `--help`; reads all that the function says."""
        if self.callback is None:
            with one_line_failures(ctx.command_path):
                function = getattr(importlib.import_module(self._module), self._function)
            described, begin, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(help=described, epilog=f"\b\nexamples:\n{examples}" if begin else None)(function)
            made: Any = typer.main.get_command(app)
            self.help, self.epilog, self.params, self.callback = made.help, made.epilog, made.params, made.callback
        return list(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Runs it."""
        with one_line_failures(ctx.command_path):
            return super().invoke(ctx)


class Described(TyperCommand):
    """A command: `parser`, called when it is wanted, describes the flags; `run` takes the words: its exit code."""

    def __init__(self, name: str, short: str, parser: Parser, run: Run) -> None:
        super().__init__(name, short_help=short, rich_markup_mode=None)
        self._parser, self._run = parser, run
        self._takes_beginnings: bool | None = None

    def get_params(self, ctx: Any) -> list[Any]:
        """The flags, and `--help`; reads them once."""
        if self._takes_beginnings is None:
            parser = self._parser()
            self.help, self.epilog = _unwrapped(parser.description), _unwrapped(parser.epilog)
            self.params, self._takes_beginnings = _params(parser), parser.allow_abbrev
        return list(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answers `--help`, and refuses a flag that is not there with the nearest one; leaves all else as it is."""
        own = args[: args.index("--")] if "--" in args else args
        own = [] if self.name == "export" and args[:1] == ["heads"] else own  # which has flags of its own
        if "--help" in own or "-h" in own:
            return list(super().parse_args(ctx, ["--help"]))
        known = [name for param in self.get_params(ctx) for name in param.opts if name.startswith("--")]
        for word in own:
            flag = word.partition("=")[0]
            is_known = flag in known or (self._takes_beginnings and any(name.startswith(flag) for name in known))
            if flag.startswith("--") and not is_known:
                nearest = difflib.get_close_matches(flag, known, 1)
                ctx.fail(f"No such option: {flag}" + (f" Did you mean {nearest[0]}?" if nearest else ""))
        ctx.args = list(args)
        return list(args)

    def invoke(self, ctx: Any) -> None:
        """Runs the command and ends with its exit code."""
        ctx.exit(self._run(ctx.args))


class Training(TyperGroup):
    """`train`, whose commands are its parser's."""

    def __init__(self, name: str, short: str) -> None:
        super().__init__(name=name, help=short, short_help=short, rich_markup_mode=None)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's signature
        """Their names; only now is it worth importing them."""
        self._make()
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name."""
        self._make()
        return super().get_command(ctx, cmd_name)

    def _make(self) -> None:
        if self.commands:
            return
        with one_line_failures("polyhead train"):
            from train.cli import main, parser  # noqa: PLC0415 - imported when it is wanted

        (below,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
        described = {choice.dest: str(choice.help) for choice in below._choices_actions}
        for name, made in below.choices.items():
            self.add_command(
                Described(
                    name,
                    described.get(name, ""),
                    lambda made=made: made,  # type: ignore[misc]
                    lambda arguments, name=name: main([name, *arguments]),  # type: ignore[misc]
                )
            )


def _params(parser: argparse.ArgumentParser) -> list[Any]:
    """Options and arguments as Typer makes them of a function with these parameters; argparse reads their values."""

    def nothing() -> None:
        pass

    parameters = [
        _parameter(f"p{place}", action)
        for place, action in enumerate(parser._actions)
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
    ]
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # as inspect reads it
    nothing.__annotations__ = {one.name: one.annotation for one in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(nothing)
    made: Any = typer.main.get_command(app)
    return list(made.params)


def _parameter(name: str, action: argparse.Action) -> inspect.Parameter:
    text = (action.help or "") % {**vars(action), "prog": ""} if action.help else ""
    if action.default not in (None, False, argparse.SUPPRESS, [], ()) and "default" not in text:
        default = action.default
        text += f" [default: {' '.join(map(str, default)) if isinstance(default, tuple | list) else default}]"
    choices = [str(choice) for choice in action.choices or ()]

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    metavar = action.metavar if isinstance(action.metavar, str) else None
    shown: dict[str, Any] = {"help": text, "show_default": False, "autocompletion": complete if choices else None}
    if not action.option_strings:
        kind: Any = Annotated[str | None, typer.Argument(metavar=metavar, **shown)]
    elif action.nargs == 0:
        kind = Annotated[bool, typer.Option(*action.option_strings, help=text, show_default=False)]
    else:
        metavar = metavar or (f"[{'|'.join(choices)}]" if choices else action.dest.upper())
        metavar += " ..." if action.nargs == "+" else ""
        kind = Annotated[str | None, typer.Option(*action.option_strings, metavar=metavar, **shown)]
    default = False if action.nargs == 0 else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _unwrapped(text: str | None) -> str | None:
    """Text whose lines stay as they are."""
    return None if text is None else "\n\n".join(f"\b\n{part}" for part in inspect.cleandoc(text).split("\n\n"))
