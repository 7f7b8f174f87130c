"""In which order the heads and the feed-forward neurons of each layer are best removed.

Within a layer the next unit to go is the one whose loss the others can make good best (`eliminate`). Layers are
compared by how far the embedding drifts without some of their units, with the other layers whole: errors of several
layers may not add up.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from export.heads.importance import LayersBelow, drift, embed
from export.texts import TokenizedText, batches
from model.analysis.arrays import Float64Array
from model.encoder import Encoder
from train.reconstruct import LayerRunner, LeastSquares, UnitKind, token_weights

TOGETHER = 16  # neurons that leave before the rest is fitted again
POINTS = 12  # of a part's units, at which the drift without them is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Elimination:
    """Blocks of inputs in the order of removal."""

    order: list[int]  # the blocks
    costs: list[float]  # the squared error that each adds to those before it, if the rest is fitted again
    fitted: dict[int, Tensor]  # the weights [n, m] by the number of removed blocks, whose rows are 0


def eliminate(
    gram: Tensor, weights: Tensor, *, blocks: int, size: int, together: int, points: Sequence[int]
) -> Elimination:
    """In which order blocks of inputs are best left out, if the rest is fitted again after each.

    The optimal brain surgeon for blocks (Hassibi and Stork 1993; Frantar and Alistarh 2022): without block q, and with
    the best other weights, the squared error grows by `tr(W_q^T [(G^-1)_qq]^-1 W_q)`.

    The first of the inputs, whose Gram matrix is [n, n], are the blocks', each of `size` one behind the other; others,
    such as the bias's, stay. The weights [n, m] are exact for the data. `together` blocks leave before the rest is
    fitted again. `points` are numbers of removed blocks for which the weights are returned, ascending.
    """
    inverse, weights = torch.linalg.inv(gram), weights.double().clone()
    inputs = torch.arange(blocks * size).view(blocks, size)
    found = Elimination(order=[], costs=[], fitted={})
    is_gone = torch.zeros(blocks, dtype=torch.bool)
    while (gone := len(found.order)) < blocks:
        corners = inverse[inputs[:, :, None], inputs[:, None, :]]  # [blocks, size, size]
        of_blocks = weights[: blocks * size].view(blocks, size, -1)
        costs = (of_blocks * torch.linalg.solve(corners, of_blocks)).sum(dim=(1, 2)).masked_fill(is_gone, torch.inf)
        most = min(point for point in (*points, blocks) if point > gone) - gone
        best = costs.argsort()[: min(together, most)]
        found.order.extend(best.tolist())
        found.costs.extend(costs[best].tolist())
        rows = inputs[best].flatten()
        repair = torch.linalg.solve(inverse[rows][:, rows], inverse[rows]).T  # [n, rows]
        weights -= repair @ weights[rows]
        inverse -= repair @ inverse[rows]
        weights[rows] = 0
        inverse[rows, rows] = 1  # the corner of a block that is gone can be solved with
        is_gone[best] = True
        if len(found.order) in points:
            found.fitted[len(found.order)] = weights.clone()
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """The heads or the neurons of a layer in the order in which they are best removed."""

    kind: UnitKind
    layer: int
    order: list[int]
    costs: list[float]  # the squared error of the residual stream that each adds to those before it
    drifts: dict[int, float]  # the mean drift of the embedding by the number of removed units, the rest fitted

    def rising_drifts(self) -> Float64Array:
        """Drift without the first n units, [units + 1]: measured at points, rising as the errors do between them."""
        errors = np.concatenate([[0.0], np.cumsum(self.costs)])
        measured = np.maximum.accumulate(list(self.drifts.values()))
        found: Float64Array = np.interp(errors, [0.0, *errors[list(self.drifts)]], [0.0, *measured])
        return found


def removals(
    encoder: Encoder, texts: Sequence[TokenizedText], judged: Sequence[TokenizedText], kinds: Sequence[UnitKind]
) -> Iterator[Removal]:
    """Orders the units of every layer on the texts' tokens, and measures how far the embeddings of `judged` drift.

    The drift is measured at `POINTS` points of each order; the encoder's weights are others meanwhile.
    """
    whole, together = embed(encoder, judged), list(batches(texts, 0))
    runner = LayerRunner(encoder, together)
    for layer, module in enumerate(tqdm(runner.layers, desc="choosing", unit="layer", leave=False)):
        heads, d_v = module.attention.num_heads, encoder.config.d_v
        wanted: list[tuple[UnitKind, nn.Linear, int, int, int]] = []
        if "heads" in kinds and heads:
            wanted.append(("heads", module.attention.output, heads, d_v, 1))
        if "neurons" in kinds:
            down = module.feed_forward.down
            wanted.append(("neurons", down, down.in_features, 1, TOGETHER))
        grams = _gram_matrices(runner, layer, {kind: product for kind, product, *_ in wanted})
        below = LayersBelow(encoder, layer, list(batches(judged, 0)))
        for kind, product, count, size, at_once in wanted:
            bias = [] if product.bias is None else [product.bias[None]]
            found = eliminate(
                grams[kind].ridged(),
                torch.cat([product.weight.T, *bias]).double(),  # [inputs (+ 1 for the bias), outputs]
                blocks=count,
                size=size,
                together=at_once,
                points=sorted({max(1, count * point // POINTS) for point in range(1, POINTS + 1)}),
            )
            drifts = {}
            for gone, rows in found.fitted.items():
                with _replaced_rows(product, rows):
                    drifts[gone] = float(drift(embed(encoder, judged, below=below), whole).mean())
            yield Removal(kind=kind, layer=layer, order=found.order, costs=found.costs, drifts=drifts)
        runner.advance(layer)


def order_by_reconstruction(encoder: Encoder, texts: Sequence[TokenizedText]) -> list[int]:
    """Heads in the order in which they are best removed, counted from the first layer's first.

    Layers are compared by how much farther the embedding drifts with each head that goes, the rest of the layer fitted.
    """
    ranked: list[tuple[float, int]] = []
    for found in removals(encoder, texts, texts, ["heads"]):
        first = encoder.config.head_span(found.layer).start
        added = accumulate(np.diff(found.rising_drifts()), max)
        ranked += zip(added, (first + head for head in found.order), strict=True)
    return [head for _, head in sorted(ranked, key=itemgetter(0))]  # stable: a layer's own order stays


def _gram_matrices(
    runner: LayerRunner, layer: int, products: Mapping[UnitKind, nn.Linear]
) -> dict[UnitKind, LeastSquares]:
    fits = {
        kind: LeastSquares(product.in_features, 0, bias=product.bias is not None) for kind, product in products.items()
    }
    for batch in range(len(runner.hidden)):
        trace = runner.trace(layer, batch)
        for kind, fit in fits.items():
            stream = trace.streams[kind]
            fit.add(trace.read[kind], stream[:, :0], token_weights(stream))
    return fits


@contextmanager
def _replaced_rows(product: nn.Linear, rows: Tensor) -> Iterator[None]:
    """While this holds, a product has the weights [inputs (+ 1 for the bias), outputs]."""
    parts = {name: part.data for name, part in product.named_parameters()}
    product.weight.data = rows[: product.in_features].T.float()
    if product.bias is not None:
        product.bias.data = rows[-1].float()
    try:
        yield
    finally:
        for name, part in product.named_parameters():
            part.data = parts[name]
