from dataclasses import replace

import pytest
import torch

from export.errors import UnsupportedModel
from export.pruning.removal import remove_heads
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import TINY, draw_weights

IDS = torch.randint(0, 48, (5, 12), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([12, 1, 5, 7, 3])
EVEN = replace(TINY, num_heads=(4, 4, 4))
NETWORKS = {
    "tiny": TINY,  # layers of 4, 3, 0 and 1 heads
    "rotary, no biases": replace(
        EVEN, attention_positions="rotary", positions="none", attention_bias=False, output_bias=False, pre_norm=True
    ),
    "values on their way": replace(EVEN, value_activation="silu", output_gate=True),
    "alibi": replace(EVEN, attention_positions="alibi"),
    "groups of two": replace(EVEN, num_key_value_heads=(2, 2, 4)),
    "shared layers": replace(EVEN, shared_layers=(0, 0, 0)),
    "uneven groups": replace(EVEN, num_key_value_heads=(2, 4, 1), query_groups=((1, 3), (1,) * 4, (4,))),
    "causal, normed keys": replace(EVEN, num_key_value_heads=(1, 2, 2), causal=True, query_key_norm=True),
    "wider global layers, signals": replace(
        EVEN,
        pre_norm=True,
        query_key_norm=True,
        value_norm=True,
        num_key_value_heads=(2, 1, 2),
        local_layers=(0, 2),
        window=4,
        local_head_size=6,
        layer_signal_size=5,
    ),
    "relative": replace(EVEN, attention_positions="relative", relative_buckets=8, relative_distance=16),
}


@pytest.mark.parametrize("removed", [{0}, {1, 2, 5}, {0, 1, 2, 3}, {7}, set(), set(range(8))])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_left_computes_what_the_masked_network_computes(network: str, removed: set[int]) -> None:
    encoder = draw_weights(Encoder(NETWORKS[network])).double()
    gates = torch.ones(5, sum(encoder.config.num_heads), dtype=torch.float64)
    gates[:, list(removed)] = 0
    pruned = remove_heads(encoder, removed)
    assert sum(pruned.config.num_heads) == sum(encoder.config.num_heads) - len(removed)
    expected = encoder(IDS, LENGTHS, head_gates=gates)
    found = pruned(IDS, LENGTHS)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, atol=1e-12, rtol=0)


def test_a_network_can_be_cut_again_and_stored() -> None:
    encoder = draw_weights(Encoder(NETWORKS["alibi"]))
    once = remove_heads(encoder, {1, 4, 5, 6, 7})
    twice = remove_heads(once, {1, 6})  # of 3, 0 and 4 heads: the first layer's third, the last layer's last
    together = remove_heads(encoder, {1, 4, 5, 6, 7, 2, 11})
    assert twice.config == together.config == EncoderConfig.from_dict(twice.config.to_dict())
    assert twice.config.kept_heads == ((0, 3), (), (0, 1, 2))
    assert torch.equal(twice(IDS, LENGTHS).pooled, together(IDS, LENGTHS).pooled)


def test_keys_and_values_go_with_the_last_head_that_reads_them() -> None:
    config = replace(EVEN, num_key_value_heads=(2, 2, 2))
    pruned = remove_heads(draw_weights(Encoder(config)), {0, 1, 6, 8, 9, 10, 11})
    assert (pruned.config.num_heads, pruned.config.num_key_value_heads) == ((2, 3, 0), (1, 2, 0))
    assert pruned.config.query_groups == ((2,), (2, 1), ())
    assert pruned.get_parameter("layers.0.attention.key.weight").shape == (config.d_k, config.hidden_size)
    assert pruned.get_parameter("layers.1.attention.value.weight").shape == (2 * config.d_v, config.hidden_size)
    assert remove_heads(pruned, {2, 3}).config.query_groups == ()  # the first layer's two and the second's one


def test_refuses_layers_that_need_each_others_heads() -> None:
    encoder = draw_weights(Encoder(replace(EVEN, value_residual=((0, 1), (0.5, 0.5), (0.5, 0.5)))))
    with pytest.raises(UnsupportedModel, match="none can be removed"):
        remove_heads(encoder, {0})


def test_refuses_a_head_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no head 8: the network has 8"):
        remove_heads(draw_weights(Encoder(TINY)), {8})
