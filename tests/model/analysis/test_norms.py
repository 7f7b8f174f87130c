from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig

from model.analysis.norms import norm_weighted, value_norms
from tests.model.analysis.maps import draw_maps
from tests.networks import BERT_CONFIG


@pytest.fixture
def bert() -> Any:
    """Drawn weights with biases that matter, eager attention."""
    torch.manual_seed(0)
    config = BertConfig(**BERT_CONFIG, initializer_range=0.3)
    auto: Any = AutoModel  # its methods have no types
    model = auto.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(std=0.5)
    return model


def test_scales_each_column_by_the_length_of_what_it_moves() -> None:
    weights = np.array([[[0.5, 0.5], [0.1, 0.9]], [[1.0, 0.0], [0.25, 0.75]]], dtype=np.float32)
    found = norm_weighted(weights, np.array([[2.0, 0.0], [1.0, 4.0]], dtype=np.float32))
    np.testing.assert_allclose(found, [[[1.0, 0.0], [0.2, 0.0]], [[1.0, 0.0], [0.25, 3.0]]], rtol=1e-6)


def test_lengths_of_known_vectors() -> None:
    values = np.array([[[3.0, 0.0], [0.0, 2.0]]], dtype=np.float32)  # [H, n, V]
    output = np.array([[[1.0, 0.0, 0.0], [0.0, 3.0, 4.0]]], dtype=np.float32)  # [H, V, D]
    np.testing.assert_allclose(value_norms(values, output), [[3.0, 10.0]], rtol=1e-6)


@pytest.mark.parametrize("layer", range(BERT_CONFIG["num_hidden_layers"]))
def test_against_the_vectors_that_bert_adds_up(bert: Any, layer: int) -> None:
    """Every alpha f(x) one by one from `transformers`' own layers: they add up to its output, and have these norms."""
    with torch.no_grad():
        answer = bert(torch.arange(4, 15)[None], output_attentions=True, output_hidden_states=True)
        attention, hidden = bert.encoder.layer[layer].attention, answer.hidden_states[layer]
        heads = BERT_CONFIG["num_attention_heads"]
        values = attention.self.value(hidden)[0].unflatten(-1, (heads, -1)).transpose(0, 1)  # [H, n, V]
        output = attention.output.dense.weight.T.unflatten(0, (heads, -1))  # [H, V, D]
        alpha = answer.attentions[layer][0]  # [H, n, n]
        moved = alpha[..., None] * (values @ output)[:, None]  # [H, query, key, D]
        context = (alpha @ values).transpose(0, 1).flatten(1)
        torch.testing.assert_close(moved.sum((0, 2)) + attention.output.dense.bias, attention.output.dense(context))
    found = norm_weighted(alpha.numpy(), value_norms(values.numpy(), output.numpy()))
    np.testing.assert_allclose(found, moved.norm(dim=-1).numpy(), rtol=1e-5, atol=1e-6)


def test_any_axes_in_front_and_single_queries(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 3, 1, 7)
    norms = generator.random((2, 3, 7), dtype=np.float32)
    found = norm_weighted(weights, norms)
    assert (found.shape, found.dtype.name) == ((2, 3, 1, 7), "float32")
    np.testing.assert_array_equal(found[1, 2], norm_weighted(weights[1, 2:], norms[1, 2:])[0])


def test_permuting_tokens_permutes_both_axes(generator: np.random.Generator) -> None:
    weights, norms = draw_maps(generator, 2, 6, 6), generator.random((2, 6), dtype=np.float32)
    order = generator.permutation(6)
    expected = norm_weighted(weights, norms)[:, order][:, :, order]
    np.testing.assert_array_equal(norm_weighted(weights[:, order][:, :, order], norms[:, order]), expected)


def test_refuses_norms_of_another_text() -> None:
    with pytest.raises(
        ValueError, match=r"value_norms have shape \(2, 5\), expected \[..., H, K\] of weights \(2, 6, 6\)"
    ):
        norm_weighted(np.zeros((2, 6, 6), dtype=np.float32), np.zeros((2, 5), dtype=np.float32))
