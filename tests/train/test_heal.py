"""Which parts training removes: a share, a quality or a speed, heads that gates close; and the fit in closed form."""

import json
from collections.abc import Sequence
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from export.errors import UnsupportedModel
from export.exporter import export_artifact
from export.pruning.driver import prune
from export.pruning.removal import apply_removal, remove_heads
from export.texts import HELD_OUT_TEXTS, TextBatch, TokenizedText
from model.artifact import read_manifest
from model.config import EncoderConfig
from model.config_parts import Precision
from model.encoder import Encoder
from polyhead.info import describe
from tests.command import Run
from tests.networks import TINY, draw_weights, random_batches, vary
from tests.task_artifacts import quick_export
from tests.train.conftest import draw, read_back
from train import costs, loop, shape
from train.batching import tokenize_texts
from train.commands import GateSettings, HealSettings
from train.embedding import embed_ids, encoder_layers
from train.errors import RunError
from train.folder import RECORD, save_checkpoint, write_network
from train.gates import Gates, HardConcreteGates, fold_gates
from train.heal import Heal
from train.reconstruct import LayerRunner, LeastSquares, reconstruct, require_fittable
from train.removal import Removal, eliminate, order_by_reconstruction
from train.settings import RunSettings
from train.shape import Shape, apply_shape

PRE_NORM = replace(TINY, num_heads=(4, 4, 4), pre_norm=True, final_norm=True)


def differences(student: Encoder, teacher: Encoder, batches: list[TextBatch]) -> float:
    """Mean squared difference of the embeddings."""
    pairs = [(net(b.input_ids, b.lengths).pooled for net in (student, teacher)) for b in batches]
    return float(torch.cat([(own - whole).square() for own, whole in pairs]).mean())


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
    others = random_batches(1, 2)
    assert differences(student, teacher, others) < 0.8 * differences(cut, teacher, others)


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
    twice = {"heads": [[0, 1]], "before": {"heads": [[0, 0]], "neurons": [8, 0]}}
    assert describe(replace(manifest, removed_in_training=twice))["without"] == "2 heads, 8 neurons"


EVEN = replace(TINY, num_heads=(4, 4, 4))
NETWORKS = {
    "tiny": TINY,
    "pre-norm, rotary": replace(EVEN, pre_norm=True, final_norm=True, attention_positions="rotary", positions="none"),
    "alibi": replace(EVEN, attention_positions="alibi"),
    "no biases": replace(EVEN, attention_bias=False, output_bias=False, up_bias=False, down_bias=False),
}


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


def heal(folder: Path, texts: Path, **settings: Any) -> Heal:
    asked = HealSettings(model=str(folder), texts=(texts,), fitting_texts=0, **settings)
    return Heal(asked, RunSettings(output=folder.with_name("healed")))


def test_to_a_quality_as_many_go_as_it_allows(tiny_folder: Path, text_file: Path) -> None:
    whole = read_back(tiny_folder)
    few, many = (heal(tiny_folder, text_file, lose=lose).described["removed"] for lose in (3.0, 30.0))
    assert 0 < len(few) < len(many)
    texts = tokenize_texts(HELD_OUT_TEXTS.read_text().splitlines(), whole.tokenizer, whole.max_sequence_length)
    encoders = whole.encoder, apply_removal(whole.encoder, few), apply_removal(whole.encoder, many)
    vectors = [embed_ids(encoder, texts, torch.device("cpu")) for encoder in encoders]
    lost = [100 - 100 * float(cosine_similarity(vectors[0], other).mean()) for other in vectors[1:]]
    assert lost[0] <= 3.0 + 1e-3
    assert lost[0] < lost[1] <= 30.0 + 1e-3


def test_rated_pairs_choose_by_loss_gradient(tiny_folder: Path, text_file: Path, rated_file: Path) -> None:
    assert heal(tiny_folder, text_file, lose=99.0, pairs=rated_file).described["chosen_by"] == "loss_gradient"


def test_no_head_goes(tiny_folder: Path, text_file: Path) -> None:
    with pytest.raises(RunError, match="no head is missing, and none was asked to be removed"):
        heal(tiny_folder, text_file)
    with pytest.raises(RunError, match=r"--remove 0.01 of \d heads is none: give a larger share"):
        heal(tiny_folder, text_file, remove=0.01)
    found = Mock(return_value=Mock(record={"removed": [], "definition": "leave_one_out"}))
    with patch("train.heal.prune", found), pytest.raises(RunError, match="no head can go for 1e-09 points: allow more"):
        heal(tiny_folder, text_file, lose=1e-9)


