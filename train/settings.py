"""What every training command is told: how long, how fast, and where to."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

TrainingPrecision = Literal["fp32", "bf16"]
OptimizerName = Literal["adamw", "muon"]
CostPrecision = Literal["fp32", "int8"]
Kind = Literal["heads", "neurons", "layers"]  # of what a network may lose for a speed
KINDS: tuple[Kind, ...] = get_args(Kind)
WEIGHTS, CHECKPOINT = "model.safetensors", "checkpoint.safetensors"  # files of the folder that a run writes


def has_checkpoint(folder: Path) -> bool:
    """Whether a run that began in a folder can go on: it has a checkpoint, and is not done."""
    return (folder / CHECKPOINT).is_file()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """One run of the loop.

    Attributes:
        output: folder that the run writes.
        seed: decides the order of the data and every random number.
        epochs: passes over the data; a share of one is fine.
        batch_size: examples a step.
        learning_rate: the highest, after warming up.
        embedding_rate: factor on it for token and position embeddings.
        optimizer: AdamW (Loshchilov and Hutter 2019), or Muon for the matrices of the encoder's layers.
        warm_up: share of the steps in which the rate rises from 0; then it falls to 0 along half a cosine.
        weight_decay: of matrices.
        clip: longest gradient.
        dropout: share of hidden values left out.
        head_dropout: share of heads left out, at the end of its schedule.
        evaluations: how often the network is judged, besides the start.
        save_seconds: longest time between checkpoints.
        precision: `bf16` runs products in bfloat16 (autocast); weights stay float32.
        device: of torch.
        resume: go on from the folder's checkpoint.
    """

    output: Path
    seed: int = 0
    epochs: float = 1.0
    batch_size: int = 64
    learning_rate: float = 3e-4
    embedding_rate: float = 1.0
    optimizer: OptimizerName = "adamw"
    warm_up: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    dropout: float = 0.0
    head_dropout: float = 0.0
    evaluations: int = 10
    save_seconds: float = 60.0
    precision: TrainingPrecision = "fp32"
    device: str = "cpu"
    resume: bool = False

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
