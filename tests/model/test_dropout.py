from dataclasses import replace

import pytest
import torch

from model.dropout import Dropout
from model.encoder import Encoder
from tests.networks import TINY, draw_weights

IDS = torch.randint(0, 48, (5, 12), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([12, 1, 5, 7, 3])


def test_dropout_is_torchs() -> None:
    own, reference, x = Dropout().train(), torch.nn.Dropout(0.3).train(), torch.randn(40, 50)
    own.share = 0.3
    torch.manual_seed(0)
    found = own(x)
    torch.manual_seed(0)
    assert torch.equal(found, reference(x))


@pytest.mark.parametrize("shares", [{"hidden": 0.3}, {"heads": 0.5}])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_what_is_left_out_is_left_out_in_training_only(shares: dict[str, float], pre_norm: bool) -> None:
    encoder = draw_weights(Encoder(replace(TINY, pre_norm=pre_norm)))
    whole = encoder(IDS, LENGTHS).pooled
    encoder.set_dropout(**shares)
    assert torch.equal(encoder(IDS, LENGTHS).pooled, whole)
    assert not torch.equal(encoder.train()(IDS, LENGTHS).pooled, whole)
    assert torch.equal(encoder.set_dropout()(IDS, LENGTHS).pooled, whole)


def test_training_leaves_a_bias_that_the_family_lacks_at_0() -> None:
    encoder = draw_weights(Encoder(replace(TINY, num_heads=(4, 0), output_bias=False))).requires_grad_(True)
    names = {name for name, _ in encoder.named_parameters()}
    assert "layers.1.attention.output_bias" not in names
    assert torch.equal(encoder.state_dict()["layers.1.attention.output_bias"], torch.zeros(32))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    encoder(IDS, LENGTHS).pooled.square().sum().backward()
    optimizer.step()
    assert torch.equal(encoder.state_dict()["layers.1.attention.output_bias"], torch.zeros(32))
