"""What is said about multi-head attention, and what is true: each claim in numbers, computed here and now.

No model is needed: networks, scores and value streams are randomly initialised, small graphs are exported and run.
Memory is measured in processes of their own, so other work on the machine does not change it. A figure that can be
computed is; what only papers measured stands in a table of its own, marked as read.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.attention.claim_tables import (
    HEADS,
    NETWORK_SIZE,
    Drawn,
    draw,
    every_head_count,
    exports,
    identities,
    one_head_or_many,
    rank_of_scores,
    scale_not_splitting,
    scores,
)
from benchmarks.attention.memory import LENGTHS, LONGEST, memory
from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.report import Table, emit

SECTIONS = ("shapes", "softmax", "values", "memory")
MINILM = {"layers": 6, "heads": 12, "hidden": 384}
PUBLISHED = (
    ("8 heads score 25.8 BLEU, 16 score 25.5, 32 score 25.0", "h = 1, 4, 8, 16, 32: 24.9, 25.5, 25.8, 25.8, 25.4", "A"),
    ("fewer heads hurt more than fewer layers", "h 8 to 4 costs 0.3 BLEU, N 6 to 4 costs 0.5; h = 1 costs 0.9", "A, C"),
    ("d_k must be D / h", "d_k = 16, 32 of 512 / 8 = 64: 25.1, 25.4 against 25.8 BLEU", "B"),
)
Rows = Mapping[str, list[dict[str, Any]]]


@program
def main() -> None:
    """Measures the sections asked for and prints the claims first, then the tables behind them."""
    arguments = _parse()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # the networks are small: threads cost more than they bring
    makers = [make for name, makers in sections(arguments).items() if name in arguments.only for make in makers]
    tables = [make() for make in tqdm(makers, desc="measuring", unit="table", leave=False, disable=None)]
    claims = verdicts({table.name: table.rows for table in tables})
    columns = ("claim", "what_was_published", "vaswani_2017_table_3_rows")
    published = Table("published", "Read, not measured here (newstest2013, development set)", columns)
    for cells in PUBLISHED:
        published.add(**dict(zip(columns, cells, strict=True)))
    emit("attention claims", [claims, published, *tables], runs=arguments.runs)


def sections(arguments: argparse.Namespace) -> Mapping[str, list[Callable[[], Table]]]:
    """What measures each section's tables."""
    return {
        "shapes": [every_head_count, exports],
        "softmax": [
            lambda: one_head_or_many(arguments.runs, tuple(arguments.tokens)),
            scale_not_splitting,
            rank_of_scores,
        ],
        "values": [identities],
        "memory": [lambda: memory(arguments.lengths)],
    }


