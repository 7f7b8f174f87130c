"""Judges a graph of lower precision by what it was made from, on text that int8's calibration did not see."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from export.errors import QualityError
from export.inputs import graph_inputs, run_encoder
from export.runtime import Session
from export.similarity import row_cosines
from export.tokens import TextBatch
from model.artifact import POOLED, attentions_name
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


def measure_quality(path: Path, encoder: Encoder, batches: Sequence[TextBatch]) -> PrecisionQuality:
    """Compares the graph at a path with the float32 encoder over batches of held-out texts."""
    session = Session(path)
    config = encoder.config
    cosines: list[NDArray[np.float64]] = []
    divergences = [np.zeros(heads) for heads in config.num_heads]
    queries = 0
    for batch in tqdm(batches, desc="judging", unit="batch", leave=False):
        inputs = graph_inputs(config, batch.input_ids.numpy(), batch.lengths.numpy(), layers=range(config.num_layers))
        found, expected = session.run(inputs), run_encoder(encoder.use("eager"), inputs)
        cosines.append(row_cosines(found[POOLED], expected.pooled.numpy()))
        for layer, weights in enumerate(expected.attentions):
            if config.num_heads[layer] and weights is not None:
                divergences[layer] += _divergence(
                    found[attentions_name(layer)], weights.numpy(), batch.lengths.tolist()
                )
        queries += int(batch.lengths.sum())
    return PrecisionQuality(np.concatenate(cosines), [(sums / queries).tolist() for sums in divergences])


def _divergence(found: NDArray[np.float32], expected: NDArray[np.float32], lengths: list[int]) -> NDArray[np.float64]:
    """KL(expected || found), summed over the queries of every text, a value a head [H]; both are [B, H, S, S]."""
    total = np.zeros(expected.shape[1])
    smallest = np.finfo(np.float32).tiny
    for row, length in enumerate(lengths):
        p = expected[row, :, :length, :length].astype(np.float64).clip(smallest)
        q = found[row, :, :length, :length].astype(np.float64).clip(smallest)
        total += (p * np.log(p / q)).sum(axis=(1, 2))
    return total
