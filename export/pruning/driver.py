"""Prunes a checkpoint, and records what was removed and what that cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from export.checkpoint import Checkpoint, require_embedding
from export.errors import ParityError, SourceError
from export.heads.importance import embed
from export.precision import Precision
from export.pruning.curve import RANDOM_ORDERS, counts, draw_curve, most_within
from export.pruning.material import Material, read_material
from export.pruning.orders import Definition, importance, least_first, random_orders
from export.pruning.quality import Judge, PruningQuality
from export.pruning.removal import remove_heads
from export.pruning.timing import time_steps, with_bounds
from export.tokens import TokenizedText
from model.encoder import Encoder

SCHEMA_VERSION = 1
MASKED_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class PruningRequest:
    """How much is to be removed, and by what.

    Attributes:
        share: of the heads, or None.
        lose: points of quality that may be lost, where `share` is None.
        definition: of importance; None for the default.
        pairs: file of rated pairs, or None.
        calibration: text, one a line, in place of what ships with the project; not used with pairs.
        with_curve: whether quality and speed are measured along the whole way.
    """

    share: float | None = None
    lose: float | None = None
    definition: Definition | None = None
    pairs: Path | None = None
    calibration: Path | None = None
    with_curve: bool = True


@dataclass(frozen=True, slots=True)
class Pruned:
    """A checkpoint with fewer heads.

    Attributes:
        checkpoint: as before but for its encoder.
        record: for the manifest: what was asked, what was removed, quality before and after.
        curve: `pruning.json`, or None where no curve was asked for.
    """

    checkpoint: Checkpoint
    record: dict[str, Any]
    curve: dict[str, Any] | None


def prune(checkpoint: Checkpoint, request: PruningRequest, precision: Precision = "fp32") -> Pruned:
    """Chooses heads, removes them, and measures what that cost.

    Args:
        checkpoint: left as it is.
        request: how much, and by what.
        precision: of the graphs that are timed.

    Raises:
        SourceError: a file cannot be used, or nothing is left to choose from.
        UnsupportedModel: the network is for another task than embedding.
        ParityError: the pruned network does not compute what the masked one does.
    """
    require_embedding(checkpoint, "the cost of removed heads is measured")
    encoder = checkpoint.encoder
    heads = sum(encoder.config.num_heads)
    if not heads:
        raise SourceError(f"{checkpoint.name} has no heads to remove")
    material = read_material(checkpoint, request.pairs, request.calibration)
    definition = request.definition or ("loss_gradient" if material.pairs else "jacobian")
    order = least_first(importance(encoder, definition, material.texts, material.pairs))
    removed = order[: _count(encoder, request, material.judge, order)]
    pruned = remove_heads(encoder, removed)
    made = replace(checkpoint, encoder=pruned)
    before, after = material.judge.judge_whole(), material.judge.judge(pruned)
    record = {
        "asked": {"share": request.share} if request.share is not None else {"points": request.lose},
        "definition": definition,
        **material.described,
        "num_heads_before": list(encoder.config.num_heads),
        "removed": [list(encoder.config.head_place(head)) for head in removed],
        "share": round(len(removed) / heads, 4),
        "measure": material.judge.measure,
        "before": _rounded(before),
        "after": _rounded(after),
        "masked_difference": _masked_difference(encoder, pruned, removed, material.texts),
    }
    curve = _curve(checkpoint, record, order, material, precision) if request.with_curve else None
    return Pruned(made, record, curve)


def _count(encoder: Encoder, request: PruningRequest, judge: Judge, order: Sequence[int]) -> int:
    if request.share is not None:
        return round(request.share * len(order))
    if request.lose is None:
        raise ValueError("neither a share nor a loss was asked for")
    return most_within(encoder, judge, order, request.lose)


def _masked_difference(
    encoder: Encoder, pruned: Encoder, removed: Sequence[int], texts: Sequence[TokenizedText]
) -> float:
    """Largest difference between embeddings of the pruned and the masked network.

    Raises:
        ParityError: it is above 1e-6.
    """
    gates = torch.ones(sum(encoder.config.num_heads))
    gates[list(removed)] = 0
    difference = float(abs(embed(pruned, texts[:32]) - embed(encoder, texts[:32], gates)).max())
    if difference > MASKED_TOLERANCE:
        raise ParityError(
            f"without {len(removed)} heads the embedding differs by {difference:.1e} from that with their gates at 0; "
            f"allowed is {MASKED_TOLERANCE:.0e}"
        )
    return difference


def _curve(
    checkpoint: Checkpoint, record: dict[str, Any], order: Sequence[int], material: Material, precision: Precision
) -> dict[str, Any]:
    encoder, heads = checkpoint.encoder, len(order)
    removals = sorted({*counts(heads), len(record["removed"])})
    points = draw_curve(encoder, material.judge, order, random_orders(heads, RANDOM_ORDERS), removals)
    latency = time_steps(checkpoint, order, [*removals, heads], material.judge.texts, precision)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": checkpoint.name,
        "precision": precision,
        **{name: record[name] for name in ("definition", "measure")},
        "heads": heads,
        "random_orders": RANDOM_ORDERS,
        "chosen": len(record["removed"]),
        "chosen_share": record["share"],
        "curve": [point.to_dict(heads, points[0].quality) for point in points],
        **with_bounds(latency, heads),
    }


def _rounded(quality: PruningQuality) -> dict[str, float]:
    return {name: round(value, 6) for name, value in asdict(quality).items()}
