"""The heads, neurons and layers that go for a speed: the knapsack, what it chooses, and the speed as measured."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from export.texts import TokenizedText
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from train import removal, shape
from train.costs import Costs
from train.embedding import encoder_layers
from train.errors import RunError
from train.settings import Kind
from train.shape import Shape, ShapeChoice, apply_shape, knapsack

PRE_NORM = replace(TINY, num_heads=(4, 4, 4), pre_norm=True, final_norm=True)
COSTS = Costs(np.array([[0.0, 0.0], [4.0, 4.0]]), np.array([[0.0, 0.0], [64.0, 8.0]]), 1.0, 2.0)


def test_the_knapsack_finds_what_trying_all_finds() -> None:
    generator = np.random.default_rng(0)
    options = [(generator.integers(1, 200, (3, 4)).astype(float), generator.random((3, 4))) for _ in range(3)]
    places = list(itertools.product(range(3), range(4)))

    def total(chosen: Sequence[tuple[int, int]], which: int) -> float:
        return float(sum(option[which][place] for option, place in zip(options, chosen, strict=True)))

    allowed = [chosen for chosen in itertools.product(places, repeat=3) if total(chosen, 0) <= 250]
    found = knapsack(options, 250.0)  # a step is a quarter: whole numbers are not rounded
    assert total(found, 0) <= 250
    assert total(found, 1) == pytest.approx(min(total(chosen, 1) for chosen in allowed))


@pytest.fixture(scope="module")
def choice(texts: list[TokenizedText]) -> ShapeChoice:
    return ShapeChoice(draw_weights(Encoder(PRE_NORM)), texts[:40], COSTS)


@pytest.mark.parametrize("only", [("heads",), ("neurons",), ("layers",), ("heads", "neurons", "layers")])
def test_a_chosen_shape_has_the_speed_and_lacks_only_what_may_go(only: tuple[Kind, ...], choice: ShapeChoice) -> None:
    encoder = choice.encoder
    found, estimated = choice.choose(1.2, only)
    seconds = COSTS.of_network([4, 4, 4], [64, 64, 64])
    assert seconds / COSTS.of_network([len(h) for h in found.heads], [len(n) for n in found.neurons]) == estimated
    assert estimated >= 1.2
    removed = found.describe_removed(encoder.config)
    lost = {
        "heads": removed["removed"],
        "neurons": any(removed["removed_neurons"]),
        "layers": removed["removed_layers"],
    }
    assert {kind for kind, gone in lost.items() if gone} <= set(only)
    again = apply_shape(encoder, Shape.read(removed, encoder.config))
    assert again.config == apply_shape(encoder, found).config


def test_a_speed_out_of_reach_is_refused_with_the_highest(choice: ShapeChoice) -> None:
    highest = r"--faster 3 cannot be reached: without heads the network is at most 1.41 times"
    with pytest.raises(RunError, match=highest):
        choice.choose(3.0, ["heads"])


@pytest.mark.parametrize(("factor", "tries"), [(1.0, 1), (1.1, 2), (0.9, 2)])
def test_a_speed_is_reached_as_measured_where_the_table_is_wrong(
    factor: float, tries: int, texts: list[TokenizedText], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = draw_weights(Encoder(replace(PRE_NORM, intermediate_size=1024)))
    table = replace(COSTS, neurons=np.array([[0.0, 0.0], [1024.0, 64.0]]))
    timed = []

    def time_networks(encoders: Sequence[Encoder], *_: object) -> list[float]:
        configs = [encoder.config for encoder in encoders]
        timed.append([table.of_network(c.num_heads, [*map(c.inner_size, range(c.num_layers))]) for c in configs])
        return [timed[-1][0], timed[-1][1] / factor]

    monkeypatch.setattr(shape, "measure_costs", lambda *_: table)
    monkeypatch.setattr(shape, "time_networks", time_networks)
    record, _ = shape.choose_shape(encoder, texts[:40], 1.5, ["neurons"], "fp32")
    assert record["speed"]["measured"] == pytest.approx(1.5, rel=0.02)
    assert record["speed"]["estimated"] == pytest.approx(1.5 / factor, rel=0.02)
    assert len(timed) == tries


def test_a_speed_that_the_table_denies_is_as_near_as_it_gets(
    texts: list[TokenizedText], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the table 1.41 times is all that heads can give: what was found before stays."""
    encoder = draw_weights(Encoder(PRE_NORM))
    monkeypatch.setattr(shape, "measure_costs", lambda *_: COSTS)
    monkeypatch.setattr(shape, "time_networks", lambda *_: [1.0, 0.8])
    record, _ = shape.choose_shape(encoder, texts[:40], 1.35, ["heads"], "fp32")
    assert record["speed"]["measured"] == 1.25
    assert record["speed"]["estimated"] >= 1.35


def test_neurons_that_others_stand_for_go_first(texts: list[TokenizedText], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "TOGETHER", 1)
    encoder = draw_weights(Encoder(PRE_NORM))
    feed_forward = encoder_layers(encoder)[1].feed_forward
    for product in (feed_forward.up.weight, feed_forward.up.bias):
        product[32:] = product[:32]  # every neuron has a twin
    found, _ = ShapeChoice(encoder, texts, COSTS).choose(1.09, ["neurons"])  # 32 neurons of 192 bring 1.11
    assert [len(neurons) for neurons in found.neurons] == [64, 32, 64]
    assert sorted(neuron % 32 for neuron in found.neurons[1]) == list(range(32))
