"""Networks whose heads can stand for each other are repaired exactly; others at least nearly."""

import itertools
from dataclasses import fields, make_dataclass, replace

import numpy as np
import pytest
import torch

from export.errors import UnsupportedModel
from export.pruning.removal import remove_heads
from export.texts import TextBatch, TokenizedText
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, random_batches, vary
from tests.train.conftest import draw
from train.reconstruct import LayerRunner, LeastSquares, reconstruct, require_fittable
from train.removal import Removal, eliminate, order_by_reconstruction

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
def test_layers_run_one_by_one_are_the_network_and_fitted_ones_are_nearer_to_the_whole(network: str) -> None:
    teacher, batches = draw_weights(Encoder(NETWORKS[network])), random_batches(1, 2)
    runner = LayerRunner(teacher, batches)
    for layer in range(teacher.config.num_layers):
        runner.advance(layer)
    for batch, hidden in zip(batches, runner.hidden, strict=True):
        real = torch.arange(12) < batch.lengths[:, None]
        expected = teacher(batch.input_ids, batch.lengths).last_hidden_state[real]
        torch.testing.assert_close(teacher.final_norm(hidden), expected, atol=1e-6, rtol=0)
    cut, student = (remove_heads(teacher, [1, 2, 4, 5, 7]) for _ in range(2))
    reconstruct(student, teacher, random_batches(1, 16))
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


def test_layers_are_compared_by_how_much_each_head_adds_to_the_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(replace(TINY, num_heads=(2, 2)))
    found = [
        Removal(kind="heads", layer=0, order=[1, 0], costs=[1.0, 1.0], drifts={1: 0.02, 2: 0.05}),
        Removal(kind="heads", layer=1, order=[0, 1], costs=[9.0, 9.0], drifts={1: 0.01, 2: 0.06}),
    ]
    monkeypatch.setattr("train.removal.removals", lambda *_: iter(found))
    assert order_by_reconstruction(encoder, []) == [2, 1, 0, 3]


def test_a_drift_that_was_not_measured_rises_with_the_error() -> None:
    found = Removal(kind="neurons", layer=0, order=[2, 0, 1], costs=[1.0, 3.0, 4.0], drifts={1: 0.1, 3: 0.8})
    np.testing.assert_allclose(found.rising_drifts(), [0, 0.1, 0.4, 0.8])


def drawn(rows: int, *columns: int) -> list[torch.Tensor]:
    return list(torch.split(draw(rows, sum(columns)), list(columns), dim=1))


@pytest.mark.parametrize("bias", [True, False])
def test_the_change_is_numpys_weighted_least_squares(bias: bool) -> None:
    inputs, missing, noise = drawn(60, 5, 3, 1)
    weights = noise[:, 0].abs() + 0.1
    fit = LeastSquares(5, 3, bias=bias)
    for rows in (slice(0, 20), slice(20, 60)):
        fit.add(inputs[rows], missing[rows], weights[rows])
    root = weights.sqrt().numpy()[:, None]
    features = np.concatenate([inputs.numpy(), np.ones((60, 1))], axis=1) if bias else inputs.numpy()
    expected = np.linalg.lstsq(features * root, missing.numpy() * root, rcond=None)[0]
    np.testing.assert_allclose(fit.solve(ridge=0.0).numpy(), expected, atol=1e-10)


def test_costs_are_those_of_solving_anew_without_the_blocks() -> None:
    inputs, weights = drawn(80, 9, 4)
    inputs[:, 3:6] = inputs[:, :3] @ inputs[:3, :3] + 0.1 * inputs[:, 3:6]  # one block is nearly another's shadow
    inputs = torch.cat([inputs, torch.ones(80, 1, dtype=torch.float64)], dim=1)  # the bias stays
    weights = torch.cat([weights[:9], torch.ones(1, 4, dtype=torch.float64)])
    target = (inputs @ weights).numpy()

    def error(removed: list[int]) -> float:
        kept = [column for column in range(10) if column // 3 not in removed or column == 9]
        features = inputs[:, kept].numpy()
        solution = np.linalg.lstsq(features, target, rcond=None)[0]
        return float(((features @ solution - target) ** 2).sum())

    found = eliminate(inputs.T @ inputs, weights, blocks=3, size=3, points=[1, 2, 3])
    assert sorted(found.order) == [0, 1, 2]
    assert found.order[0] == min(range(3), key=lambda block: error([block]))
    for count, total in enumerate(itertools.accumulate(found.costs), 1):
        assert total == pytest.approx(error(found.order[:count]), rel=1e-6)
        left = (inputs @ (weights - found.fitted[count])).square().sum()
        assert float(left) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("together", [1, 4])
def test_single_inputs_leave_some_at_once_up_to_a_point(together: int) -> None:
    inputs, weights = drawn(60, 12, 3)
    found = eliminate(inputs.T @ inputs, weights[:12], blocks=12, size=1, together=together, points=[6, 12])
    assert sorted(found.order) == list(range(12))
    assert list(found.fitted) == [6, 12]
    kept = inputs[:, sorted(found.order[6:])]
    left = inputs @ weights[:12] - kept @ torch.linalg.lstsq(kept, inputs @ weights[:12]).solution
    fitted = inputs @ (weights[:12] - found.fitted[6])
    torch.testing.assert_close(fitted, left, atol=1e-9, rtol=0)
    if together == 1:
        assert sum(found.costs[:6]) == pytest.approx(float(left.square().sum()), rel=1e-6)


def test_what_the_fit_does_not_know_is_refused_by_name() -> None:
    require_fittable(vary(num_key_value_heads=(2, 1), causal=True, query_key_norm=True, score_scale=1.0))
    with pytest.raises(UnsupportedModel, match="no form of sandwich_norm True: take another"):
        require_fittable(vary(pre_norm=True, sandwich_norm=True))
    with pytest.raises(UnsupportedModel, match=r"no form of shared_layers \(0, 0\)"):
        require_fittable(vary(shared_layers=(0, 0)))
    later = make_dataclass("Later", [("added_later", int, 0)], bases=(EncoderConfig,), frozen=True, kw_only=True)
    with pytest.raises(UnsupportedModel, match="no form of added_later 1"):
        require_fittable(later(**{field.name: getattr(TINY, field.name) for field in fields(TINY)}, added_later=1))
