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


def copy_head(encoder: Encoder, layer: int, copy: int, of: int) -> None:
    """Has one head attend as another does, and read the same."""
    attention, config = encoder.layers[layer].attention, encoder.config
    for part, size in (("query", config.d_k), ("key", config.d_k), ("value", config.d_v)):
        for tensor in (getattr(attention, part).weight, getattr(attention, part).bias):
            tensor[copy * size : (copy + 1) * size] = tensor[of * size : (of + 1) * size]


def test_a_head_that_another_can_stand_for_costs_nothing_and_goes_first(texts: list[TokenizedText]) -> None:
    teacher = draw_weights(Encoder(replace(TINY, num_heads=(4, 4))))
    for layer, copy, of in ((0, 3, 1), (1, 0, 2)):
        copy_head(teacher, layer, copy, of)
    order = order_by_reconstruction(teacher, texts)
    assert sorted(order) == list(range(8))
    assert [len({*order[:2]} & twins) for twins in ({1, 3}, {4, 6})] == [1, 1]
    student = remove_heads(teacher, [3])
    before = differences(student, teacher, random_batches(2))
    reconstruct(student, teacher, random_batches(1, 24))
    assert differences(student, teacher, random_batches(2)) < 1e-4 * before


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


@pytest.mark.parametrize(("size", "together"), [(3, 1), (1, 1), (1, 4)])
def test_costs_and_weights_are_those_of_solving_anew_without_the_blocks(size: int, together: int) -> None:
    inputs, weights = drawn(80, 12, 4)
    inputs[:, 3:6] = inputs[:, :3] @ inputs[:3, :3] + 0.1 * inputs[:, 3:6]  # one block is nearly another's shadow
    inputs = torch.cat([inputs, torch.ones(80, 1, dtype=torch.float64)], dim=1)  # the bias stays
    weights = torch.cat([weights[:12], torch.ones(1, 4, dtype=torch.float64)])

    def error(removed: list[int]) -> float:
        kept = inputs[:, [column for column in range(13) if column // size not in removed or column == 12]]
        return float((kept @ torch.linalg.lstsq(kept, inputs @ weights).solution - inputs @ weights).square().sum())

    blocks, points = 12 // size, [6 // size, 12 // size]
    found = eliminate(inputs.T @ inputs, weights, blocks=blocks, size=size, together=together, points=points)
    assert sorted(found.order) == list(range(blocks))
    assert found.order[0] == min(range(blocks), key=lambda block: error([block]))
    assert list(found.fitted) == points
    for count, fitted in found.fitted.items():
        left = float((inputs @ (weights - fitted)).square().sum())
        assert left == pytest.approx(error(found.order[:count]), rel=1e-6)
        if together == 1:
            assert sum(found.costs[:count]) == pytest.approx(left, rel=1e-6)


def test_what_the_fit_does_not_know_is_refused_by_name() -> None:
    require_fittable(vary(num_key_value_heads=(2, 1), causal=True, query_key_norm=True, score_scale=1.0))
    with pytest.raises(UnsupportedModel, match="no form of sandwich_norm True: take another"):
        require_fittable(vary(pre_norm=True, sandwich_norm=True))
    with pytest.raises(UnsupportedModel, match=r"no form of shared_layers \(0, 0\)"):
        require_fittable(vary(shared_layers=(0, 0)))
    later = make_dataclass("Later", [("added_later", int, 0)], bases=(EncoderConfig,), frozen=True, kw_only=True)
    with pytest.raises(UnsupportedModel, match="no form of added_later 1"):
        require_fittable(later(**{field.name: getattr(TINY, field.name) for field in fields(TINY)}, added_later=1))
