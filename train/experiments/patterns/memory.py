"""How fast one layer of attention memorises random examples at equal parameters, beside how many theory promises.

An example is a context [n, D], a query [D] and the number that belongs to it, all drawn at random. Heads alone answer,
without norms, residual stream or feed-forward network, as in the theorem: H heads of size d_h can memorise
H (min(n, d_h) - 1) + 1 examples at least (Mahdavi, Liao and Thrampoulidis 2023, arXiv 2306.02010).
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from train.experiments.patterns.network import WIDTH, draw
from train.experiments.patterns.tasks import PLACES

EXAMPLES = 512
MEMORISED = 0.01  # mean squared error that is left of a variance of 1
RATE, CHECKED = 1e-2, 10


def promised(heads: int) -> int:
    """Examples that theory promises for heads of size D / H."""
    return heads * (min(PLACES, WIDTH // heads) - 1) + 1


def memorise(heads: int, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Trains networks side by side, each on its own examples, until all have memorised them or the steps are over.

    There is a network a seed, with d_k = d_v = D / H, and each step takes all examples. `values` are the steps after
    which each had memorised (all steps where it had not), `errors` what was left when training ended.
    """
    began = time.process_time()

    drawn = partial(draw, seeds)
    contexts, queries = drawn("contexts", EXAMPLES, PLACES, WIDTH), drawn("queries", EXAMPLES, 1, WIDTH)
    numbers = drawn("numbers", EXAMPLES)
    weights = [drawn(name, WIDTH, WIDTH) * WIDTH**-0.5 for name in ("query", "key", "value")]
    weights.append(drawn("output", WIDTH, 1) * WIDTH**-0.5)
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=RATE)
    values = [steps] * len(seeds)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, 2 * (1 - step / steps))
        errors = (attend(contexts, queries, weights, heads) - numbers).square().mean(dim=1)  # [R]
        if step % CHECKED == 0:
            done = (errors <= MEMORISED).tolist()
            values = [min(value, step) if is_done else value for value, is_done in zip(values, done, strict=True)]
            if max(values) < steps:
                break
        optimizer.zero_grad()
        errors.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    left = [round(error, 5) for error in errors.tolist()]
    return {"values": values, "errors": left, "cpu_seconds": round(time.process_time() - began, 1)}


def attend(contexts: Tensor, queries: Tensor, weights: Sequence[Tensor], heads: int) -> Tensor:
    """What H heads answer, a number an example: contexts [R, T, n, D] and queries [R, T, 1, D] -> [R, T].

    Weights are those of query, key and value, [R, D, D] each, and of the output, [R, D, 1].
    """
    *inner, output = weights

    def split(x: Tensor, weight: Tensor) -> Tensor:
        projected = (x.flatten(1, 2) @ weight).view(*x.shape[:3], heads, -1)
        return projected.transpose(2, 3)  # [R, T, H, n or 1, d_h]

    query, key, value = (split(x, weight) for x, weight in zip((queries, contexts, contexts), inner, strict=True))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    context = scores.softmax(dim=-1) @ value  # [R, T, H, 1, d_h]
    answers: Tensor = context.flatten(2) @ output
    return answers.squeeze(-1)
