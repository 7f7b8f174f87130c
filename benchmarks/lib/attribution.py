"""Scores of a text's tokens by several methods: which of them carry its similarity to another text, in PyTorch.

Each takes a text's ids and the other text's vector, and gives one number a token, the larger the more it carries.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from model.analysis.arrays import Float64Array
from model.analysis.contributions import pooled_parts, token_shares
from model.analysis.rollout import saliency
from model.decomposition.decompose import decompose
from model.encoder import Encoder, EncoderOutput

STEPS = 20  # of the path of integrated Jacobians
PAD = 0


class Given(nn.Module):
    """In place of an embedding layer: its output [T, D] is given."""

    def __init__(self, embeddings: nn.Module, embedded: Tensor) -> None:
        super().__init__()
        self.token = embeddings.token
        self.embedded = embedded

    def forward(self, *_: object) -> Tensor:
        """[T, D], whatever the ids."""
        return self.embedded


def run(encoder: Encoder, ids: list[int], *, shows_heads: bool = False) -> EncoderOutput:
    """One text; with the heads' weights and value norms where they are to be shown."""
    layers = torch.full((encoder.config.num_layers,), shows_heads)
    output: EncoderOutput = encoder(torch.tensor([ids]), torch.tensor([len(ids)]), norm_layers=layers)
    return output


def vector(encoder: Encoder, ids: list[int]) -> Tensor:
    """A text's embedding [D], of length 1."""
    with torch.no_grad():
        return nn.functional.normalize(run(encoder, ids).pooled[0], dim=0)


def network(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Parts followed through the network, the biases in a slot of their own."""
    with torch.no_grad():
        return _numpy(decompose(encoder, torch.tensor([ids]), with_biases=False).output @ other)


def pooling(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Final token vectors, as pooled."""
    with torch.no_grad():
        hidden = run(encoder, ids).last_hidden_state[0].numpy()
    scores: Float64Array = pooled_parts(hidden, encoder.config.pooling) @ other.numpy()
    return scores


def rollout(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Attention rollout (Abnar and Zuidema 2020); it does not know the other text."""
    del other
    with torch.no_grad():
        output = run(encoder, ids)
    layers = [weights[0].numpy() for weights in output.attentions if weights is not None and weights.shape[1]]
    return saliency(layers, token_shares(output.last_hidden_state[0].numpy(), encoder.config.pooling)).astype(
        np.float64
    )


def norms(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """What all heads take from a token: the sum of ||alpha f(x)|| (Kobayashi et al. 2020) over layers and queries."""
    del other
    with torch.no_grad():
        output = run(encoder, ids, shows_heads=True)
    taken = [
        (weights[0] * lengths[0][:, None]).sum(dim=(0, 1))
        for weights, lengths in zip(output.attentions, output.value_norms, strict=True)
        if weights is not None and lengths is not None
    ]
    return _numpy(torch.stack(taken).sum(dim=0))


def gradient_x_input(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """The similarity's gradient at the embedding layer's output, times that output."""
    embedded = _embedded(encoder, ids)
    return _numpy((_gradient(encoder, ids, embedded, other, is_cosine=True) * embedded).sum(dim=-1))


def integrated_jacobians(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Rows of integrated Jacobians (Moeller et al. 2023, equation 6) summed over the other text.

    The reference is the text with [PAD] in place of every token between the first and the last.
    """
    embedded = _embedded(encoder, ids)
    reference = _embedded(encoder, [ids[0], *[PAD] * (len(ids) - 2), ids[-1]])
    shares = (torch.arange(STEPS) + 0.5) / STEPS
    gradients = [
        _gradient(encoder, ids, reference + share * (embedded - reference), other, is_cosine=False) for share in shares
    ]
    return _numpy((torch.stack(gradients).mean(dim=0) * (embedded - reference)).sum(dim=-1))


def chance(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Random numbers."""
    del encoder, other
    return np.random.default_rng(ids).random(len(ids))


METHODS: Mapping[str, Callable[[Encoder, list[int], Tensor], Float64Array]] = MappingProxyType(
    {
        "through the network": network,
        "pooled final vectors": pooling,
        "rollout": rollout,
        "norms": norms,
        "gradient x input": gradient_x_input,
        "integrated Jacobians": integrated_jacobians,
        "random": chance,
    }
)


def _embedded(encoder: Encoder, ids: list[int]) -> Tensor:
    with torch.no_grad():
        found: Tensor = encoder.embeddings(torch.tensor(ids), torch.arange(len(ids)), None)
    return found


def _gradient(encoder: Encoder, ids: list[int], embedded: Tensor, other: Tensor, *, is_cosine: bool) -> Tensor:
    """Of the text's product with the other's vector by the embedding layer's output, [n, D]."""
    embeddings, start = encoder.embeddings, embedded.detach().requires_grad_()
    encoder.set_submodule("embeddings", Given(embeddings, start))
    try:
        pooled = run(encoder, ids).pooled[0]
        product = (nn.functional.normalize(pooled, dim=0) if is_cosine else pooled) @ other
        (found,) = torch.autograd.grad(product, start)
    finally:
        encoder.set_submodule("embeddings", embeddings)
    return found


def _numpy(scores: Tensor) -> Float64Array:
    return scores.double().numpy()
