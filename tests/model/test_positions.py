import math

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from model.encoder import Encoder
from model.packing import packing
from model.positions import DistanceRows, sinusoids
from tests.networks import draw_weights, vary


def test_sinusoids_are_those_of_the_paper() -> None:
    found = sinusoids(50, 6)
    for position in range(50):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert found[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-7)
            assert found[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-7)


def test_rows_of_distances_are_those_of_deberta() -> None:
    found = DistanceRows(vary(relative_buckets=32, relative_distance=64, max_positions=90))(
        packing(torch.tensor([70, 3]), 70)
    )
    theirs = make_log_bucket_position(torch.arange(69, -70, -1), 16, 64).long()
    assert torch.equal(found, (theirs + 16).clamp(0, 31))


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_a_layer_that_lost_some_or_all_heads_keeps_the_bias_of_those_it_has(kind: str) -> None:
    whole = draw_weights(Encoder(vary(num_heads=(4, 4), attention_positions=kind)))
    kept = ((0, 2, 3), (1,))
    pruned = Encoder(vary(num_heads=(3, 1), attention_positions=kind, original_heads=4, kept_heads=kept))
    pruned.load_state_dict({name: _kept(name, tensor, kept) for name, tensor in whole.state_dict().items()})
    gates = torch.zeros(2, 8)
    gates[:, [0, 2, 3, 5]] = 1
    ids, lengths = torch.arange(24).view(2, 12), torch.tensor([12, 7])
    with torch.no_grad():
        expected, found = whole(ids, lengths, head_gates=gates), pruned(ids, lengths)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=0)
    none = draw_weights(Encoder(vary(attention_positions=kind, num_heads=(0, 0))))  # needs no bias
    assert torch.isfinite(none(ids, lengths).pooled).all()


def _kept(name: str, tensor: torch.Tensor, kept: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """The rows or columns of the heads that a layer kept; d_k 8, d_v 5."""
    if ".attention." not in name:
        return tensor
    heads = kept[int(name.split(".")[1])]
    size = 5 if "value" in name or "output" in name else 8
    places = torch.cat([torch.arange(size) + size * head for head in heads])
    if name.endswith("output.bias"):
        return tensor
    return tensor[:, places] if name.endswith("output.weight") else tensor[places]
