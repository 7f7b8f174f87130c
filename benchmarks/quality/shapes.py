"""What does speed cost, by the parts that are removed for it: heads, feed-forward neurons, layers, or all three?

Each network is chosen as `polyhead train heal --faster` chooses it and fitted in closed form; nothing is trained.
Quality is measured as by `quality artifacts`, on the network in PyTorch. The speed that counts is the measured one: CPU
time of the network's fp32 graph in ONNX Runtime on one thread, alternately with the whole network's.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.lib.command import new_file, parser_of, program, whole
from benchmarks.lib.report import Table, emit
from benchmarks.quality.artifacts import Row, Vectorized
from benchmarks.quality.vectors import Vectors, read_definitions
from export.heads.corpus import read_pairs
from export.heads.importance import embed
from export.heads.subject import find_subject
from export.pruning.picture import Line, Panel, Points, draw_panels, plain
from export.texts import batches, tokenize
from model.encoder import Encoder
from train.costs import measure_costs, time_networks
from train.distillation import LONGEST, read_material
from train.errors import RunError
from train.heal import CHOOSING_TEXTS
from train.reconstruct import reconstruct
from train.settings import KINDS, Kind
from train.shape import ShapeChoice, apply_shape

REMOVED: dict[str, tuple[Kind, ...]] = {**{kind: (kind,) for kind in KINDS}, "all": KINDS}
SPEEDS = (1.25, 1.5, 2.0)
WORDS = 1_000  # to find, among as many definitions
WHAT_IS_DRAWN = (
    ("Cosine to the whole network", "cosine mean"),
    ("Spearman x 100", "spearman"),
    ("Recall@10, % of the whole network's", "recall %"),
)


@program
def main() -> None:
    """Chooses, fits, judges and times a network for each speed and each kind of part; prints and draws."""
    parser = parser_of(__doc__, "pairs", takes="about half an hour")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="artifact, folder or id (default: the default model)")
    parser.add_argument("--texts", type=Path, required=True, metavar="FILE", help="texts to choose by and to fit on")
    parser.add_argument("--definitions", type=Path, required=True, metavar="CSV", help="words and their definitions")
    parser.add_argument("--fitting-texts", type=whole, default=1_500, help="texts of the closed-form fit")
    parser.add_argument("--plot", type=new_file, metavar="SVG", help="picture of cosine, Spearman and recall by speed")
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
        cells = {"removed": name, "asked": faster, "estimated": estimated, "measured": seconds[0] / seconds[1]}
        parts = {
            "layers": len(shape.layers),
            "heads": " ".join(str(len(heads)) for heads in shape.heads),
            "neurons": " ".join(str(len(neurons)) for neurons in shape.neurons),
        }
        table.add(**cells, **parts, **judge(student).figures(first))
    if arguments.plot:
        whole_network = {"measured": 1.0, "cosine mean": 1.0, "spearman": first.spearman(), "recall %": 100.0}
        drawn = draw_panels("Fitted networks against their speed", panels(whole_network, table.rows))
        arguments.plot.write_text(drawn, encoding="utf-8")
    emit("quality shapes", [table], pairs=len(pairs.ratings), words=len(defined))


def panels(whole_network: Row, rows: Sequence[Row]) -> list[Panel]:
    """A panel a figure, with a line from the whole network on for each kind of part."""
    by_kind = {name: [row for row in rows if row["removed"] == name] for name in REMOVED}

    def points(of: Sequence[Row], column: str) -> Points:
        return plain(sorted((row["measured"], row[column]) for row in [whole_network, *of]))

    return [
        Panel(title, "times as fast", [Line(name, points(of, column)) for name, of in by_kind.items() if of])
        for title, column in WHAT_IS_DRAWN
    ]
