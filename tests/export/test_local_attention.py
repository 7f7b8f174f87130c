"""Layers with a window in long rows, which the graph computes in blocks, against the encoder's dense attention."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch

from export.graph import trace
from export.runtime import Session
from export.texts import graph_inputs, run_encoder
from model.artifact import HEAD_GATES, LAST_HIDDEN_STATE
from model.config import EncoderConfig
from model.encoder import Encoder
from model.packing import packing
from model.positions import LONGEST_DENSE, AttentionPositions, Window
from tests.disk_cache import kept
from tests.networks import draw_weights

TOLERANCE = 1e-5
CONFIG = EncoderConfig(
    vocab_size=50,
    hidden_size=12,
    num_heads=(4,),
    num_key_value_heads=(2,),
    d_k=4,
    d_v=3,
    intermediate_size=8,
    max_positions=2 * LONGEST_DENSE,
    positions="none",
    attention_positions="rotary",
    local_layers=(0,),
    window=64,
)
CAUSAL = replace(CONFIG, causal=True, window=5)
BLOCK = 128


@cache
def encoder_of(config: EncoderConfig) -> Encoder:
    torch.manual_seed(0)
    return draw_weights(Encoder(config)).use("eager")


@cache
def session_of(config: EncoderConfig) -> Session:
    path = kept("local", config.to_dict(), lambda path: onnx_ir.save(trace(encoder_of(config)), path))
    return Session(Path(path), threads=1)


def inputs_of(config: EncoderConfig, lengths: Sequence[int], sequence: int, layers: Sequence[int] = ()) -> Any:
    ids = np.random.default_rng(sequence).integers(0, config.vocab_size, (len(lengths), sequence))
    return graph_inputs(config, ids, np.array(lengths), layers=layers)


@pytest.mark.parametrize("config", [CONFIG, CAUSAL], ids=["both-sides", "causal"])
@pytest.mark.parametrize(
    ("lengths", "sequence"),
    [
        ([LONGEST_DENSE + 1], LONGEST_DENSE + 1),
        ([LONGEST_DENSE + BLOCK, 1, BLOCK], LONGEST_DENSE + BLOCK),
        ([LONGEST_DENSE + 77, LONGEST_DENSE, 65], LONGEST_DENSE + 90),
    ],
)
def test_long_rows_equal_dense_attention(config: EncoderConfig, lengths: list[int], sequence: int) -> None:
    inputs = inputs_of(config, lengths, sequence)
    inputs[HEAD_GATES] = np.random.default_rng(1).uniform(0, 1, (len(lengths), sum(config.num_heads))).astype("float32")
    found = session_of(config).run(inputs)
    expected = run_encoder(encoder_of(config), inputs).last_hidden_state.numpy()
    for row, length in enumerate(lengths):
        hidden = found[LAST_HIDDEN_STATE][row, :length]
        np.testing.assert_allclose(hidden, expected[row, :length], atol=TOLERANCE, rtol=0)


def test_weights_of_long_rows_are_the_dense_ones() -> None:
    inputs = inputs_of(CONFIG, [LONGEST_DENSE + 9], LONGEST_DENSE + 9, layers=(0,))
    with_weights, without = (session_of(CONFIG).run(given) for given in (inputs, inputs_of(CONFIG, [1033], 1033)))
    expected = run_encoder(encoder_of(CONFIG), inputs)
    assert expected.attentions[0] is not None
    np.testing.assert_allclose(with_weights["attentions.0"], expected.attentions[0], atol=TOLERANCE, rtol=0)
    assert np.array_equal(with_weights[LAST_HIDDEN_STATE], without[LAST_HIDDEN_STATE])


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (CONFIG, Window(64, 64)),
        (CAUSAL, Window(5, 0)),
        (replace(CONFIG, window=65), None),
        (replace(CONFIG, max_positions=LONGEST_DENSE), None),
        (replace(CONFIG, num_key_value_heads=(), attention_positions="alibi"), None),
    ],
)
def test_wide_windows_short_networks_and_other_biases_stay_dense(config: EncoderConfig, window: Window | None) -> None:
    far, near = AttentionPositions(config)(packing(torch.tensor([3]), 3), torch.float32)
    assert (far.window, near.window) == (None, window)
