"""The layers behind the encoder: one module a task, from hidden states to the output that the task is for.

The service normalises and truncates what comes out, a request at a time.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config import EncoderConfig, Pooling
from model.config_parts import ClassificationSettings, MultiVectorSettings, Projection, SparseSettings, Task
from model.layers import ACTIVATIONS, make_norm
from model.packing import Packing, real_tokens

CHUNK_VALUES = 1 << 23  # logits at a time, 32 MiB in float32; never less than one token of every text
LARGEST_LOGITS_OP = "LargestLogits"


class Encoded(NamedTuple):
    """What a task's layers read."""

    hidden: Tensor  # [T, D], the last layer's output of the real tokens
    last_hidden_state: Tensor  # [B, S, D], the same in rows; padding repeats a text's last token
    tokens: Packing  # where the real tokens stand
    token_embeddings: Tensor  # [vocabulary, D or token_size], the table that the network begins with


class EmbeddingLayers(nn.Module):
    """Pooling, and the projections."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pool = POOLINGS[config.pooling]
        sizes = pairwise([config.hidden_size, *(projection.size for projection in config.projections)])
        self.projections = nn.ModuleList(
            nn.Linear(*size, bias=projection.bias) for size, projection in zip(sizes, config.projections, strict=True)
        )
        self.activations = [ACTIVATIONS[projection.activation] for projection in config.projections]

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, D], or [B, size] behind projections."""
        x = self.pool(encoded.last_hidden_state, encoded.tokens.lengths)
        for projection, activation in zip(self.projections, self.activations, strict=True):
            x = activation(projection(x))
        return x


class ClassificationLayers(nn.Module):
    """Pooling, `norm(activation(dense(x)))` if there is a dense layer, and the product whose output is the logits."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings, size = config.task_settings, config.hidden_size
        assert isinstance(settings, ClassificationSettings)  # noqa: S101 - the configuration checked it
        self.pool = POOLINGS[config.pooling]
        self.dense: nn.Linear | None = None
        self.norm: nn.Module = nn.Identity()
        if settings.dense_activation is not None:
            self.dense = nn.Linear(size, size, bias=settings.dense_bias)
            self.activation = ACTIVATIONS[settings.dense_activation]
        if settings.dense_norm:
            eps, bias = (1e-5, True) if settings.dense_norm_plain else (config.norm_eps, config.norm_bias)
            self.norm = make_norm("layer_norm", size, eps=eps, bias=bias)
        self.output = nn.Linear(size, len(settings.labels), bias=settings.output_bias)

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, labels]."""
        return self.logits(self.pool(encoded.last_hidden_state, encoded.tokens.lengths))

    def logits(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., labels]."""
        if self.dense is not None:
            x = self.activation(self.dense(x))
        logits: Tensor = self.output(self.norm(x))
        return logits


class TokenClassificationLayers(ClassificationLayers):
    """The same on every real token, without pooling."""

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, S, labels]; padding repeats a text's last token."""
        return encoded.tokens.pad(self.logits(encoded.hidden))


