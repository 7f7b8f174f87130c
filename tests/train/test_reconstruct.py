"""Networks whose heads can stand for each other are repaired exactly; others at least nearly."""

from dataclasses import replace

import pytest
import torch

from export.heads.importance import drift, embed
from export.pruning.removal import remove_heads
from export.tokens import TextBatch, TokenizedText
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, random_batches
from train.choose import order_by_reconstruction
from train.reconstruct import LayerRunner, reconstruct

EVEN = replace(TINY, num_heads=(4, 4, 4))
NETWORKS = {
    "tiny": TINY,
    "pre-norm, rotary": replace(EVEN, pre_norm=True, final_norm=True, attention_positions="rotary", positions="none"),
    "alibi": replace(EVEN, attention_positions="alibi"),
    "no biases": replace(EVEN, attention_bias=False, output_bias=False, up_bias=False, down_bias=False),
}


def differences(student: Encoder, teacher: Encoder, batches: list[TextBatch]) -> float:
    """Mean squared difference of the embeddings."""
    pairs = [(net(b.input_ids, b.lengths).pooled for net in (student, teacher)) for b in batches]
    return float(torch.cat([(own - whole).square() for own, whole in pairs]).mean())


@pytest.mark.parametrize("network", NETWORKS)
def test_layers_run_one_by_one_are_the_network(network: str) -> None:
    encoder, batches = draw_weights(Encoder(NETWORKS[network])), random_batches(1, 2)
    runner = LayerRunner(encoder, batches)
    for layer in range(encoder.config.num_layers):
        runner.advance(layer)
    for batch, hidden in zip(batches, runner.hidden, strict=True):
        real = torch.arange(12) < batch.lengths[:, None]
        expected = encoder(batch.input_ids, batch.lengths).last_hidden_state[real]
        torch.testing.assert_close(encoder.final_norm(hidden), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_fitted_network_is_nearer_to_the_whole_on_other_texts(network: str) -> None:
    teacher = draw_weights(Encoder(NETWORKS[network]))
    removed = [1, 2, 4, 5, 7]
    cut, student = remove_heads(teacher, removed), remove_heads(teacher, removed)
    reconstruct(student, teacher, random_batches(1, 24))
    others = random_batches(2)
    assert differences(student, teacher, others) < 0.8 * differences(cut, teacher, others)


def test_a_head_that_another_can_stand_for_costs_nothing() -> None:
    teacher = draw_weights(Encoder(replace(TINY, num_heads=(4,), d_v=8)))
    attention = teacher.layers[0].attention
    for part in ("query", "key", "value"):  # head 2 attends as head 0 does, and reads the same
        for tensor in (getattr(attention, part).weight, getattr(attention, part).bias):
            tensor[16:24] = tensor[0:8]
    student = remove_heads(teacher, [2])
    others = random_batches(2)
    before = differences(student, teacher, others)
    reconstruct(student, teacher, random_batches(1, 24))
    assert differences(student, teacher, others) < 1e-4 * before


def test_heads_that_others_can_stand_for_go_first(texts: list[TokenizedText]) -> None:
    encoder = draw_weights(Encoder(replace(TINY, num_heads=(4, 4))))
    for layer, copy, of in ((0, 3, 1), (1, 0, 2)):
        attention = encoder.layers[layer].attention
        for part, size in (("query", 8), ("key", 8), ("value", 5)):
            for tensor in (getattr(attention, part).weight, getattr(attention, part).bias):
                tensor[copy * size : (copy + 1) * size] = tensor[of * size : (of + 1) * size]
    order = order_by_reconstruction(encoder, texts)
    assert sorted(order) == list(range(8))
    first = set(order[:2])
    assert len(first & {1, 3}) == 1
    assert len(first & {4, 6}) == 1


def test_the_order_is_better_than_its_reverse_when_the_rest_is_fitted(texts: list[TokenizedText]) -> None:
    teacher, batches = draw_weights(Encoder(EVEN)), random_batches(1, 24)
    order, whole = order_by_reconstruction(teacher, texts), embed(teacher, texts)
    drifts = []
    for removed in (order[:6], order[6:]):
        student = remove_heads(teacher, removed)
        reconstruct(student, teacher, batches)
        drifts.append(drift(embed(student, texts), whole).mean())
    assert drifts[0] < drifts[1]
