"""From a checkpoint and a wish to a checkpoint with fewer heads, and a record of what was removed and what it cost.

Heads are chosen on one half of the text (importance), and judged on the other (quality). Without rated pairs both are
texts that ship with the project: those that int8 is calibrated with, and those that it is judged by.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import onnx_ir
import torch
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.errors import ParityError, SourceError
from export.graph import trace
from export.heads.importance import embed
from export.heads.pairs import TokenizedPairs, read_pairs, tokenize_pairs
from export.heads.tokens import TokenizedText, tokenize
from export.int8.calibration import HELD_OUT_TEXTS, TEXTS, read_texts
from export.precision import Precision, lower
from export.pruning.curve import RANDOM_ORDERS, Point, counts, draw_curve, most_within
from export.pruning.latency import batches_of, compare
from export.pruning.orders import Definition, importance, least_first, random_orders
from export.pruning.quality import Judge, Quality, judge_by_pairs, judge_by_texts
from export.pruning.removal import remove_heads
from model.artifact import hash_file
from model.encoder import Encoder

SCHEMA_VERSION = 1
LONGEST = 128
MOST_IMPORTANCE_TEXTS = 200  # left-out heads run the network once each over them
MASKED_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
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


@dataclass(frozen=True, slots=True)
class _Material:
    """What heads are chosen by, and what the choice is judged by."""

    texts: Sequence[TokenizedText]
    pairs: TokenizedPairs | None
    judge: Judge
    described: dict[str, Any]


def prune(checkpoint: Checkpoint, request: Request, precision: Precision = "fp32") -> Pruned:
    """Chooses heads, removes them, and measures what that cost.

    Args:
        checkpoint: left as it is.
        request: how much, and by what.
        precision: of the graphs that are timed.

    Raises:
        SourceError: a file cannot be used, or nothing is left to choose from.
        ParityError: the pruned network does not compute what the masked one does.
    """
    encoder = checkpoint.encoder
    heads = sum(encoder.config.num_heads)
    if not heads:
        raise SourceError(f"{checkpoint.name} has no heads to remove")
    material = _read_material(checkpoint, request)
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
        "removed": [list(_place(head, encoder)) for head in removed],
        "share": round(len(removed) / heads, 4),
        "measure": material.judge.measure,
        "before": _rounded(before),
        "after": _rounded(after),
        "masked_difference": _masked_difference(encoder, pruned, removed, material.texts),
    }
    curve = _curve(checkpoint, record, order, material, precision) if request.with_curve else None
    return Pruned(made, record, curve)


def apply_removal(encoder: Encoder, record: dict[str, Any]) -> Encoder:
    """The network that a manifest's record of pruning describes, from the whole one."""
    spans = [encoder.config.head_span(layer).start for layer in range(encoder.config.num_layers)]
    return remove_heads(encoder, [spans[layer] + head for layer, head in record["removed"]])


def _count(encoder: Encoder, request: Request, judge: Judge, order: Sequence[int]) -> int:
    if request.share is not None:
        return round(request.share * len(order))
    if request.lose is None:
        raise ValueError("neither a share nor a loss was asked for")
    return most_within(encoder, judge, order, request.lose)


def _read_material(checkpoint: Checkpoint, request: Request) -> _Material:
    longest = min(LONGEST, checkpoint.max_sequence_length)
    if request.pairs:
        pairs = read_pairs(request.pairs)
        halves = [range(half, len(pairs.left), 2) for half in (0, 1)]
        chosen, judged = (tokenize_pairs(pairs.choose(half), checkpoint.tokenizer, longest) for half in halves)
        used = _some_pairs(chosen)
        described = {
            "source": {"name": request.pairs.name, "sha256": hash_file(request.pairs)},
            "chosen_on_pairs": len(used.left),
            "judged_on_pairs": len(judged.left),
        }
        return _Material(used.texts, used, judge_by_pairs(checkpoint.encoder, judged), described)
    texts = _tokenize_some(checkpoint, request.calibration or TEXTS, longest)
    held_out = _tokenize_some(checkpoint, HELD_OUT_TEXTS, longest)
    described = {"chosen_on_texts": len(texts), "judged_on_texts": len(held_out)}
    return _Material(texts, None, judge_by_texts(checkpoint.encoder, held_out), described)


