"""The exported graphs of networks unlike BERT and of tasks: fused in every layer, a text's bits its own."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from export.graph import trace
from export.precision import TOLERANCES
from export.runtime import Session
from export.verify import verify
from model.artifact import GRAPH, Artifact, attentions_name
from model.config import EncoderConfig
from model.config_parts import OUTPUT_NAMES
from model.encoder import Encoder
from tests.networks import batch_of, draw_weights, vary
from tests.task_artifacts import TaskArtifact

LONGEST = 24
CHANGES: dict[str, dict[str, Any]] = {
    "relative": {"attention_positions": "relative", "shared_layers": (0, 0)},
    "alibi": {"positions": "none", "attention_positions": "alibi", "gated": True, "up_bias": False},
    "local": {
        "positions": "none",
        "attention_positions": "rotary",
        "local_rope_theta": 100.0,
        "local_layers": (1,),
        "window": 3,
        **dict.fromkeys(("pre_norm", "final_norm", "gated"), True),
        **dict.fromkeys(("first_attention_norm", "up_bias", "down_bias"), False),
        **dict.fromkeys(("attention_bias", "output_bias", "norm_bias"), False),
    },
    "grouped": {
        **dict.fromkeys(("pre_norm", "sandwich_norm", "final_norm", "gated", "causal", "query_key_norm"), True),
        "num_key_value_heads": (2, 1),
        "positions": "none",
        "attention_positions": "rotary",
        "norm": "rms_norm",
        "score_scale": 0.5,
    },
    "uneven groups": {"num_key_value_heads": (3, 1), "query_groups": ((1, 2, 1), (4,)), "causal": True},
    "more norms": {"query_key_layer_norm": True, "attention_residual_norm": True, "attention_positions": "alibi"},
    "root-mean-square": {"positions": "sinusoidal", "norm": "rms_norm", "activation": "silu", "gated": True},
}
NETWORKS = {name: vary(type_vocab_size=0, **change) for name, change in CHANGES.items()}


FAST = ("relative", "local")  # a bias a head; and rotary, pre-norm and gated, with a window


PARAMETERS = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in NETWORKS]
TASKS = ("reranker", "sparse_encoder", "multi_vector_encoder")


@pytest.fixture(scope="module")
def graph_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Encoder, Path]]:
    @cache
    def draw(name: str) -> tuple[Encoder, Path]:
        encoder, path = draw_weights(Encoder(NETWORKS[name])), tmp_path_factory.mktemp(name) / "model.onnx"
        onnx_ir.save(trace(encoder), path)
        return encoder, path

    return draw


@pytest.fixture(scope="module", params=[*PARAMETERS, *TASKS])
def opened(
    request: pytest.FixtureRequest, graph_of: Callable[[str], tuple[Encoder, Path]]
) -> tuple[Session, EncoderConfig]:
    """The graph of a network, or of a task's artifact."""
    if request.param in NETWORKS:
        encoder, path = graph_of(request.param)
        return Session(path, threads=1), encoder.config
    made: TaskArtifact = request.getfixturevalue(request.param)
    return Session(made.artifact / GRAPH, threads=1), Artifact.open(made.artifact).manifest.config


@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=6),
    padding=st.integers(0, 8),
    place=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=settings().max_examples // 4)
def test_a_text_gives_the_same_bits_alone_and_in_any_batch(
    opened: tuple[Session, EncoderConfig], lengths: list[int], padding: int, place: int, seed: int
) -> None:
    (session, config), generator = opened, np.random.default_rng(seed)
    rows = [generator.integers(0, config.vocab_size, length) for length in lengths]
    place %= len(rows)
    output, shown, length = OUTPUT_NAMES[config.task], attentions_name(config.num_layers - 1), lengths[place]
    alone = session.run(batch_of(config, [rows[place]], layers=range(config.num_layers)))
    real = length if config.task == "multi_vector" else None
    together = session.run(batch_of(config, rows, padding))[output][place]
    assert np.array_equal(together[:real], alone[output][0][:real])
    weights = session.run(batch_of(config, rows, padding, layers=range(config.num_layers)))[shown][place]
    assert np.array_equal(weights[:, :length, :length], alone[shown][0])


def test_chunks_of_the_vocabulary_do_not_depend_on_the_batch(sparse_encoder: TaskArtifact) -> None:
    """More texts than a chunk has tokens: one position of each at a time."""
    session = Session(sparse_encoder.artifact / GRAPH, threads=1)
    config, generator = Artifact.open(sparse_encoder.artifact).manifest.config, np.random.default_rng(0)
    rows = [generator.integers(0, 400, 5) for _ in range(30)]
    together = session.run(batch_of(config, rows))["sparse"]
    for place, row in enumerate(rows):
        assert np.array_equal(session.run(batch_of(config, [row]))["sparse"][0], together[place])


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_graph_verifies_and_holds_a_shared_weight_once(
    graph_of: Callable[[str], tuple[Encoder, Path]], name: str
) -> None:
    encoder, path = graph_of(name)
    fused, parity = verify(path, encoder, tolerance=TOLERANCES["fp32"])
    assert fused == {"ai.onnx.Attention": 2}
    assert max(parity[kind] for kind in ("pooled", "attentions", "value_norms", "gated")) < 2e-5
    if encoder.config.shared_layers:
        initializers = onnx_ir.load(path).graph.initializers.values()
        stored = sum(value.const_value.nbytes for value in initializers if value.const_value)
        once = sum(parameter.nbytes for parameter in encoder.parameters())  # PyTorch counts a shared one once
        assert stored == pytest.approx(once, rel=0.05)  # all but biases that were folded


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "local"])
def test_half_precision(tmp_path: Path, name: str) -> None:
    encoder = draw_weights(Encoder(NETWORKS[name]))
    for parameter in encoder.parameters():
        parameter.mul_(0.5 if parameter.ndim > 1 else 1.0)  # drawn for float32: gates multiply what 11 bits round
    onnx_ir.save(trace(copy.deepcopy(encoder).to(torch.float16)), tmp_path / "model.onnx")
    fused, _ = verify(tmp_path / "model.onnx", encoder, tolerance=TOLERANCES["fp16"])
    assert fused == {"ai.onnx.Attention": 2}
