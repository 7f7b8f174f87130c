"""Scores of a text's tokens by several methods: which of them carry its similarity to another text, in PyTorch.

Each takes a text's ids and the other text's vector, and gives one number a token, the larger the more it carries. Of a
cross-encoder the ids are those of a pair, and what is carried is its logit: the other's vector is a 1.
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
POOLING = "pooled final vectors"


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
    lengths, types = torch.tensor([len(ids)]), token_types(encoder, ids)
    output: EncoderOutput = encoder(torch.tensor([ids]), lengths, token_type_ids=types, norm_layers=layers)
    return output


def token_types(encoder: Encoder, ids: list[int]) -> Tensor | None:
    """Which text each token of a text or pair is of, int64 [1, n]: behind the first separator it is the second."""
    if not encoder.config.type_vocab_size:
        return None
    second = ids.index(ids[-1]) + 1
    return torch.tensor([[int(place >= second) for place in range(len(ids))]])


def text_places(ids: list[int]) -> list[int]:
    """Places of the tokens that are not special: neither the first token nor a separator, as the last is one."""
    return [place for place, token in enumerate(ids) if token not in {ids[0], ids[-1]}]


def vector(encoder: Encoder, ids: list[int]) -> Tensor:
    """A text's embedding [D], of length 1; or logits."""
    with torch.no_grad():
        output = run(encoder, ids).task_output[0]
        return nn.functional.normalize(output, dim=0) if encoder.config.task == "embedding" else output


def network(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Parts followed through the network, the biases in a slot of their own."""
    with torch.no_grad():
        found = decompose(encoder, torch.tensor([ids]), token_types(encoder, ids), with_biases=False)
    return _numpy(found.output @ other)


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
    is_cosine = encoder.config.task == "embedding"
    return _numpy((_gradient(encoder, ids, embedded, other, is_cosine=is_cosine) * embedded).sum(dim=-1))


def integrated_jacobians(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Rows of integrated Jacobians (Moeller et al. 2023, equation 6) summed over the other text.

    The reference is the text with [PAD] in place of every token that is not special. Of one logit they are integrated
    gradients (Sundararajan et al. 2017).
    """
    embedded = _embedded(encoder, ids)
    replaced = set(text_places(ids))
    reference = _embedded(encoder, [PAD if place in replaced else token for place, token in enumerate(ids)], ids)
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
        POOLING: pooling,
        "rollout": rollout,
        "norms": norms,
        "gradient x input": gradient_x_input,
        "integrated Jacobians": integrated_jacobians,
        "random": chance,
    }
)


def _embedded(encoder: Encoder, ids: list[int], typed_as: list[int] | None = None) -> Tensor:
    """What the embedding layer gives, with the token types of this text or of another."""
    types = token_types(encoder, typed_as or ids)
    with torch.no_grad():
        types = None if types is None else types[0]
        found: Tensor = encoder.embeddings(torch.tensor(ids), torch.arange(len(ids)), types)
    return found


def _gradient(encoder: Encoder, ids: list[int], embedded: Tensor, other: Tensor, *, is_cosine: bool) -> Tensor:
    """Of the text's product with the other's vector by the embedding layer's output, [n, D]."""
    embeddings, start = encoder.embeddings, embedded.detach().requires_grad_()
    encoder.set_submodule("embeddings", Given(embeddings, start))
    try:
        output = run(encoder, ids).task_output[0]
        product = (nn.functional.normalize(output, dim=0) if is_cosine else output) @ other
        (found,) = torch.autograd.grad(product, start)
    finally:
        encoder.set_submodule("embeddings", embeddings)
    return found


def _numpy(scores: Tensor) -> Float64Array:
    return scores.double().numpy()
