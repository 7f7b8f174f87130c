import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from model.encoder import Encoder
from model.initialise import initialise
from tests.networks import TINY

LARGE = replace(TINY, vocab_size=2000, hidden_size=64, num_heads=(4, 4), intermediate_size=256)


def test_weights_are_drawn_as_bert_draws_them() -> None:
    reference = BertModel(
        BertConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    )
    expected = {tuple(p.shape): (p.mean().item(), p.std().item()) for p in reference.parameters() if p.numel() > 10_000}
    own = {tuple(p.shape): (p.mean().item(), p.std().item()) for p in initialise(Encoder(LARGE), 0).parameters()}
    shared = expected.keys() & own.keys()
    assert len(shared) >= 2
    for shape in shared:
        assert own[shape][0] == pytest.approx(expected[shape][0], abs=1e-3)
        assert own[shape][1] == pytest.approx(expected[shape][1], rel=0.05)


def test_biases_are_0_and_norms_1() -> None:
    encoder = initialise(Encoder(LARGE), 0)
    norms = {id(p) for m in encoder.modules() if isinstance(m, nn.LayerNorm) for p in [m.weight]}
    for parameter in encoder.parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.full_like(parameter, float(id(parameter) in norms)))


def test_a_pre_norm_network_scales_what_is_added() -> None:
    plain, scaled = (initialise(Encoder(replace(LARGE, pre_norm=p)), 0) for p in (False, True))
    for name, parameter in plain.named_parameters():
        is_added = name.endswith(("attention.output.weight", "down.weight"))
        factor = 1 / math.sqrt(2 * 2) if is_added else 1.0
        torch.testing.assert_close(dict(scaled.named_parameters())[name], factor * parameter)


def test_the_seed_decides() -> None:
    first, again, other = (initialise(Encoder(TINY), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embeddings.token.weight"], other["embeddings.token.weight"])


def test_the_mix_of_a_value_residual_begins_where_the_configuration_says() -> None:
    config = replace(LARGE, value_residual=((0.0, 1.0), (0.3, 0.7)), learned_value_residual=True)
    state = initialise(Encoder(config), 0).state_dict()
    assert state["layers.1.attention.stream.mix"].tolist() == pytest.approx([0.3, 0.7])
