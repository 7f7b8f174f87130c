import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from export.exporter import export_artifact
from export.texts import TokenizedText
from model.artifact import read_manifest
from model.config_parts import Precision
from model.encoder import Encoder
from polyhead.info import describe
from tests.networks import TINY, draw_weights, random_batches
from tests.task_artifacts import quick_export
from tests.train.conftest import read_back
from train import costs, removal, shape
from train.commands import HealSettings
from train.costs import Costs
from train.embedding import encoder_layers
from train.errors import RunError
from train.folder import save_checkpoint, write_network
from train.heal import Heal
from train.reconstruct import reconstruct
from train.settings import Kind, RunSettings
from train.shape import Shape, ShapeChoice, apply_shape, knapsack

PRE_NORM = replace(TINY, num_heads=(4, 4, 4), pre_norm=True, final_norm=True)
COSTS = Costs(np.array([[0.0, 0.0], [4.0, 4.0]]), np.array([[0.0, 0.0], [64.0, 8.0]]), 1.0, 2.0)


def vectors(encoder: Encoder) -> torch.Tensor:
    return torch.cat([encoder(batch.input_ids, batch.lengths).pooled for batch in random_batches(1, 2)])


def test_what_is_left_computes_what_the_network_does_with_the_rest_at_zero() -> None:
    encoder = draw_weights(Encoder(PRE_NORM))
    heads, neurons = ((0, 2), (1, 2, 3)), (tuple(range(0, 64, 2)), tuple(range(40)))
    cut = apply_shape(encoder, Shape(layers=(0, 2), heads=heads, neurons=neurons))
    assert (cut.config.num_heads, cut.config.intermediate_sizes) == ((2, 3), (32, 40))
    masked = draw_weights(Encoder(PRE_NORM))
    layers = encoder_layers(masked)
    gates = torch.ones(1, 12)
    gates[0, [1, 3, 8]] = 0
    for layer, gone in ((0, range(1, 64, 2)), (2, range(40, 64))):
        layers[layer].feed_forward.down.weight[:, list(gone)] = 0
    for product in (layers[1].attention.output, layers[1].feed_forward.down):
        product.weight.zero_()
        product.bias.zero_()
    for batch in random_batches(1, 2):
        expected = masked(batch.input_ids, batch.lengths, head_gates=gates.expand(len(batch.lengths), -1)).pooled
        torch.testing.assert_close(cut(batch.input_ids, batch.lengths).pooled, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_a_network_without_a_layer_is_fitted_to_the_whole_one(pre_norm: bool) -> None:
    config = replace(PRE_NORM, pre_norm=pre_norm, final_norm=pre_norm)
    teacher = draw_weights(Encoder(config))
    kept = Shape(layers=(0, 2), heads=((0, 1, 2, 3),) * 2, neurons=(tuple(range(64)),) * 2)
    cut, student = apply_shape(teacher, kept), apply_shape(teacher, kept)
    reconstruct(student, teacher, random_batches(2, 24), kept.layers)
    whole = vectors(teacher)
    assert (vectors(student) - whole).square().mean() < 0.8 * (vectors(cut) - whole).square().mean()


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


def test_neurons_that_others_stand_for_go_first(texts: list[TokenizedText], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "TOGETHER", 1)
    encoder = draw_weights(Encoder(PRE_NORM))
    feed_forward = encoder_layers(encoder)[1].feed_forward
    for product in (feed_forward.up.weight, feed_forward.up.bias):
        product[32:] = product[:32]  # every neuron has a twin
    found, _ = ShapeChoice(encoder, texts, COSTS).choose(1.09, ["neurons"])  # 32 neurons of 192 bring 1.11
    assert [len(neurons) for neurons in found.neurons] == [64, 32, 64]
    assert sorted(neuron % 32 for neuron in found.neurons[1]) == list(range(32))


def by_size(encoders: Sequence[Encoder], *_: object) -> list[float]:
    """Seconds that grow with the parameters in the layers: the same in every run."""
    return [1 + 1e-4 * sum(tensor.numel() for tensor in encoder.layers.parameters()) for encoder in encoders]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=pytest.mark.exhaustive)])
def test_a_faster_network_is_written_exported_and_described(
    precision: Precision, tiny_folder: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (costs, shape):
        monkeypatch.setattr(module, "time_networks", by_size)
    asked = HealSettings(model=str(tiny_folder), texts=(text_file,), fitting_texts=50, faster=1.3)
    recipe = Heal(asked, RunSettings(output=tmp_path / "healed"))
    speed = recipe.described["speed"]
    assert speed["estimated"] >= 1.3
    assert speed["measured"] == pytest.approx(speed["estimated"], abs=0.05)
    write_network(tmp_path / "healed", recipe.encoder, recipe.like)
    save_checkpoint(tmp_path / "healed", {}, {"recipe": recipe.described})
    resumed = Heal(asked, RunSettings(output=tmp_path / "healed", resume=True))
    assert (resumed.encoder.config, resumed.like.removed) == (recipe.encoder.config, recipe.like.removed)
    healed = read_back(tmp_path / "healed")
    assert healed.encoder.config == recipe.encoder.config
    with quick_export():
        export_artifact(healed, tmp_path / "artifact", precision=precision, explains=False)
    manifest = read_manifest(tmp_path / "artifact")
    assert manifest.removed_in_training == recipe.like.removed
    assert manifest.removed_in_training["speed"]["asked"] == 1.3
    assert "neurons" in describe(manifest)["without"]
