"""Prunes a checkpoint, and records the removed heads and their cost.

The texts that heads are chosen by and those that the choice is judged by share none. With rated pairs half of them,
chosen at random, are for one and the rest for the other. Without, heads are chosen by the text that int8 is calibrated
with (or the user's), and judged by the text that int8 is judged by. How many heads a loss allows is decided on the
first half too: the loss on the second half, which is reported, may be larger.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from export.checkpoint import Checkpoint, require_embedding
from export.errors import ParityError, SourceError
from export.heads.corpus import TokenizedPairs, read_pairs, require_ratings, shuffle_places, tokenize_pairs
from export.heads.importance import drift, embed, embed_without_each, jacobian, loss_gradient
from export.heads.statistics import Capture
from export.pruning.curve import RANDOM_ORDERS, Judge, PruningQuality, counts, draw_curve, make_judge, most_within
from export.pruning.removal import remove_heads
from export.pruning.timing import time_steps, with_bounds
from export.texts import HELD_OUT_TEXTS, TEXTS, TokenizedText, batches, read_texts, tokenize
from model.analysis.arrays import Float64Array
from model.artifact import hash_file
from model.config_parts import Precision
from model.encoder import Encoder

SCHEMA_VERSION = 1
MASKED_TOLERANCE = 1e-5  # of values up to 1; rounding grows with depth: 24 layers differ by 9.1e-7
LONGEST = 128
MOST_CHOOSING = 200  # texts or pairs: importance may run the network once a head over them
MOST_JUDGED = 500  # pairs, for each of the networks along a curve
SEED = 0
Definition = Literal["leave_one_out", "jacobian", "output_norm", "loss_gradient"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PruningRequest:
    """How much to remove, and by what.

    Attributes:
        share: of the heads, or None.
        lose: points of quality that may be lost, where `share` is None.
        definition: of importance; None for the default.
        pairs: file of rated pairs, or None.
        calibration: text, one a line, instead of what ships with the project; not used with pairs.
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
        record: for the manifest: the request, the removed heads, quality before and after.
        curve: `pruning.json`, or None where no curve was asked for.
    """

    checkpoint: Checkpoint
    record: dict[str, Any]
    curve: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Material:
    """Texts and the judge.

    Attributes:
        texts: heads are chosen by them; with pairs their left texts, then the right ones.
        pairs: the same as pairs, or None.
        judge: measures networks on the other half.
        described: how many of what, for the record.
    """

    texts: Sequence[TokenizedText]
    pairs: TokenizedPairs | None
    judge: Judge
    described: dict[str, Any]


def prune(checkpoint: Checkpoint, request: PruningRequest, precision: Precision = "fp32") -> Pruned:
    """Chooses heads, removes them from a copy, and measures what that cost; graphs in `precision` are timed.

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
    if request.share is not None and not round(request.share * heads):
        raise SourceError(f"{request.share} of {heads} heads is less than one: ask for at least {1 / heads:.3g}")
    material = read_material(checkpoint, request.pairs, request.calibration)
    definition = request.definition or ("loss_gradient" if material.pairs else "jacobian")
    order = least_first(importance(encoder, definition, material.texts, material.pairs))
    removed = order[: _count(encoder, request, material, order)]
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


def _count(encoder: Encoder, request: PruningRequest, material: Material, order: Sequence[int]) -> int:
    """How many heads go; the texts that the result is judged by have no part in it."""
    if request.share is not None:
        return round(request.share * len(order))
    if request.lose is None:
        raise ValueError("neither a share nor a loss was asked for")
    return most_within(encoder, make_judge(encoder, material.texts, material.pairs), order, request.lose)


def _masked_difference(
    encoder: Encoder, pruned: Encoder, removed: Sequence[int], texts: Sequence[TokenizedText]
) -> float:
    """Largest difference between embeddings of the pruned and the masked network.

    Raises:
        ParityError: it is above 1e-5.
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
    latency = time_steps(checkpoint, order, sorted({*removals, heads}), material.judge.texts, precision)
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


def read_material(checkpoint: Checkpoint, pairs: Path | None, calibration: Path | None) -> Material:
    """Reads the halves.

    Raises:
        SourceError: a file cannot be used, or half of its pairs are too few or all rated alike.
    """
    return _from_pairs(checkpoint, pairs) if pairs else _from_texts(checkpoint, calibration or TEXTS)


def halve(count: int) -> tuple[list[int], list[int]]:
    """Places of the pairs that heads are chosen by, and of those that the choice is judged by."""
    places, half = shuffle_places(count), (count + 1) // 2
    return sorted(places[:half][:MOST_CHOOSING]), sorted(places[half:][:MOST_JUDGED])


def _from_pairs(checkpoint: Checkpoint, path: Path) -> Material:
    pairs = read_pairs(path)
    longest = min(LONGEST, checkpoint.max_sequence_length)
    chosen, judged = (
        require_ratings(tokenize_pairs(pairs.choose(half), checkpoint.tokenizer, longest), path, purpose)
        for half, purpose in zip(halve(len(pairs.left)), ("to choose heads by", "to judge by"), strict=True)
    )
    described = {
        "text": {"name": path.name, "sha256": hash_file(path)},
        "chosen_on_pairs": len(chosen.left),
        "judged_on_pairs": len(judged.left),
    }
    return Material(chosen.texts, chosen, make_judge(checkpoint.encoder, judged.texts, judged), described)


def _from_texts(checkpoint: Checkpoint, path: Path) -> Material:
    longest = min(LONGEST, checkpoint.max_sequence_length)
    texts, held_out = (
        tokenize(read_texts(source)[:MOST_CHOOSING], checkpoint.tokenizer, longest) for source in (path, HELD_OUT_TEXTS)
    )
    described = {
        "text": {"name": path.name, "sha256": hash_file(path)},
        "chosen_on_texts": len(texts),
        "judged_on_texts": len(held_out),
    }
    return Material(texts, None, make_judge(checkpoint.encoder, held_out, None), described)


def importance(
    encoder: Encoder, definition: Definition, texts: Sequence[TokenizedText], pairs: TokenizedPairs | None
) -> Float64Array:
    """Importance of every head [H] by a definition of `export.heads.importance`.

    Raises:
        ValueError: the definition needs rated pairs, and there are none.
    """
    if definition == "loss_gradient":
        if pairs is None:
            raise ValueError("loss_gradient needs rated pairs")
        estimate = loss_gradient(encoder, pairs)
    elif definition == "jacobian":
        estimate = jacobian(encoder, texts)
    elif definition == "output_norm":
        return _output_norms(encoder, texts)
    else:
        whole = embed(encoder, texts)
        return np.array([drift(without, whole).mean() for without in embed_without_each(encoder, texts)])
    if estimate is None:
        raise ValueError("no text to measure importance on")
    return estimate.mean


def _output_norms(encoder: Encoder, texts: Sequence[TokenizedText]) -> Float64Array:
    capture = Capture(encoder)
    norms = [
        heads.output_norms.mean(axis=-1, dtype=np.float64)
        for batch in tqdm(list(batches(texts, sum(encoder.config.num_heads))), desc="norms", unit="batch", leave=False)
        for heads in capture.run(batch)
    ]
    mean: Float64Array = np.mean(norms, axis=0)
    return mean


def least_first(values: Float64Array) -> list[int]:
    """Heads from the least important; equal ones in their own order."""
    return [int(head) for head in np.argsort(values, kind="stable")]


def random_orders(heads: int, count: int) -> list[list[int]]:
    """Orders drawn at random, the same in every run."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randperm(heads, generator=generator).tolist() for _ in range(count)]
