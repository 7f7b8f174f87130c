"""The batches that an exported graph is verified on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.inputs import Inputs, graph_inputs
from model.config import EncoderConfig

LONGEST_GATED = 64  # tokens a row; gates do not know positions, so longer rows would only cost time
# Every layer's weights in float64 take 8 B a score and head: 0.3 GB for twelve layers of twelve heads at 512 tokens,
# 77 GB at 8,192. Past the first length the weights of one layer of a kind are compared, past the second none, past the
# third nothing is.
LONGEST_OF_EVERY_LAYER = 512
LONGEST_WITH_WEIGHTS = 1024
LONGEST = 2048


@dataclass(frozen=True, slots=True)
class Case:
    """One batch of the grid: `lengths [B]` of real tokens in rows of `sequence` tokens.

    Attributes:
        lengths: real tokens of each row.
        sequence: tokens of each row, padding included.
        layers: those of which what the heads show is compared too.
    """

    lengths: tuple[int, ...]
    sequence: int
    layers: tuple[int, ...]

    def inputs(self, config: EncoderConfig, generator: np.random.Generator) -> Inputs:
        """Random ids in every place, padding too: what stands there must not matter."""
        shape = (len(self.lengths), self.sequence)
        ids = generator.integers(0, config.vocab_size, shape)
        types = generator.integers(0, config.type_vocab_size, shape) if config.type_vocab_size else None
        return graph_inputs(config, ids, np.array(self.lengths), layers=self.layers, token_type_ids=types)

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
    for lengths, sequence in _short(min(config.max_positions, LONGEST_OF_EVERY_LAYER)):
        yield Case(lengths, sequence, tuple(range(config.num_layers)))
    if config.max_positions > LONGEST_OF_EVERY_LAYER:
        length = min(config.max_positions, LONGEST_WITH_WEIGHTS)
        yield Case((length,), length, one_of_a_kind(config))
    if config.max_positions > LONGEST_WITH_WEIGHTS:
        length = min(config.max_positions, LONGEST)
        yield Case((length,), length, ())


def one_of_a_kind(config: EncoderConfig) -> tuple[int, ...]:
    """The last layer with heads that sees the whole text, and the last that sees a window of it."""
    last = {layer in config.local_layers: layer for layer, heads in enumerate(config.num_heads) if heads}
    return tuple(sorted(last.values()))


def _short(longest: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Real tokens of each row, and tokens a row."""
    lengths = [n for n in (1, 2, 3, 7, 8, 16, 17, 33, 64, 100, 128) if n < longest] + [longest]
    for length in lengths:
        yield (length,), length
    for length in (n for n in lengths if n <= 128):
        yield (length, 1, (length + 1) // 2), length
        yield (length,) * 8, length
    padded = min(longest, 40)
    yield (padded // 2, 1, max(1, padded // 3)), padded
    yield tuple(1 + 5 * i % padded for i in range(16)), padded
    yield (longest, 1), longest
