"""What every training command is told: how long, how fast, and where to."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from export.command import count, not_negative, positive, share, whole
from train.options import flag

TrainingPrecision = Literal["fp32", "bf16"]
OptimizerName = Literal["adamw", "muon"]
CostPrecision = Literal["fp32", "int8"]
Kind = Literal["heads", "neurons", "layers"]  # of what a network may lose for a speed
KINDS: tuple[Kind, ...] = get_args(Kind)
WEIGHTS, CHECKPOINT = "model.safetensors", "checkpoint.safetensors"  # files of the folder that a run writes
SPEED = ("learning_rate", "optimizer", "warm_up", "weight_decay", "precision", "device")


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
    """The share of heads left out at a step: a V from the full share to 0 and back (Zhou et al. 2020, section 3.3).

    The network's configuration never holds it, so no manifest does.
    """
    return settings.head_dropout * abs(1 - 2 * step / max(1, steps - 1))
