"""One weight a word of the vocabulary: SPLADE on a masked language model's head.

The logits [B, S, vocabulary] are the largest tensor of all (a text of 512 tokens: 62 MB for BERT, 512 MB for XLM-R), so
they are made a chunk of tokens at a time and only their maximum is kept.
"""

import torch
from torch import Tensor, nn

from model.config import EncoderConfig
from model.norms import make_norm
from model.tasks.activations import LAYER_ACTIVATIONS
from model.tasks.definition import Encoded, TaskDefinition
from model.tasks.settings import SparseSettings

CHUNK_VALUES = 1 << 23  # logits at a time, 32 MiB in float32; never less than one token of every text
LARGEST_LOGITS_OP = "LargestLogits"


class SparseLayers(nn.Module):
    """`log(1 + max(0, max over tokens of norm(activation(dense(x))) E^T + b))`, E the token embeddings or its own."""

    bias: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings, size = config.task_settings, config.token_size or config.hidden_size
        assert isinstance(settings, SparseSettings)  # noqa: S101 - the configuration checked it
        self.dense = nn.Linear(config.hidden_size, size, bias=settings.dense_bias)
        self.activation = LAYER_ACTIVATIONS[settings.dense_activation]
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


SPARSE = TaskDefinition(make_layers=SparseLayers, is_per_token=False)
