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

from export.checkpoint import Checkpoint, require_embedding
from export.errors import ParityError, SourceError
from export.heads.corpus import TokenizedPairs, read_pairs, require_ratings, shuffle_places, tokenize_pairs
from export.heads.importance import drift, embed, embed_without_each, jacobian, loss_gradient
from export.heads.intervals import estimate
from export.heads.measure import each_text
from export.pruning.curve import (
    RANDOM_ORDERS,
    Judge,
    PruningQuality,
    counts,
    draw_curve,
    make_judge,
    most_within,
    time_steps,
    with_bounds,
)
from export.pruning.removal import remove_heads
from export.texts import HELD_OUT_TEXTS, TEXTS, TokenizedText, read_texts, tokenize
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


@dataclass(frozen=True, slots=True)
class Pruned:
    """A checkpoint with fewer heads, its record for the manifest, and `pruning.json` if a curve was asked for."""

    checkpoint: Checkpoint
    record: dict[str, Any]
    curve: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Material:
    """What heads are chosen by, texts and maybe the same as pairs; the judge on the other half; both for the record."""

    texts: Sequence[TokenizedText]
    pairs: TokenizedPairs | None
    judge: Judge
    described: dict[str, Any]


def prune(
    checkpoint: Checkpoint,
    *,
    share: float | None = None,
    lose: float = 0.0,
    definition: Definition | None = None,
    pairs: Path | None = None,
    calibration: Path | None = None,
    with_curve: bool = True,
    precision: Precision = "fp32",
) -> Pruned:
    """Chooses heads, removes them from a copy, and measures what that cost.

    Removed is a share of the heads, or else as many as lose at most so many points of quality. Importance is by a
    definition, on a file of rated pairs or on calibration text, one a line, None for what ships with the project. A
    curve measures quality and speed along the whole way, of graphs in a precision.

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
    if share is not None and not round(share * heads):
        raise SourceError(f"{share} of {heads} heads is less than one: ask for at least {1 / heads:.3g}")
    material = read_material(checkpoint, pairs, calibration)
    definition = definition or ("loss_gradient" if material.pairs else "jacobian")
    order = least_first(importance(encoder, definition, material.texts, material.pairs))
    if share is None:  # the texts that the result is judged by have no part in it
        count = most_within(encoder, make_judge(encoder, material.texts, material.pairs), order, lose)
    else:
        count = round(share * heads)
    removed = order[:count]
    pruned = remove_heads(encoder, removed)
    before, after = material.judge.judge_whole(), material.judge.judge(pruned)
    record = {
        "asked": {"points": lose} if share is None else {"share": share},
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
    curve = _curve(checkpoint, record, order, material, precision) if with_curve else None
    return Pruned(replace(checkpoint, encoder=pruned), record, curve)


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
        "curve": points,
        **with_bounds(latency, heads),
    }


def _rounded(quality: PruningQuality) -> dict[str, float]:
    return {name: round(value, 6) for name, value in asdict(quality).items()}


def halve(count: int) -> tuple[list[int], list[int]]:
    """Places of the pairs that heads are chosen by, and of those that the choice is judged by."""
    places, half = shuffle_places(count), (count + 1) // 2
    return sorted(places[:half][:MOST_CHOOSING]), sorted(places[half:][:MOST_JUDGED])


def read_material(checkpoint: Checkpoint, pairs: Path | None, calibration: Path | None) -> Material:
    """Reads the halves; a SourceError says which file cannot be used, or holds too few pairs or ratings for them."""
    encoder, tokenizer, longest = checkpoint.encoder, checkpoint.tokenizer, min(LONGEST, checkpoint.max_sequence_length)
    path = pairs or calibration or TEXTS
    described: dict[str, Any] = {"text": {"name": path.name, "sha256": hash_file(path)}}
    if pairs:
        rated = read_pairs(pairs)
        chosen, judged = (
            require_ratings(tokenize_pairs(rated.choose(half), tokenizer, longest), pairs, purpose)
            for half, purpose in zip(halve(len(rated.left)), ("to choose heads by", "to judge by"), strict=True)
        )
        described |= {"chosen_on_pairs": len(chosen.left), "judged_on_pairs": len(judged.left)}
        return Material(chosen.texts, chosen, make_judge(encoder, judged.texts, judged), described)
    texts, held_out = (
        tokenize(read_texts(source)[:MOST_CHOOSING], tokenizer, longest) for source in (path, HELD_OUT_TEXTS)
    )
    described |= {"chosen_on_texts": len(texts), "judged_on_texts": len(held_out)}
    return Material(texts, None, make_judge(encoder, held_out, None), described)


def importance(
    encoder: Encoder, definition: Definition, texts: Sequence[TokenizedText], pairs: TokenizedPairs | None
) -> Float64Array:
    """Importance of every head [H] by a definition of `export.heads.importance`; `loss_gradient` needs pairs.

    Raises:
        ValueError: there is no text to measure it on, or there are no pairs.
    """
    if definition == "leave_one_out":
        whole = embed(encoder, texts)
        return np.array([drift(without, whole).mean() for without in embed_without_each(encoder, texts)])
    if definition == "output_norm":
        found = estimate(heads.output_norms.mean(axis=-1) for _, heads in each_text(encoder, texts, "norms"))
    elif definition == "jacobian":
        found = jacobian(encoder, texts)
    else:
        found = loss_gradient(encoder, pairs) if pairs else None
    if found is None:
        raise ValueError("no text to measure importance on")
    return found.mean


def least_first(values: Float64Array) -> list[int]:
    """Heads from the least important; equal ones in their own order."""
    return [int(head) for head in np.argsort(values, kind="stable")]


def random_orders(heads: int, count: int) -> list[list[int]]:
    """The same in every run."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randperm(heads, generator=generator).tolist() for _ in range(count)]
