"""An encoder of one layer whose heads do known things, so that every number of a report has a closed form.

Token and position are one-hot in the hidden state: the embedding's LayerNorm sees two ones in every row, and its weight
and bias undo it. The scaled score is `SHARPNESS` at a head's target and 0 elsewhere.
"""

import math
import random
from pathlib import Path

import torch
from torch import Tensor

from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import WORDS, draw_weights

SHARPNESS = 12.0
POSITIONS = 40
TOKENS = len(WORDS)
SIZE = TOKENS + POSITIONS
PREVIOUS, SELF, NEXT, SEPARATOR, UNIFORM, REPEATED, DEAD, TWIN = range(8)
PLANTED = EncoderConfig(
    vocab_size=TOKENS, hidden_size=SIZE, num_heads=(8,), d_k=SIZE, d_v=6, intermediate_size=8, max_positions=POSITIONS
)


def plant() -> Encoder:
    """Heads as named above; DEAD attends like SELF and adds nothing, TWIN attends like PREVIOUS."""
    encoder = draw_weights(Encoder(PLANTED))
    state = encoder.state_dict()
    _plant_embeddings(state)
    attention = "layers.0.attention"
    query, key = state[f"{attention}.query.weight"].zero_(), state[f"{attention}.key.weight"].zero_()
    query_bias = state[f"{attention}.query.bias"].zero_()
    state[f"{attention}.key.bias"].zero_()
    sharp = SHARPNESS * math.sqrt(SIZE)  # the scale divides by it
    for head, (made_query, bias, made_key) in _targets().items():
        rows = slice(head * SIZE, (head + 1) * SIZE)
        query[rows], key[rows], query_bias[rows] = sharp * made_query, made_key, sharp * bias
    state[f"{attention}.output.weight"][:, DEAD * 6 : (DEAD + 1) * 6] = 0
    encoder.load_state_dict(state)
    return encoder


def sharp_weight(tokens: int) -> float:
    """Weight of a target among this many tokens."""
    return math.exp(SHARPNESS) / (math.exp(SHARPNESS) + tokens - 1)


def draw_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 6 to 20 words, with repetitions."""
    drawn = random.Random(seed)  # noqa: S311 - no secret
    words = [word for word in WORDS[4:] if not word.startswith("##")]
    return [" ".join(drawn.choices(words, k=drawn.randint(6, 20))) for _ in range(count)]


def _plant_embeddings(state: dict[str, Tensor]) -> None:
    state["embeddings.token.weight"].zero_()[:, :TOKENS] = torch.eye(TOKENS)
    state["embeddings.position.weight"].zero_()[:, TOKENS:] = torch.eye(POSITIONS)
    mean = 2 / SIZE
    state["embeddings.norm.weight"].fill_(math.sqrt(mean - mean**2))
    state["embeddings.norm.bias"].fill_(mean)


def _targets() -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Query, its bias and key of each head, before sharpening; rows that are not named are 0."""
    positions, tokens, nothing = torch.zeros(SIZE, SIZE), torch.zeros(SIZE, SIZE), torch.zeros(SIZE, SIZE)
    positions[TOKENS:, TOKENS:] = torch.eye(POSITIONS)
    tokens[:TOKENS, :TOKENS] = torch.eye(TOKENS)
    no_bias, to_separator = torch.zeros(SIZE), torch.zeros(SIZE)
    to_separator[WORDS.index("[SEP]")] = 1
    back = torch.zeros(SIZE, SIZE)
    back[TOKENS:, TOKENS:] = torch.diag(torch.ones(POSITIONS - 1), 1)  # position i asks for i - 1
    return {
        PREVIOUS: (back, no_bias, positions),
        SELF: (positions, no_bias, positions),
        NEXT: (back.T, no_bias, positions),
        SEPARATOR: (nothing, to_separator, tokens),
        UNIFORM: (nothing, no_bias, positions),
        REPEATED: (tokens - positions, no_bias, tokens + positions),
        DEAD: (positions, no_bias, positions),
        TWIN: (back, no_bias, positions),
    }


def write_pairs(path: Path, count: int) -> Path:
    """Writes rated pairs of texts as a CSV."""
    left, right = draw_texts(count, seed=1), draw_texts(count, seed=2)
    path.write_text("".join(f"{a},{b},{i % 6}\n" for i, (a, b) in enumerate(zip(left, right, strict=True))))
    return path
