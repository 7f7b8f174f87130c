"""The batches that an exported graph is verified on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.artifact import ATTENTION_LAYERS, INPUT_IDS, LENGTHS, NORM_LAYERS, TOKEN_TYPE_IDS
from model.config import EncoderConfig

LONGEST_GATED = 64  # tokens a row; gates do not know positions, so longer rows would only cost time
# Every layer's weights in float64 take 8 B a score and head: 0.3 GB for twelve layers of twelve heads at 512 tokens,
# 77 GB at 8,192. Past the first length a text is verified without weights, past the second not at all.
LONGEST_WITH_WEIGHTS = 512
LONGEST = 2048


@dataclass(frozen=True, slots=True)
class Case:
    """One batch of the grid: `lengths [B]` of real tokens in rows of `sequence` tokens.

    Attributes:
        lengths: real tokens of each row.
        sequence: tokens of each row, padding included.
        with_weights: whether what the heads show is compared too.
    """

    lengths: tuple[int, ...]
    sequence: int
    with_weights: bool = True

    def inputs(self, config: EncoderConfig, generator: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """Random ids in every place, padding too: what stands there must not matter."""
        shape = (len(self.lengths), self.sequence)
        inputs: dict[str, NDArray[np.generic]] = {
            INPUT_IDS: generator.integers(0, config.vocab_size, shape),
            LENGTHS: np.array(self.lengths, np.int64),
            ATTENTION_LAYERS: np.full(config.num_layers, self.with_weights),
            NORM_LAYERS: np.full(config.num_layers, self.with_weights),
        }
        if config.type_vocab_size:
            inputs[TOKEN_TYPE_IDS] = generator.integers(0, config.type_vocab_size, shape)
        return inputs

    @property
    def is_gated(self) -> bool:
        """Whether it is run under gates too: batches of texts that differ."""
        return len(set(self.lengths)) > 1 and self.sequence <= LONGEST_GATED

    def gates(self, config: EncoderConfig, generator: np.random.Generator) -> NDArray[np.float32]:
        """Random gates, a third each of 0, of 1, and between; the last row is all 1."""
        drawn = generator.uniform(-1, 2, (len(self.lengths), sum(config.num_heads))).clip(0, 1)
        drawn[-1] = 1
        return drawn.astype(np.float32)


def grid(config: EncoderConfig) -> Iterator[Case]:
    """Batch sizes, lengths and paddings: alone, full, ragged, one token, padded past the longest, the longest."""
    longest = min(config.max_positions, LONGEST_WITH_WEIGHTS)
    lengths = [n for n in (1, 2, 3, 7, 8, 16, 17, 33, 64, 100, 128) if n < longest] + [longest]
    for length in lengths:
        yield Case((length,), length)
    for length in (n for n in lengths if n <= 128):
        yield Case((length, 1, (length + 1) // 2), length)
        yield Case((length,) * 8, length)
    padded = min(longest, 40)
    yield Case((padded // 2, 1, max(1, padded // 3)), padded)
    yield Case(tuple(1 + 5 * i % padded for i in range(16)), padded)
    yield Case((longest, 1), longest)
    if config.max_positions > longest:
        yield Case((min(config.max_positions, LONGEST),), min(config.max_positions, LONGEST), with_weights=False)
