"""How much each head matters, by three definitions that need not agree.

    leave_one_out   mean over texts of 1 - cos(e, e without the head): what closing its gate does
    jacobian        root mean square over texts of ||d e / d gate||, e the normalised embedding: what a small change of
                    its gate does. (The gradient of 1 - cos itself is 0 at open gates, whatever the head.)
    output_norm     mean over tokens of ||context_h W_O,h||: how long a vector it adds

and, where rated pairs of texts are given, two that know what the embeddings are for:

    spearman_loss   points (x 100) of Spearman's correlation with the ratings that are lost without the head
    loss_gradient   mean over pairs of |d L / d gate| (Michel et al. 2019, equation 5), L the squared error of the
                    cosine against the rating put on 0 to 1
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from export.heads.corpus import TokenizedPairs
from export.heads.intervals import LEVEL, Estimate, estimate
from export.similarity import rank_correlations
from export.texts import TextBatch, TokenizedText, batches
from model.analysis.arrays import Float64Array
from model.encoder import Encoder
from model.value_stream import HeadOutputs

PROBES = 16  # random directions that estimate ||d e / d gate||^2; exact where e has no more dimensions
RESAMPLES = 200
SEED = 0
LayerOutput = tuple[Tensor, HeadOutputs]


class LayersBelow:
    """The outputs of the layers below one, for batches; memory is a hidden state of all their tokens."""

    def __init__(self, encoder: Encoder, layer: int, batches: Sequence[TextBatch]) -> None:
        """Runs the network once on each batch."""
        self._layers = list(encoder.layers)[:layer]
        self._outputs: list[LayerOutput] = []
        with ExitStack() as hooks, torch.inference_mode():
            if self._layers:
                keep = self._layers[-1].register_forward_hook(lambda _, __, output: self._outputs.append(output))
                hooks.callback(keep.remove)
            for batch in batches if self._layers else ():
                encoder.use("sdpa")(batch.input_ids, batch.lengths)

    @contextmanager
    def replayed(self, batch: int) -> Iterator[None]:
        """While this holds, the layers below return their kept outputs of a batch."""
        output = self._outputs[batch] if self._layers else None
        for module in self._layers:
            module.forward = lambda *_: output  # on this object only, and taken back below
        try:
            yield
        finally:
            for module in self._layers:
                del module.forward


def embed(
    encoder: Encoder, texts: Sequence[TokenizedText], gates: Tensor | None = None, below: LayersBelow | None = None
) -> Float64Array:
    """Normalised embeddings [texts, D] in the order given, with gates [H], the same for all texts, if there are any.

    `below` are layers that need not run, on batches of the same texts; None where all must.
    """
    places = {text.place: row for row, text in enumerate(texts)}
    found = np.zeros((len(texts), encoder.config.embedding_size))
    with torch.inference_mode():
        for index, batch in enumerate(batches(texts, 0)):
            rows = None if gates is None else gates.expand(len(batch.texts), -1)
            with below.replayed(index) if below else nullcontext():
                pooled = encoder.use("sdpa")(batch.input_ids, batch.lengths, head_gates=rows).pooled
            found[[places[text.place] for text in batch.texts]] = normalize(pooled.double(), dim=-1).numpy()
    return found


def embed_without_each(encoder: Encoder, texts: Sequence[TokenizedText]) -> Iterator[Float64Array]:
    """Embeddings [texts, D] without the first head, without the second, and so on.

    Layers below a head do not change without it: they run once for all heads of a layer.
    """
    heads = sum(encoder.config.num_heads)
    with tqdm(total=heads, desc="leaving out", unit="head", leave=False) as bar:
        for layer, of_layer in enumerate(encoder.config.num_heads):
            below = LayersBelow(encoder, layer, list(batches(texts, 0))) if of_layer else None
            for head in range(of_layer):
                gates = torch.ones(heads)
                gates[encoder.config.head_span(layer).start + head] = 0
                yield embed(encoder, texts, gates, below)
                bar.update()


def drift(without: Float64Array, whole: Float64Array) -> Float64Array:
    """1 - cosine of rows of unit length, [texts]; never below 0."""
    half_squared: Float64Array = 0.5 * ((without - whole) ** 2).sum(axis=-1)  # = 1 - cos, and exact for tiny ones
    return half_squared


def jacobian(encoder: Encoder, texts: Sequence[TokenizedText]) -> Estimate | None:
    """||d e / d gate||, root mean square over texts, with its interval [H]."""
    rows: list[Float64Array] = []
    generator = torch.Generator().manual_seed(SEED)
    for batch in tqdm(list(batches(texts, 0)), desc="differentiating", unit="batch", leave=False):
        rows.extend(_squared_jacobian(encoder, batch, generator).double().numpy())
    squared = estimate(rows)
    if squared is None:
        return None
    bounds = [np.sqrt(np.maximum(values, 0.0)) for values in (squared.mean, squared.low, squared.high)]
    # The deviation of the root, by the delta method.
    sd = squared.sd / np.maximum(2 * bounds[0], np.finfo(np.float64).tiny)
    return Estimate(bounds[0], sd, bounds[1], bounds[2], squared.n)


def _squared_jacobian(encoder: Encoder, batch: TextBatch, generator: torch.Generator) -> Tensor:
    """||d e / d gate||^2 of each text and head, [B, H]: the mean of (v . d e / d gate)^2 over random signs v."""
    gates = torch.ones(len(batch.texts), sum(encoder.config.num_heads), requires_grad=True)
    embeddings = _embed_batch(encoder, batch, gates)  # [B, D]
    size = embeddings.shape[1]
    exact = size <= PROBES
    squared = torch.zeros_like(gates)
    for probe in range(size if exact else PROBES):
        signs = 2.0 * torch.randint(0, 2, embeddings.shape, generator=generator) - 1.0
        direction = torch.eye(size)[probe].expand_as(embeddings) if exact else signs
        (gradient,) = torch.autograd.grad((embeddings * direction).sum(), gates, retain_graph=True)
        squared += gradient.detach() ** 2
    return squared if exact else squared / PROBES


def loss_gradient(encoder: Encoder, pairs: TokenizedPairs) -> Estimate | None:
    """Mean over pairs of |d L / d gate|, [H]."""
    rows: list[Float64Array] = []
    span = float(np.ptp(pairs.ratings)) or 1.0
    targets = torch.from_numpy((pairs.ratings - pairs.ratings.min()) / span)
    for batch in tqdm(list(batches(pairs.left, 0)), desc="pairs", unit="batch", leave=False):
        chosen = [text.place for text in batch.texts]
        gates = torch.ones(len(chosen), sum(encoder.config.num_heads), requires_grad=True)
        left = _embed_batch(encoder, batch, gates)
        right = [pairs.right[place].at(row) for row, place in enumerate(chosen)]
        loss = torch.zeros((), dtype=torch.float64)
        for mates in batches(right, 0):
            own = torch.tensor([text.place for text in mates.texts])
            cosines = (left[own] * _embed_batch(encoder, mates, gates[own])).sum(dim=1)
            loss = loss + ((cosines.double() - targets[chosen][own]) ** 2).sum()
        (gradient,) = torch.autograd.grad(loss, gates)
        rows.extend(gradient.abs().double().numpy())
    return estimate(rows)


def _embed_batch(encoder: Encoder, batch: TextBatch, gates: Tensor) -> Tensor:
    pooled: Tensor = encoder.use("sdpa")(batch.input_ids, batch.lengths, head_gates=gates).pooled
    return normalize(pooled, dim=-1)


def spearman_loss(similarities: Float64Array, without: Float64Array, ratings: Float64Array) -> Estimate:
    """Points of Spearman lost without each head, with a percentile interval over resampled pairs.

    Similarities [pairs] are of the whole network, and [pairs, H] without each head; ratings are [pairs].
    """
    together = np.concatenate([similarities[:, np.newaxis], without], axis=1)
    generator = np.random.default_rng(SEED)
    lost = _lost(together, ratings)
    resamples = generator.integers(0, len(ratings), (RESAMPLES, len(ratings)))
    draws = [_lost(together[rows], ratings[rows]) for rows in resamples]
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Estimate(lost, np.std(draws, axis=0), low, high, np.full(len(lost), len(ratings)))


def _lost(together: Float64Array, ratings: Float64Array) -> Float64Array:
    found = 100 * np.nan_to_num(rank_correlations(together.T, ratings))  # 0 for a constant column
    lost: Float64Array = found[0] - found[1:]
    return lost