def test_heads_of_a_file_go_once_each_and_have_to_be_there(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    (heads := tmp_path / "heads.json").write_text('{"removed": [[1, 0], [0, 1], [1, 0]]}')
    assert heal(tiny_folder, text_file, heads=heads).described["removed"] == [[1, 0], [0, 1]]
    for removed, message in (
        ('{"removed": [[7, 0]]}', "removes head 0 of layer 7"),
        ('{"removed": []}', "removes no head"),
        ('{"removed": [[1, 0]], "removed_neurons": [0, 32], "removed_layers": []}', "neurons or layers too"),
        ('{"removed": 1}', r"has no list `removed` of \[layer, head\]"),
    ):
        heads.write_text(removed)
        with pytest.raises(RunError, match=message):
            heal(tiny_folder, text_file, heads=heads)


def test_an_artifact_of_a_folder_is_healed_of_what_it_lost(
    tiny_folder: Path, text_file: Path, tmp_path: Path, run: Run
) -> None:
    pruned = prune(read_back(tiny_folder), share=0.4, with_curve=False)
    with quick_export():
        export_artifact(pruned.checkpoint, tmp_path / "pruned", explains=False, pruning=pruned.record)
    healed = heal(tmp_path / "pruned", text_file, weights_from=str(tiny_folder))
    assert healed.described["removed"] == pruned.record["removed"]
    given = ["train", "gates", tmp_path / "pruned", "--remove", "0.4", "--texts", text_file]
    said = run(*given, "--output", tmp_path / "gated", code=1)
    assert said.endswith("with --weights or, where a command has no such flag, instead of the artifact\n")


LOG_ALPHA = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0, 4.0])


def gates_at(log_alpha: torch.Tensor) -> HardConcreteGates:
    gates = HardConcreteGates(len(log_alpha))
    with torch.no_grad():
        gates.log_alpha.copy_(log_alpha)
    return gates


def test_drawn_gates_are_closed_as_often_as_expected() -> None:
    gates = gates_at(LOG_ALPHA)
    drawn = gates.draw(20_000, torch.Generator().manual_seed(0)).detach()
    assert drawn.min() == 0
    assert drawn.max() == 1
    closed = (drawn == 0).double().mean(dim=0)
    # Closed where sigmoid((log u - log(1 - u) + a) / b) <= 1 / 12: u <= sigmoid(b log(1 / 11) - a).
    expected = torch.sigmoid(2 / 3 * torch.log(torch.tensor(1 / 11)) - LOG_ALPHA).double()
    torch.testing.assert_close(closed, expected, atol=0.01, rtol=0)
    assert float(gates.expected_closed().detach()) == pytest.approx(float(expected.mean()), abs=1e-6)


def test_the_multipliers_bring_the_share_to_its_target() -> None:
    gates = gates_at(torch.full((20,), 2.5))
    optimizer = torch.optim.Adam(gates.parameters(), lr=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        loss = gates.penalty(0.4) - 0.02 * gates.log_alpha.sigmoid().sum()  # which alone would keep all open
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(gates.expected_closed().detach()) == pytest.approx(0.4, abs=0.03)


def test_folded_gates_give_what_the_gated_network_gives() -> None:
    encoder = draw_weights(Encoder(TINY)).double()
    gates = torch.tensor([0.3, 1.0, 0.7, 0.5, 1.0, 0.2, 0.9, 0.6], dtype=torch.float64)
    ids = torch.randint(0, 48, (5, 12), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([12, 1, 5, 7, 3])
    expected = encoder(ids, lengths, head_gates=gates.expand(5, -1)).pooled
    torch.testing.assert_close(fold_gates(encoder, gates)(ids, lengths).pooled, expected, atol=1e-12, rtol=0)


def test_a_run_removes_as_many_heads_as_asked_and_heal_takes_its_record(
    tiny_folder: Path, text_file: Path, tmp_path: Path
) -> None:
    settings = GateSettings(model=str(tiny_folder), texts=(text_file,), remove=0.5)
    run = RunSettings(output=tmp_path / "gated", epochs=2, batch_size=8, learning_rate=1e-3, evaluations=2)
    loop.train(Gates(settings, run), run)
    record = json.loads((run.output / RECORD).read_text())
    written = read_back(run.output).encoder.config
    assert sum(written.num_heads) == 4 == len(record["removed"])
    assert read_back(run.output).removed == {"heads": record["removed"]}
    assert 0 < record["evaluations"][-1]["closed"] < 1
    healed = heal(tiny_folder, text_file, heads=run.output / RECORD)
    assert healed.encoder.config.num_heads == written.num_heads
    again = heal(run.output, text_file, remove=0.5).like.removed
    assert (len(again["heads"]), again["before"]) == (2, {"heads": record["removed"]})
    assert healed.described["removed"] == record["removed"]
