"""How many tokens a second does training take in, in each precision?

The step of `polyhead train heal`: the whole network and one without a third of its heads, forward, backward, AdamW. One
row a precision, in turns. Evaluations and checkpoints are not counted.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from benchmarks.lib.command import parser_of, program, seed, whole
from benchmarks.lib.report import Table, emit
from benchmarks.lib.texts import Corpus, fingerprint, load_texts
from benchmarks.lib.timing import Spread, in_turns
from export.checkpoint import Checkpoint
from export.heads.subject import find_subject
from export.pruning.removal import remove_heads
from train.distillation import Distillation, Texts, Weights
from train.loop import train
from train.progress import Progress
from train.settings import RunSettings, TrainingPrecision

HELD_OUT = 8  # texts; a run has to be judged
ONE_OF = 3  # heads, of which one goes


def training(checkpoint: Checkpoint, material: Texts, settings: RunSettings) -> Callable[[], Progress]:
    """A run over all texts once, in a folder that is thrown away."""
    config = checkpoint.encoder.config

    def run() -> Progress:
        student = remove_heads(checkpoint.encoder, range(0, sum(config.num_heads), ONE_OF))
        layers = range(config.num_layers)
        recipe = Distillation(student, checkpoint, material, Weights(), settings, described={}, layers=layers)
        with TemporaryDirectory() as folder:
            return train(recipe, replace(settings, output=Path(folder) / "run"))

    return run


@program
def main() -> None:
    """Trains in each precision in turns, and prints rates."""
    arguments = _parse()
    checkpoint = find_subject(arguments.model).checkpoint
    texts = load_texts(arguments.corpus, arguments.texts + HELD_OUT, arguments.seed)
    material = Texts(learned=texts[HELD_OUT:], held_out=texts[:HELD_OUT], described={})
    settings = RunSettings(output=Path(), batch_size=arguments.batch_size, evaluations=1, device=arguments.device)
    runs = {
        precision: training(checkpoint, material, replace(settings, precision=precision))
        for precision in get_args(TrainingPrecision)
    }
    table = Table(
        "training", f"{arguments.corpus} texts", ("precision", "tokens_per_s", "spread", "step_ms", "tokens_per_step")
    )
    for precision, done in in_turns(runs, arguments.rounds).items():
        speed = Spread.of([run.tokens / run.seconds for run in done])
        steps = sum(run.step for run in done)
        step_ms = 1000 * sum(run.seconds for run in done) / steps
        table.add(
            precision=precision,
            tokens_per_s=speed.median,
            spread=str(speed),
            step_ms=step_ms,
            tokens_per_step=sum(run.tokens for run in done) / steps,
        )
    emit("engine training", [table], texts=fingerprint(texts), batch_size=arguments.batch_size)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about two minutes on two cores with the default model")
    parser.add_argument("--model", help="artifact, folder or hub id; none for the default model")
    parser.add_argument("--corpus", choices=get_args(Corpus), default="short", help="texts to train on")
    parser.add_argument("--texts", type=whole, default=256, help="texts of a run")
    parser.add_argument("--batch-size", type=whole, default=32, help="texts of a step")
    parser.add_argument("--device", default="cpu", help="of torch")
    parser.add_argument("--rounds", type=whole, default=3, help="runs of each precision that count")
    parser.add_argument("--seed", type=seed, default=0, help="of the choice of texts")
    return parser.parse_args()
