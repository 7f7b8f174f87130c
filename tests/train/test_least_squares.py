import itertools

import numpy as np
import pytest
import torch

from train.least_squares import LeastSquares, removal_costs


def draw(rows: int, *columns: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, count, generator=generator, dtype=torch.float64) for count in columns]


@pytest.mark.parametrize("bias", [True, False])
def test_the_change_is_numpys_weighted_least_squares(bias: bool) -> None:
    inputs, missing, noise = draw(60, 5, 3, 1)
    weights = noise[:, 0].abs() + 0.1
    fit = LeastSquares(5, 3, bias=bias)
    for rows in (slice(0, 20), slice(20, 60)):
        fit.add(inputs[rows], missing[rows], weights[rows])
    root = weights.sqrt().numpy()[:, None]
    features = np.concatenate([inputs.numpy(), np.ones((60, 1))], axis=1) if bias else inputs.numpy()
    expected = np.linalg.lstsq(features * root, missing.numpy() * root, rcond=None)[0]
    np.testing.assert_allclose(fit.solve(ridge=0.0).numpy(), expected, atol=1e-10)


def test_a_layer_gives_afterwards_what_it_lacked() -> None:
    inputs, weight = draw(50, 6, 4)
    layer = torch.nn.Linear(6, 4, dtype=torch.float64)
    expected = inputs @ weight[:6] + 2.0
    fit = LeastSquares(6, 4, bias=True)
    fit.add(inputs, (expected - layer(inputs)).detach(), torch.ones(50, dtype=torch.float64))
    before = (expected - layer(inputs)).abs().max()
    fit.change(layer)
    assert (expected - layer(inputs)).abs().max() < 0.02 * before  # the ridge keeps a little


def test_costs_are_those_of_solving_anew_without_the_blocks() -> None:
    inputs, weights = draw(80, 9, 4)
    inputs[:, 3:6] = inputs[:, :3] @ inputs[:3, :3] + 0.1 * inputs[:, 3:6]  # one block is nearly another's shadow
    inputs = torch.cat([inputs, torch.ones(80, 1, dtype=torch.float64)], dim=1)  # the bias stays
    weights = torch.cat([weights[:9], torch.ones(1, 4, dtype=torch.float64)])
    target = (inputs @ weights).numpy()

    def error(removed: list[int]) -> float:
        kept = [column for column in range(10) if column // 3 not in removed or column == 9]
        features = inputs[:, kept].numpy()
        solution = np.linalg.lstsq(features, target, rcond=None)[0]
        return float(((features @ solution - target) ** 2).sum())

    order, costs = removal_costs(inputs.T @ inputs, weights, blocks=3, size=3)
    assert sorted(order) == [0, 1, 2]
    assert order[0] == min(range(3), key=lambda block: error([block]))
    for count, (_, total) in enumerate(zip(order, itertools.accumulate(costs), strict=True), 1):
        assert total == pytest.approx(error(order[:count]), rel=1e-6)