def verdicts(rows: Rows) -> Table:
    """A row a claim; claims whose tables were not measured are left out."""
    table = Table("claims", "What is said, and what is true", ("claim", "holds", "what_is_true", "figure"))

    def claim(said: str, holds: str, truth: str, figure: str) -> None:
        table.add(claim=said, holds=holds, what_is_true=truth, figure=figure)

    if found := rows.get("every_head_count"):
        row = found[0]
        claim(
            "more heads, more parameters (33 % more)",
            "no",
            "the same for every h with d_k = D / h; 4/3 comes from leaving W_O out on one side",
            f"{row['parameters_where_h_divides']} for each h dividing {NETWORK_SIZE}; 4 D^2 / 3 D^2",
        )
        claim(
            "D must be divisible by h",
            "no",
            "only by convention: any count from 1 to D builds, runs and counts as the formula says",
            f"{row['ran']} of {row['head_counts']} counts, {row['formula_wrong']} off the formula",
        )
    if found := rows.get("exports"):
        free = [row for row in found if row["d_k"] != row["d_v"]]
        worst = max(max(row["embedding"], row["attention"]) for row in free)
        claim(
            "d_k = d_v = D / h",
            "no",
            "d_k and d_v are free of each other and of D / h, and layers may differ in heads, down to none",
            f"{len(free)} such shapes exported, within {worst:.0e}",
        )
    if found := rows.get("one_head_is_not_many"):
        positive = [row["allclose_%"] for row in found if row["weights"].startswith("[0")]
        usual = [row["allclose_%"] for row in found if not row["weights"].startswith("[0")]
        error = max(row["identity_error"] for row in found)
        truth = "S_1 = sum_h S_h / sqrt(h) exactly, but one softmax of a sum is not h softmaxes; equal if all saturate"
        claim(
            "one head of D is h heads of D / h",
            "no",
            f"{truth} (identity within {error:.0e})",
            f"allclose in {min(positive):.0f} to {max(positive):.0f} % (all positive), {max(usual):.0f} % (usual)",
        )
        distances = [distance_to_average(draw(32, positive=False, seed=seed)) for seed in range(20)]
        claim(
            "one head is the average of h",
            "no",
            "one head averages scores, not weights",
            f"total variation {sum(distances) / 20:.2f} (usual weights)",
        )
    if found := rows.get("scale"):
        one, many = found[0], next(row for row in found if row["heads"] == HEADS)
        scaled = f"sd {one['scaled_sd']:.2f} and {many['scaled_sd']:.2f} scaled"
        claim(
            "splitting keeps the softmax from saturating",
            "no",
            "1 / sqrt(d_k) does: with it scores spread alike for every h; without it splitting helps by sqrt(h)",
            f"h = 1, {HEADS}: {scaled}; {one['unscaled_sd']:.1f} and {many['unscaled_sd']:.1f} not",
        )
    if found := rows.get("rank"):
        maps = found[-1]["map_floats"] // found[1]["map_floats"]
        claim(
            "h = D, each head a scalar",
            "yes",
            "works, but scores have rank 1: a query sees the largest key, or the smallest if it is negative",
            f"{found[-1]['rows_at_an_extreme_%']:.0f} % of rows; {maps} times the maps of h = 8",
        )
    if found := rows.get("exports"):
        layers = sum(heads != "0" for row in found for heads in row["heads_a_layer"].split())
        worst = max(max(row["embedding"], row["attention"]) for row in found)
        claim(
            "every shape exports",
            "yes",
            "every layer with heads is one fused operator",
            f"{sum(row['fused'] for row in found)} fused of {layers}, largest difference {worst:.0e}",
        )
    ways = {row["way"]: row for row in rows.get("memory", [])}
    ours, theirs = (ways.get(way, {}).get("exponent") for way in ("graph, no weights", "operator MultiHeadAttention"))
    if ours is not None and theirs is not None:
        claim(
            "fused attention takes O(n) memory",
            "no",
            "not on this CPU: ONNX Runtime's Attention holds one layer's scores at a time; its MultiHeadAttention is "
            "linear, but accepts no padding",
            f"growth n^{ours:.2f} against n^{theirs:.2f}",
        )
    if {"graph, no weights", "graph, all layers' weights"} <= set(ways):
        graphs = ("graph, no weights", "graph, last layer's weights", "graph, all layers' weights")
        longest = max(filter(str.isdigit, ways[graphs[0]]), key=int)  # columns are lengths
        figures = " / ".join(f"{ways[way][longest]:.0f}" for way in graphs)
        claim(
            "weights cost only when asked for",
            "yes",
            "yes: weights that no one asks for are not computed",
            f"MB without, last layer, all: {figures}",
        )
    if found := rows.get("value_stream"):
        claim(
            "value residual, gate, ... cost fidelity",
            "no",
            "each is the identity at its neutral setting, to the bit, and exports with fused attention",
            f"largest change {max(row['neutral_change'] for row in found):g}, {len(found)} options",
        )
    bounds = " to ".join(f"{fastest(MINILM['hidden'], 33, share):.2f}" for share in (0.3, 0.4))
    claim(
        "30 to 40 % of heads can go: as much faster",
        "no",
        "whether they can go depends on task and retraining; a layer is at most 1 / (1 - s p) times as fast",
        f"{bounds} x at D = {MINILM['hidden']}, n = 33",
    )
    megabytes = 4e-6 * MINILM["layers"] * MINILM["heads"] * 512**2
    claim(
        "maps are small beside the model",
        "no",
        "L h n^2 floats, whatever d_k is",
        f"{megabytes:.1f} MB for one text of 512, MiniLM-L6",
    )
    return table


def attention_share(hidden: int, tokens: int) -> float:
    """Attention's share of a layer's multiplications with a feed-forward of 4 D: (2 D + n) / (6 D + n)."""
    return (2 * hidden + tokens) / (6 * hidden + tokens)


def fastest(hidden: int, tokens: int, removed: float) -> float:
    """The most that a layer can gain when so large a share of its heads is removed: 1 / (1 - s p)."""
    return 1 / (1 - attention_share(hidden, tokens) * removed)


def distance_to_average(drawn: Drawn, heads: int = HEADS) -> float:
    """Mean total variation between the mean of the heads' weights and the weights of one head of all dimensions."""
    mean = scores(drawn, heads).softmax(dim=-1).mean(dim=0)
    return float((mean - scores(drawn, 1)[0].softmax(dim=-1)).abs().sum(dim=-1).mean() / 2)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="a few minutes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections to measure")
    parser.add_argument("--runs", type=whole, default=100, help="random texts a row of one head beside many")
    parser.add_argument("--tokens", type=whole, nargs="+", default=[2, 10, 20, 32], help="their lengths")
    parser.add_argument(
        "--lengths", type=whole, nargs="+", default=LENGTHS, help="tokens of the memory table, ascending"
    )
    arguments = parser.parse_args()
    lengths = arguments.lengths
    if len(lengths) < 2 or lengths != sorted(set(lengths)) or lengths[-1] > LONGEST:
        parser.error(f"--lengths: at least two, ascending, up to {LONGEST}")
    return arguments
