"""Settings as fields of dataclasses that are flags of the command line, and what every training command is told."""

import argparse
import math
from collections.abc import Collection
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from export.command import count, not_negative, number, positive, share, whole

Settings = TypeVar("Settings")
TrainingPrecision = Literal["fp32", "bf16"]
OptimizerName = Literal["adamw", "muon"]
CostPrecision = Literal["fp32", "int8"]
Kind = Literal["heads", "neurons", "layers"]  # of what a network may lose for a speed
KINDS: tuple[Kind, ...] = get_args(Kind)
WEIGHTS, CHECKPOINT = "model.safetensors", "checkpoint.safetensors"  # files of the folder that a run writes
SPEED = ("learning_rate", "optimizer", "warm_up", "weight_decay", "precision", "device")

several = number(int, lambda value: value > 1, "a whole number above 1, as intervals need two")


def flag(text: str, default: Any = MISSING, *, name: str = "", is_alternative: bool = False, **options: Any) -> Any:
    """A field that a flag sets, which is required where the field has no default; `text` is what `--help` says.

    `name` is the flag's, if it is not the field's. At most one of the flags that are alternatives may be given. The
    options are `add_argument`'s, where the field's type does not say them.
    """
    described = {"name": name, "is_alternative": is_alternative, "help": text, **options}
    return field(default=default, metadata=described)


def model_flag(text: str) -> Any:
    """The field `model`: a hub id, a folder or an artifact, which stands without a flag; None for the default model."""
    return flag(f"{text} (default: the default model)", None, name="model", nargs="?", metavar="MODEL")


def add_flags(made: argparse._ActionsContainer, kind: type, names: Collection[str] = ()) -> None:
    """Adds the flags of a dataclass of settings and of those within it; with `names` the flags of these fields."""
    alternatives: argparse._ActionsContainer | None = None
    for each in fields(kind):
        if is_dataclass(each.type):
            add_flags(made, each.type)  # type: ignore[arg-type]
        if not each.metadata or (names and each.name not in names):
            continue
        default = None if each.default is MISSING else each.default
        options = {**_options_of(each.type), "default": default, **each.metadata}
        name, place = options.pop("name"), made
        if options.pop("is_alternative"):
            place = alternatives = alternatives or made.add_mutually_exclusive_group()
        if name != each.name:
            options = {"dest": each.name, "required": each.default is MISSING, **options}
        place.add_argument(name or f"--{each.name.replace('_', '-')}", **options)


def _options_of(kind: Any) -> dict[str, Any]:
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple:
        return {"nargs": "+", **_options_of(get_args(kind)[0])}
    return {"type": Path} if Path in (kind, *get_args(kind)) else {}


def settings_of(kind: type[Settings], options: argparse.Namespace) -> Settings:
    """A dataclass of settings, and those within it, with what the flags of its fields' names gave."""
    given: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if is_dataclass(each.type):
            given[each.name] = settings_of(each.type, options)  # type: ignore[arg-type]
        elif hasattr(options, each.name):
            value = getattr(options, each.name)
            given[each.name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)


def has_checkpoint(folder: Path) -> bool:
    """Whether a run that began in a folder can go on: it has a checkpoint, and is not done."""
    return (folder / CHECKPOINT).is_file()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """One run of the loop; `SPEED` are the fields that say how fast is learned, and on what."""

    output: Path = flag("folder to write", metavar="DIR")
    resume: bool = flag("go on from the checkpoint in DIR, with the same flags", default=False)
    seed: int = flag("decides the order of the data (default: %(default)s)", 0, type=whole)
    epochs: float = flag("passes over the data (default: %(default)g)", 1.0, type=positive)
    batch_size: int = flag("examples a step (default: %(default)s)", 64, type=count)
    embedding_rate: float = flag(
        "factor on the rate for token and position embeddings, 0 leaves them alone (default: %(default)g)",
        1.0,
        type=not_negative,
    )
    dropout: float = flag("share of hidden values left out (default: 0)", 0.0, type=share)
    head_dropout: float = flag("share of heads left out, at both ends (default: 0)", 0.0, type=share)
    evaluations: int = flag("times the network is judged (default: %(default)s)", 10, type=count)  # besides the start
    learning_rate: float = flag("the highest rate (default: %(default)g)", 3e-4, type=positive)
    optimizer: OptimizerName = flag(
        "muon is for the layers' matrices and learns more in a step, which takes longer (default: %(default)s)",
        "adamw",
    )
    warm_up: float = flag("share of the steps in which the rate rises (default: %(default)g)", 0.05, type=share)
    weight_decay: float = flag("of matrices (default: %(default)g)", 0.01, type=not_negative)
    precision: TrainingPrecision = flag("of products; weights stay fp32 (default: fp32)", "fp32")
    device: str = flag("of torch: cpu, cuda (default: %(default)s)", "cpu")
    clip: float = 1.0  # longest gradient
    save_seconds: float = 60.0  # longest time between checkpoints

    def record(self) -> dict[str, Any]:
        """What decides the result, as JSON; a run may go on only with the same."""
        left_out = ("output", "resume", "save_seconds")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def rate_at(step: int, steps: int, settings: RunSettings) -> float:
    """Share of the highest learning rate at a step: a line up, then half a cosine down to 0."""
    rising = max(1, round(settings.warm_up * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def head_dropout_at(step: int, steps: int, settings: RunSettings) -> float:
    """The share of heads left out at a step: a V from the full share to 0 and back (Zhou et al. 2020, section 3.3)."""
    return settings.head_dropout * abs(1 - 2 * step / max(1, steps - 1))
