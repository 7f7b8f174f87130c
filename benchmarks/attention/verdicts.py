"""What each thing said about multi-head attention comes to: one line with its figure, from the tables measured before.

A figure that can be computed is; what only papers measured stands in a table of its own, marked as read.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.attention.shapes import HIDDEN
from benchmarks.attention.softmax import HEADS, Drawn, draw, scores
from benchmarks.lib.report import Table

Rows = Mapping[str, list[dict[str, Any]]]
MINILM = {"layers": 6, "heads": 12, "hidden": 384}
PUBLISHED = (
    ("8 heads score 25.8 BLEU, 16 score 25.5, 32 score 25.0", "h = 1, 4, 8, 16, 32: 24.9, 25.5, 25.8, 25.8, 25.4", "A"),
    ("fewer heads hurt more than fewer layers", "h 8 to 4 costs 0.3 BLEU, N 6 to 4 costs 0.5; h = 1 costs 0.9", "A, C"),
    ("d_k must be D / h", "d_k = 16, 32 of 512 / 8 = 64: 25.1, 25.4 against 25.8 BLEU", "B"),
)


def verdicts(rows: Rows) -> Table:
    """A row a claim; claims whose tables were not measured are left out."""
    table = Table("claims", "What is said, and what is true", ("claim", "holds", "what_is_true", "figure"))
    made = (_parameters, _any_head_count, _free_sizes, _one_head, _average, _saturation, _scalar_heads, _exports)
    for make in (*made, _linear_memory, _weights_on_demand, _neutral, _speed, _map_bytes):
        if cells := make(rows):
            table.add(**dict(zip(table.columns, cells, strict=True)))
    return table


def published() -> Table:
    """Claims that only training on translation could check again; read in the paper, not measured here."""
    columns = ("claim", "what_was_published", "vaswani_2017_table_3_rows")
    table = Table("published", "Read, not measured here (newstest2013, development set)", columns)
    for cells in PUBLISHED:
        table.add(**dict(zip(columns, cells, strict=True)))
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


def _parameters(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("every_head_count")):
        return None
    counts = found[0]["parameters_where_h_divides"]
    truth = "the same for every h with d_k = D / h; 4/3 comes from leaving W_O out on one side"
    return (
        "more heads, more parameters (33 % more)",
        "no",
        truth,
        f"{counts} for each h dividing {HIDDEN}; 4 D^2 / 3 D^2",
    )


def _any_head_count(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("every_head_count")):
        return None
    row = found[0]
    truth = "only by convention: any count from 1 to D builds, runs and counts as the formula says"
    figure = f"{row['ran']} of {row['head_counts']} counts, {row['formula_wrong']} off the formula"
    return "D must be divisible by h", "no", truth, figure


def _free_sizes(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("exports")):
        return None
    free = [row for row in found if row["d_k"] != row["d_v"]]
    worst = max(max(row["embedding"], row["attention"]) for row in free)
    truth = "d_k and d_v are free of each other and of D / h, and layers may differ in heads, down to none"
    return "d_k = d_v = D / h", "no", truth, f"{len(free)} such shapes exported, within {worst:.0e}"


def _one_head(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("one_head_is_not_many")):
        return None
    positive = [row["allclose_%"] for row in found if row["weights"].startswith("[0")]
    usual = [row["allclose_%"] for row in found if not row["weights"].startswith("[0")]
    error = max(row["identity_error"] for row in found)
    truth = "S_1 = sum_h S_h / sqrt(h) exactly, but one softmax of a sum is not h softmaxes; equal where all saturate"
    figure = (
        f"allclose in {min(positive):.0f} to {max(positive):.0f} % (all positive), {max(usual):.0f} % (usual weights)"
    )
    return "one head of D is h heads of D / h", "no", f"{truth} (identity within {error:.0e})", figure


def _average(rows: Rows) -> tuple[str, ...] | None:
    if "one_head_is_not_many" not in rows:
        return None
    distances = [distance_to_average(draw(32, positive=False, seed=seed)) for seed in range(20)]
    truth = "one head averages scores, not weights"
    return "one head is the average of h", "no", truth, f"total variation {sum(distances) / 20:.2f} (usual weights)"


def _saturation(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("scale")):
        return None
    one, many = found[0], next(row for row in found if row["heads"] == HEADS)
    truth = "1 / sqrt(d_k) does: with it scores spread alike for every h; without it splitting helps by sqrt(h)"
    scaled = f"sd {one['scaled_sd']:.2f} and {many['scaled_sd']:.2f} scaled"
    return (
        *("splitting keeps the softmax from saturating", "no", truth),
        f"h = 1, {HEADS}: {scaled}; {one['unscaled_sd']:.1f} and {many['unscaled_sd']:.1f} not",
    )


def _scalar_heads(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("rank")):
        return None
    row = found[-1]
    truth = "works, but scores have rank 1: a query sees the largest key, or the smallest where it is negative"
    maps = row["map_floats"] // found[1]["map_floats"]
    figure = f"{row['rows_at_an_extreme_%']:.0f} % of rows; {maps} times the maps of h = 8"
    return "h = D, each head a scalar", "yes", truth, figure


def _exports(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("exports")):
        return None
    layers = sum(heads != "0" for row in found for heads in row["heads_a_layer"].split())
    fused = sum(row["fused"] for row in found)
    worst = max(max(row["embedding"], row["attention"]) for row in found)
    truth = "every layer with heads is one fused operator"
    return "every shape exports", "yes", truth, f"{fused} fused of {layers}, largest difference {worst:.0e}"


def _linear_memory(rows: Rows) -> tuple[str, ...] | None:
    found = {row["way"]: row["exponent"] for row in rows.get("memory", [])}
    if None in (found.get("graph, no weights"), found.get("operator MultiHeadAttention")):
        return None
    truth = (
        "not on this CPU: ONNX Runtime's Attention holds one layer's scores at a time; its MultiHeadAttention is "
        "linear, but takes no padding"
    )
    ours, theirs = found["graph, no weights"], found["operator MultiHeadAttention"]
    return "fused attention takes O(n) memory", "no", truth, f"growth n^{ours:.2f} against n^{theirs:.2f}"


def _weights_on_demand(rows: Rows) -> tuple[str, ...] | None:
    found = {row["way"]: row for row in rows.get("memory", [])}
    if not {"graph, no weights", "graph, all layers' weights"} <= set(found):
        return None
    ways = ("graph, no weights", "graph, last layer's weights", "graph, all layers' weights")
    longest = max(filter(str.isdigit, found[ways[0]]), key=int)  # columns are lengths
    figures = " / ".join(f"{found[way][longest]:.0f}" for way in ways)
    truth = "yes: what nobody asks for is not computed"
    return "weights cost only when asked for", "yes", truth, f"MB without, last layer, all: {figures}"


def _neutral(rows: Rows) -> tuple[str, ...] | None:
    if not (found := rows.get("value_stream")):
        return None
    largest = max(row["neutral_change"] for row in found)
    truth = "each is the identity at its neutral setting, to the bit, and exports with fused attention"
    return "value residual, gate, ... cost fidelity", "no", truth, f"largest change {largest:g}, {len(found)} options"


def _speed(rows: Rows) -> tuple[str, ...]:
    del rows  # arithmetic
    size = MINILM["hidden"]
    bounds = " to ".join(f"{fastest(size, 33, share):.2f}" for share in (0.3, 0.4))
    truth = "whether they can go depends on task and retraining; a layer is at most 1 / (1 - s p) times as fast"
    return "30 to 40 % of heads can go: as much faster", "no", truth, f"{bounds} x at D = {size}, n = 33"


def _map_bytes(rows: Rows) -> tuple[str, ...]:
    del rows  # arithmetic
    floats = MINILM["layers"] * MINILM["heads"] * 512**2
    truth = "L h n^2 floats, whatever d_k is"
    return "maps are small beside the model", "no", truth, f"{4 * floats / 1e6:.1f} MB for one text of 512, MiniLM-L6"
