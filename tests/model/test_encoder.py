from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from export.checkpoint import build_encoder
from export.families import bert
from model.config import EncoderConfig, Pooling
from model.config_parts import Projection
from model.encoder import Encoder
from tests.networks import BERT_CONFIG, TINY, draw_weights

TOLERANCE = 1e-5
BATCHES = [([7], 7), ([1], 1), ([5, 2, 1], 5), ([3, 9, 4], 14), ([40, 1], 40)]


def bert_pair(**change: Any) -> tuple[BertModel, Encoder]:
    torch.manual_seed(1)
    settings = {**BERT_CONFIG, **change}
    theirs_config = BertConfig(**settings, initializer_range=0.3)
    theirs_config._attn_implementation = "eager"
    theirs = BertModel(theirs_config, add_pooling_layer=False)
    theirs.train(False)
    config = bert.read_config(settings, "mean")
    return theirs, build_encoder(config, bert.read_state(theirs.state_dict(), settings))


@pytest.mark.parametrize("change", [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu"}, {"num_attention_heads": 1}])
@pytest.mark.parametrize(("lengths", "sequence"), BATCHES)
def test_equals_transformers_bert(change: dict[str, object], lengths: list[int], sequence: int) -> None:
    theirs, ours = bert_pair(**change)
    ids = torch.randint(0, 48, (len(lengths), sequence), generator=torch.Generator().manual_seed(2))
    types = torch.randint(0, 2, ids.shape, generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(sequence) < torch.tensor(lengths)[:, None]).long()
    with torch.inference_mode():
        expected = theirs(ids, attention_mask=mask, token_type_ids=types, output_attentions=True)
        eager = ours.use("eager")(ids, torch.tensor(lengths), token_type_ids=types)
        sdpa = ours.use("sdpa")(ids, torch.tensor(lengths), token_type_ids=types)
    for row, length in enumerate(lengths):
        for found in (eager, sdpa):
            hidden = found.last_hidden_state[row, :length], expected.last_hidden_state[row, :length]
            torch.testing.assert_close(*hidden, atol=TOLERANCE, rtol=0)
        for weights, reference in zip(eager.attentions, expected.attentions, strict=True):
            assert weights is not None
            torch.testing.assert_close(weights[row, :, :length], reference[row, :, :length], atol=TOLERANCE, rtol=0)
    assert sdpa.attentions == (None,) * 3


def test_token_types_default_to_zero() -> None:
    encoder = draw_weights(Encoder(TINY))
    ids, lengths = torch.arange(12).reshape(2, 6), torch.tensor([6, 4])
    expected = encoder(ids, lengths, token_type_ids=torch.zeros_like(ids)).pooled
    assert torch.equal(encoder(ids, lengths).pooled, expected)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
def test_layers_that_differ_in_heads_agree_between_implementations(pooling: Pooling) -> None:
    config = EncoderConfig.from_dict({**TINY.to_dict(), "pooling": pooling})
    encoder = draw_weights(Encoder(config))
    ids, lengths = torch.arange(30).reshape(3, 10), torch.tensor([10, 6, 1])
    eager, sdpa = encoder.use("eager")(ids, lengths), encoder.use("sdpa")(ids, lengths)
    torch.testing.assert_close(eager.pooled, sdpa.pooled, atol=TOLERANCE, rtol=0)
    assert [None if weights is None else weights.shape[1] for weights in eager.attentions] == [4, 3, 0, 1]


def test_projections_are_applied_to_the_pooled_vector() -> None:
    config = EncoderConfig.from_dict(
        {**TINY.to_dict(), "projections": [{"size": 3}, {"size": 5, "bias": False, "activation": "identity"}]}
    )
    encoder = draw_weights(Encoder(config))
    without = Encoder(TINY)
    without.load_state_dict({name: t for name, t in encoder.state_dict().items() if not name.startswith("task_layers")})
    ids, lengths = torch.arange(8).reshape(1, 8), torch.tensor([8])
    first, bias, second = (
        encoder.get_parameter(f"task_layers.projections.{name}") for name in ("0.weight", "0.bias", "1.weight")
    )
    expected = torch.tanh(without.eval()(ids, lengths).pooled @ first.T + bias) @ second.T
    torch.testing.assert_close(encoder(ids, lengths).pooled, expected, atol=1e-6, rtol=0)
    assert config.embedding_size == 5
    assert config.projections == (Projection(size=3), Projection(size=5, bias=False, activation="identity"))