def _some_pairs(pairs: TokenizedPairs) -> TokenizedPairs:
    """Evenly over the file, so that leaving out each head stays affordable."""
    count = min(MOST_IMPORTANCE_TEXTS, len(pairs.left))
    places = [index * len(pairs.left) // count for index in range(count)]
    left = [pairs.left[place].at(row) for row, place in enumerate(places)]
    right = [pairs.right[place].at(count + row) for row, place in enumerate(places)]
    return TokenizedPairs(left, right, pairs.ratings[places])


def _tokenize_some(checkpoint: Checkpoint, path: Path, longest: int) -> list[TokenizedText]:
    return tokenize(read_texts(path)[:MOST_IMPORTANCE_TEXTS], checkpoint.tokenizer, longest)


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
    checkpoint: Checkpoint, record: dict[str, Any], order: Sequence[int], material: _Material, precision: Precision
) -> dict[str, Any]:
    encoder, heads = checkpoint.encoder, len(order)
    removals = sorted({*counts(heads), len(record["removed"])})
    points = draw_curve(encoder, material.judge, order, random_orders(heads, RANDOM_ORDERS), removals)
    latency = _time_steps(checkpoint, order, [*removals, heads], material, precision)
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
        **_with_bounds(latency, heads),
    }


def _time_steps(
    checkpoint: Checkpoint, order: Sequence[int], removals: Sequence[int], material: _Material, precision: Precision
) -> dict[int, dict[int, Timing]]:
    """Timings of every step by heads removed and batch size, each step's graph against the whole one."""
    timings: dict[int, dict[int, Timing]] = {}
    with tempfile.TemporaryDirectory() as directory:
        whole, other = Path(directory) / "whole.onnx", Path(directory) / "pruned.onnx"
        _write_graph(checkpoint, whole, precision)
        inputs = batches_of(material.judge.texts, checkpoint.encoder.config)
        for removed in tqdm(removals, desc="timing", unit="graph", leave=False):
            pruned = replace(checkpoint, encoder=remove_heads(checkpoint.encoder, order[:removed]))
            _write_graph(pruned, other, precision)
            own = batches_of(material.judge.texts, pruned.encoder.config)
            timings[removed] = compare(whole, other, {size: (inputs[size], own[size]) for size in inputs})
    return timings


def _write_graph(checkpoint: Checkpoint, path: Path, precision: Precision) -> None:
    onnx_ir.save(trace(lower(checkpoint, precision).traced), path)


def _with_bounds(timings: dict[int, dict[int, Timing]], heads: int) -> dict[str, Any]:
    """Timings as JSON, beside the bound 1 / (1 - s p) with s the share of time that goes with all heads (Amdahl)."""
    shares = {size: max(0.0, 1 - 1 / timing.speed) for size, timing in timings[heads].items()}
    latency = [
        {
            "removed": removed,
            "share": round(removed / heads, 4),
            "batches": {
                str(size): {
                    "seconds": round(timing.seconds, 7),
                    "whole_seconds": round(timing.whole_seconds, 7),
                    "speed": round(timing.speed, 4),
                    "bound": round(1 / (1 - shares[size] * removed / heads), 4),
                }
                for size, timing in by_size.items()
            },
        }
        for removed, by_size in timings.items()
    ]
    return {"attention_share": {str(size): round(share, 4) for size, share in shares.items()}, "latency": latency}


def _place(head: int, encoder: Encoder) -> tuple[int, int]:
    config = encoder.config
    layer = next(layer for layer in range(config.num_layers) if head < config.head_span(layer).stop)
    return layer, head - config.head_span(layer).start


def _rounded(quality: Quality) -> dict[str, float]:
    return {name: round(value, 6) for name, value in asdict(quality).items()}