class SparseLayers(nn.Module):
    """`log(1 + max(0, max over tokens of norm(activation(dense(x))) E^T + b))`, E the token embeddings or its own."""

    bias: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings, size = config.task_settings, config.token_size or config.hidden_size
        assert isinstance(settings, SparseSettings)  # noqa: S101 - the configuration checked it
        self.dense = nn.Linear(config.hidden_size, size, bias=settings.dense_bias)
        self.activation = ACTIVATIONS[settings.dense_activation]
        self.norm = make_norm("layer_norm", size, eps=config.norm_eps, bias=config.norm_bias)
        self.table = None if settings.tied else nn.Parameter(torch.empty(config.vocab_size, size))
        if settings.bias:
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        else:
            self.register_buffer("bias", torch.zeros(config.vocab_size, device="cpu"), persistent=False)
        self.saturations = settings.saturations

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, vocabulary], at least 0."""
        transformed = self.norm(self.activation(self.dense(encoded.hidden)))  # [T, D]
        table = encoded.token_embeddings if self.table is None else self.table
        weights = largest_logits(encoded.tokens.pad(transformed), table, self.bias)
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32))  # 1 + x in half has steps of 1e-3
        for _ in range(self.saturations):
            weights = weights.log1p()
        return weights


def largest_logits(hidden: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """`max(0, max over S of hidden table^T + bias)`, [B, S, D] -> [B, vocabulary].

    Rows after a text's end repeat its last token, so they change no maximum.
    """
    batch, vocabulary = hidden.shape[0], table.shape[0]
    tokens = max(1, CHUNK_VALUES // vocabulary)
    if torch.onnx.is_in_onnx_export():
        largest: Tensor = torch.onnx.ops.symbolic(
            f"polyhead::{LARGEST_LOGITS_OP}",
            [hidden, table, bias],
            {"chunk_tokens": tokens},
            dtype=hidden.dtype,
            shape=(batch, vocabulary),
            version=1,
        )
        return largest
    largest = hidden.new_zeros(batch, vocabulary)
    for chunk in torch.split(hidden, max(1, tokens // batch), dim=1):
        largest = torch.maximum(largest, (chunk @ table.T + bias).amax(dim=1))
    return largest


class TokenDense(nn.Module):
    """A dense layer on tokens, `activation(x W + b)`, plus its input or a product of that with a residual."""

    def __init__(self, size: int, layer: Projection) -> None:
        super().__init__()
        self.linear = nn.Linear(size, layer.size, bias=layer.bias)
        self.activation = ACTIVATIONS[layer.activation]
        self.has_residual = layer.residual
        self.residual = nn.Linear(size, layer.size, bias=False) if layer.residual and size != layer.size else None

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] -> [T, size]."""
        out = self.activation(self.linear(x))
        if not self.has_residual:
            return out
        return out + (x if self.residual is None else self.residual(x))


class MultiVectorLayers(nn.Module):
    """Dense layers on the real tokens."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings = config.task_settings
        assert isinstance(settings, MultiVectorSettings)  # noqa: S101 - the configuration checked it
        last = Projection(
            size=settings.size, bias=settings.bias, activation=settings.dense_activation, residual=settings.residual
        )
        layers = (*settings.hidden_layers, last)
        sizes = (config.hidden_size, *(layer.size for layer in settings.hidden_layers))
        self.layers = nn.Sequential(*(TokenDense(size, layer) for size, layer in zip(sizes, layers, strict=True)))

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, S, D']; padding repeats a text's last token."""
        return encoded.tokens.pad(self.layers(encoded.hidden))


TASKS: Mapping[Task, Callable[[EncoderConfig], nn.Module]] = {
    "embedding": EmbeddingLayers,
    "classification": ClassificationLayers,
    "token_classification": TokenClassificationLayers,
    "sparse": SparseLayers,
    "multi_vector": MultiVectorLayers,
}
PER_TOKEN: frozenset[Task] = frozenset({"multi_vector", "token_classification"})
"""Tasks whose output is [B, S, ...], of which only real tokens count; the others' is [B, ...]."""


def mean_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the real tokens of `hidden [B, S, D]` -> [B, D]; 0 for a row of length 0."""
    # A product, not a masked sum: [B, 1, S] @ [B, S, D] adds the tokens in order, and padding adds exact zeros.
    wide = torch.promote_types(hidden.dtype, torch.float32)  # float16 overflows on the sum over a long text
    total = real_tokens(lengths, hidden.shape[1])[:, :, None].to(wide).transpose(1, 2) @ hidden.to(wide)
    return (total.squeeze(1) / lengths.clamp(min=1)[:, None].to(wide)).to(hidden.dtype)


def cls_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The first token's vector, [B, D]."""
    del lengths
    return hidden[:, 0]


def max_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Largest value of each dimension over the real tokens, [B, D]."""
    real = real_tokens(lengths, hidden.shape[1])[:, :, None]
    return hidden.masked_fill(~real, torch.finfo(hidden.dtype).min).amax(dim=1)


def last_pooling(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The last real token's vector, [B, D]."""
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, index).squeeze(1)


POOLINGS: Mapping[Pooling, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_pooling,
    "cls": cls_pooling,
    "max": max_pooling,
    "last": last_pooling,
}
