"""Which heads a network can do without, where what is left is fitted anew.

Orders of `export.pruning` ask what a head does with everything else as it was. Here the other heads of its layer make
good what they can: a head that another one can replace costs nothing, however much it adds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from export.heads.importance import drift, embed
from export.pruning.removal import remove_heads
from export.tokens import TokenizedText, batches
from model.encoder import Encoder
from train.embedding import encoder_layers
from train.least_squares import LeastSquares, removal_costs
from train.reconstruct import LayerRunner, token_weights


def order_by_reconstruction(encoder: Encoder, texts: Sequence[TokenizedText]) -> list[int]:
    """Heads in the order in which they are best removed, counted from the first layer's first.

    Within a layer the order is that of `removal_costs` on the contexts of the texts' tokens. Between layers a squared
    error of the residual stream is weighed by how far it moves the embedding: the drift without the first half of the
    layer's order, the rest fitted, over the error that this leaves.
    """
    whole = embed(encoder, texts)
    fits = _contexts(encoder, texts)
    queues: dict[int, list[tuple[float, int]]] = {}
    for layer, fit in tqdm(fits.items(), desc="choosing", unit="layer", leave=False):
        order, costs = removal_costs(
            fit.ridged(), _weights(encoder, layer), blocks=encoder.config.num_heads[layer], size=encoder.config.d_v
        )
        half = max(1, len(order) // 2)
        drifted = float(drift(embed(_without(encoder, layer, order[:half], fit), texts), whole).mean())
        weight = drifted / max(sum(costs[:half]), 1e-30)
        first = encoder.config.head_span(layer).start
        queues[layer] = [(weight * cost, first + head) for head, cost in zip(order, costs, strict=True)]
    merged: list[int] = []
    while queues:
        layer = min(queues, key=lambda index: queues[index][0])
        merged.append(queues[layer].pop(0)[1])
        if not queues[layer]:
            del queues[layer]
    return merged


def _contexts(encoder: Encoder, texts: Sequence[TokenizedText]) -> dict[int, LeastSquares]:
    """The Gram matrix of each layer's contexts, for layers with heads."""
    together = list(batches(texts, 0))
    runner = LayerRunner(encoder, together)
    fits: dict[int, LeastSquares] = {}
    for layer, module in enumerate(runner.layers):
        if module.attention.num_heads:
            output = module.attention.output
            fits[layer] = LeastSquares(output.in_features, output.out_features, bias=output.bias is not None)
            for batch in range(len(together)):
                trace = runner.trace(layer, batch)
                assert trace.context is not None  # noqa: S101 - a layer with heads has one
                stream = trace.attention_sum
                fits[layer].add(trace.context, torch.zeros_like(stream), token_weights(stream))
        runner.advance(layer)
    return fits


def _weights(encoder: Encoder, layer: int) -> Tensor:
    """The output projection as [H*V (+ 1 for the bias), D]."""
    output = encoder_layers(encoder)[layer].attention.output
    rows = [output.weight.T] if output.bias is None else [output.weight.T, output.bias[None]]
    return torch.cat(rows).double()


def _without(encoder: Encoder, layer: int, heads: Sequence[int], fit: LeastSquares) -> Encoder:
    """The network without some heads of a layer, its output projection fitted to what it gave with them."""
    config = encoder.config
    cut = remove_heads(encoder, [config.head_span(layer).start + head for head in heads])
    if len(heads) == config.num_heads[layer]:
        return cut
    kept = torch.tensor([row for row in range(len(fit.gram)) if row // config.d_v not in heads])
    gram = fit.ridged()
    fitted = torch.linalg.solve(gram[kept][:, kept], gram[kept] @ _weights(encoder, layer)).float()
    output = encoder_layers(cut)[layer].attention.output
    with torch.no_grad():
        if output.bias is not None:
            output.bias.copy_(fitted[-1])
        output.weight.copy_(fitted[: output.in_features].T)
    return cut
