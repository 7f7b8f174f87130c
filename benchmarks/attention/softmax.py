"""What splitting into heads changes and what it does not: one softmax of a sum against h softmaxes, scale, rank.

Shapes: n tokens, D hidden, H heads, K = D / H. Everything here is a few lines of algebra on drawn matrices; the
project's own encoder is not needed for it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.lib.report import Table

HIDDEN, HEADS = 512, 8
SATURATED = 0.999


class Drawn(NamedTuple):
    """Queries, keys and values of one text, [n, D] each."""

    query: Tensor
    key: Tensor
    value: Tensor


class Compared(NamedTuple):
    """One head of size D beside H heads of size D / H, on the same projections.

    Attributes:
        identity_error: largest |S_1 - sum_h S_h / sqrt(H)|, S being scores after scaling, by the largest |S_1|.
        outputs_are_close: whether the two outputs are equal as `torch.allclose` has it.
        entries_close: share of entries that are.
        saturated: share of the H heads' rows whose largest weight is above 0.999.
    """

    identity_error: float
    outputs_are_close: bool
    entries_close: float
    saturated: float


def draw(tokens: int, *, positive: bool, seed: int, hidden: int = HIDDEN) -> Drawn:
    """Projections of a drawn text: all of it from [0, 1), unscaled, or normal with weights of variance 1 / D."""
    generator = torch.Generator().manual_seed(seed)
    if positive:
        text = torch.rand(tokens, hidden, generator=generator)
        weights = [torch.rand(hidden, hidden, generator=generator) for _ in range(3)]
    else:
        text = torch.randn(tokens, hidden, generator=generator)
        weights = [torch.randn(hidden, hidden, generator=generator) / math.sqrt(hidden) for _ in range(3)]
    return Drawn(*(text @ weight for weight in weights))


def split(x: Tensor, heads: int) -> Tensor:
    """[n, D] -> [H, n, K]."""
    return x.view(len(x), heads, -1).transpose(0, 1)


def scores(drawn: Drawn, heads: int, *, scaled: bool = True) -> Tensor:
    """Q K^T / sqrt(K) of each head, [H, n, n]."""
    query, key = split(drawn.query, heads), split(drawn.key, heads)
    return query @ key.transpose(1, 2) / (math.sqrt(query.shape[-1]) if scaled else 1)


def attend(drawn: Drawn, heads: int) -> Tensor:
    """Concatenated contexts [n, D]; what an output projection would do to them it does to both sides alike."""
    return (scores(drawn, heads).softmax(dim=-1) @ split(drawn.value, heads)).transpose(0, 1).flatten(1)


def compare(drawn: Drawn, heads: int = HEADS) -> Compared:
    """One head beside `heads` of them."""
    exact = Drawn(*(x.double() for x in drawn))
    one, many = scores(exact, 1)[0], scores(exact, heads)
    found, expected = attend(drawn, 1), attend(drawn, heads)
    return Compared(
        identity_error=float((one - many.sum(dim=0) / math.sqrt(heads)).abs().max() / one.abs().max()),
        outputs_are_close=torch.allclose(found, expected),
        entries_close=float(torch.isclose(found, expected).double().mean()),
        saturated=float((scores(drawn, heads).softmax(-1).amax(-1) > SATURATED).double().mean()),
    )


def one_head_or_many(runs: int, lengths: tuple[int, ...]) -> Table:
    """The experiment behind "one head of 512 is the same as 8 of 64", with positive weights and with usual ones."""
    columns = ("weights", "tokens", "runs", "allclose_%", "entries_close_%", "saturated_%", "identity_error")
    table = Table("one_head_is_not_many", f"One head of {HIDDEN} beside {HEADS} of {HIDDEN // HEADS}", columns)
    for positive in (True, False):
        for tokens in lengths:
            found = [compare(draw(tokens, positive=positive, seed=seed)) for seed in range(runs)]
            table.add(
                weights="[0, 1), unscaled" if positive else "normal, 1 / D",
                tokens=tokens,
                runs=runs,
                **{"allclose_%": 100 * sum(one.outputs_are_close for one in found) / runs},
                **{"entries_close_%": 100 * sum(one.entries_close for one in found) / runs},
                **{"saturated_%": 100 * sum(one.saturated for one in found) / runs},
                identity_error=max(one.identity_error for one in found),
            )
    return table


def scale_not_splitting(tokens: int = 64) -> Table:
    """Spread of scores and sharpness of weights for several head counts, with the factor 1 / sqrt(K) and without."""
    columns = ("heads", "d_k", "scaled_sd", "scaled_max_weight", "unscaled_sd", "unscaled_max_weight")
    table = Table("scale", "Splitting does not keep a softmax from saturating; the scale does", columns)
    drawn = draw(tokens, positive=False, seed=0)
    for heads in (1, 2, 4, 8, 16, 64, HIDDEN):
        cells: dict[str, float] = {}
        for name, scaled in (("scaled", True), ("unscaled", False)):
            found = scores(drawn, heads, scaled=scaled)
            cells |= {f"{name}_sd": float(found.std()), f"{name}_max_weight": float(found.softmax(-1).amax(-1).mean())}
        table.add(heads=heads, d_k=HIDDEN // heads, **cells)
    return table


def rank_of_scores(tokens: int = 128) -> Table:
    """Rank of a head's scores, and what is left to a head that is one number."""
    columns = ("heads", "d_k", "largest_rank", "bound", "rows_at_an_extreme_%", "map_floats", "score_flops")
    table = Table("rank", f"A head's scores have rank d_k at most ({tokens} tokens)", columns)
    exact = Drawn(*(x.double() for x in draw(tokens, positive=False, seed=0)))
    for heads in (1, 8, 64, HIDDEN):
        found = scores(exact, heads)
        table.add(
            heads=heads,
            d_k=HIDDEN // heads,
            largest_rank=int(torch.linalg.matrix_rank(found[: min(heads, 8)]).max()),
            bound=min(tokens, HIDDEN // heads),
            **{"rows_at_an_extreme_%": 100 * float(looks_at_an_extreme(exact, found)) if heads == HIDDEN else None},
            map_floats=heads * tokens**2,
            score_flops=2 * tokens**2 * HIDDEN,
        )
    return table


def looks_at_an_extreme(drawn: Drawn, found: Tensor) -> float:
    """Share of scalar heads' rows that look most at the largest key, or the smallest where the query is negative."""
    highest, lowest = drawn.key.argmax(dim=0), drawn.key.argmin(dim=0)  # [H]
    expected = torch.where(drawn.query.T > 0, highest[:, None], lowest[:, None])  # [H, n]
    return float((found.argmax(dim=-1) == expected).double().mean())
