"""In which order heads are removed: least important first, by one definition; and random orders to compare with."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from export.heads.capture import Capture
from export.heads.importance import drift, embed, embed_without_each, jacobian, loss_gradient
from export.heads.pairs import TokenizedPairs
from export.tokens import TokenizedText, batches
from model.analysis.arrays import Float64Array
from model.encoder import Encoder

Definition = Literal["leave_one_out", "jacobian", "output_norm", "loss_gradient"]

SEED = 0


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


def least_first(values: Float64Array) -> list[int]:
    """Heads from the least important; equal ones in their own order."""
    return [int(head) for head in np.argsort(values, kind="stable")]


def random_orders(heads: int, count: int) -> list[list[int]]:
    """Orders drawn at random, the same in every run."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randperm(heads, generator=generator).tolist() for _ in range(count)]


def _output_norms(encoder: Encoder, texts: Sequence[TokenizedText]) -> Float64Array:
    capture = Capture(encoder)
    norms = [
        heads.output_norms.mean(axis=-1, dtype=np.float64)
        for batch in tqdm(list(batches(texts, sum(encoder.config.num_heads))), desc="norms", unit="batch", leave=False)
        for heads in capture.run(batch)
    ]
    mean: Float64Array = np.mean(norms, axis=0)
    return mean
