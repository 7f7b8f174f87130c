"""Judges a graph of lower precision by what it was made from, on text that int8's calibration did not see."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from export.errors import QualityError
from export.runtime import Session
from model.artifact import ATTENTION_LAYERS, INPUT_IDS, LENGTHS, POOLED, TOKEN_TYPE_IDS, attentions_name
from model.encoder import Encoder


class Threshold(NamedTuple):
    """The lowest cosines to float32 that a precision may have over texts, and what to do where they are lower."""

    mean: float
    worst: float
    otherwise: str


@dataclass(frozen=True, slots=True)
class PrecisionQuality:
    """What the precision cost, over held-out texts.

    Attributes:
        cosines: [texts], cosine of the graph's to the float32 embedding.
        attention_kl: a layer a row, a head a column: KL divergence of the graph's from the float32 attention in
            nats, mean over queries; ragged where layers differ in heads.
    """

    cosines: NDArray[np.float64]
    attention_kl: list[list[float]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, for the manifest."""
        return {
            "texts": len(self.cosines),
            "cosine_mean": float(self.cosines.mean()),
            "cosine_worst": float(self.cosines.min()),
            "attention_kl": [[round(value, 6) for value in heads] for heads in self.attention_kl],
        }

    def check(self, threshold: Threshold) -> None:
        """Whether it passes.

        Raises:
            QualityError: the embeddings are too far from those of float32.
        """
        mean, worst = float(self.cosines.mean()), float(self.cosines.min())
        if not (mean >= threshold.mean and worst >= threshold.worst):  # so that NaN does not pass
            raise QualityError(
                f"cosine to float32 over {len(self.cosines)} held-out texts is {mean:.5f} on average and {worst:.5f} "
                f"at worst; expected at least {threshold.mean} and {threshold.worst}. {threshold.otherwise}"
            )


def measure_quality(path: Path, encoder: Encoder, batches: list[tuple[Tensor, Tensor]]) -> PrecisionQuality:
    """Compares the graph at a path with the float32 encoder over batches of held-out texts."""
    session = Session(path)
    config = encoder.config
    cosines: list[NDArray[np.float64]] = []
    divergences = [np.zeros(heads) for heads in config.num_heads]
    queries = 0
    for input_ids, lengths in tqdm(batches, desc="judging", unit="batch", leave=False):
        inputs: dict[str, NDArray[np.generic]] = {
            INPUT_IDS: input_ids.numpy(),
            LENGTHS: lengths.numpy(),
            ATTENTION_LAYERS: np.ones(config.num_layers, np.bool_),
        }
        if config.type_vocab_size:
            inputs[TOKEN_TYPE_IDS] = np.zeros_like(input_ids.numpy())
        found = session.run(inputs)
        with torch.inference_mode():
            expected = encoder.use("eager")(input_ids, lengths)
        cosines.append(row_cosines(found[POOLED], expected.pooled.numpy()))
        for layer, weights in enumerate(expected.attentions):
            if config.num_heads[layer] and weights is not None:
                divergences[layer] += _divergence(found[attentions_name(layer)], weights.numpy(), lengths.tolist())
        queries += int(lengths.sum())
    return PrecisionQuality(np.concatenate(cosines), [(sums / queries).tolist() for sums in divergences])


def row_cosines(found: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float64]:
    """The cosine of each row of one [B, D] with the other's, [B], in float64."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):  # an embedding of 0 has no cosine: NaN, which passes no gate
        cosines: NDArray[np.float64] = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return cosines


def _divergence(found: NDArray[np.float32], expected: NDArray[np.float32], lengths: list[int]) -> NDArray[np.float64]:
    """KL(expected || found), summed over the queries of every text, a value a head [H]; both are [B, H, S, S]."""
    total = np.zeros(expected.shape[1])
    smallest = np.finfo(np.float32).tiny
    for row, length in enumerate(lengths):
        p = expected[row, :, :length, :length].astype(np.float64).clip(smallest)
        q = found[row, :, :length, :length].astype(np.float64).clip(smallest)
        total += (p * np.log(p / q)).sum(axis=(1, 2))
    return total
