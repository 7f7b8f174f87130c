import torch

from export.fold import fold_biases
from model.attention import MultiHeadAttention
from model.encoder import Encoder
from tests.networks import TINY, draw_weights


def test_folding_removes_two_biases_a_layer_and_changes_nothing() -> None:
    encoder = draw_weights(Encoder(TINY)).double()
    folded, removed = fold_biases(encoder)
    assert removed == 6  # three of the four layers have heads
    ids, lengths = torch.arange(24).reshape(2, 12), torch.tensor([12, 5])
    expected, found = encoder.use("eager")(ids, lengths), folded.use("eager")(ids, lengths)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-12, rtol=0)
    for weights, reference in zip(found.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(weights, reference, atol=1e-12, rtol=0)


def test_the_encoder_that_was_folded_keeps_its_biases() -> None:
    encoder = draw_weights(Encoder(TINY))
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    folded, _ = fold_biases(encoder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    attention = next(module for module in folded.modules() if isinstance(module, MultiHeadAttention))
    assert attention.key.bias is None
    assert attention.value.bias is None
