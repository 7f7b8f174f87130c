"""Which heads are chosen, what is left without them, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from export.checkpoint import Checkpoint
from export.cli import main
from export.errors import ParityError, SourceError, UnsupportedModel
from export.heads.corpus import read_pairs
from export.heads.subject import find_subject
from export.pruning.curve import PruningQuality, counts, draw_curve, most_within, with_bounds
from export.pruning.driver import Definition, halve, least_first, prune, random_orders, read_material
from export.pruning.removal import apply_removal, remove_heads
from export.runtime import Session
from model.artifact import GRAPH, HEADS, PRUNING, PRUNING_PICTURE, Artifact
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.family_models import read
from tests.networks import TINY, batch_of, draw_weights
from tests.planted import DEAD, draw_texts
from tests.task_artifacts import quick_export

IDS = torch.randint(0, 48, (5, 12), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([12, 1, 5, 7, 3])
EVEN = replace(TINY, num_heads=(4, 4, 4))
NETWORKS = {
    "tiny": TINY,  # layers of 4, 3, 0 and 1 heads
    "rotary, no biases": replace(
        EVEN, attention_positions="rotary", positions="none", attention_bias=False, output_bias=False, pre_norm=True
    ),
    "values on their way": replace(EVEN, value_activation="silu", output_gate=True),
    "alibi": replace(EVEN, attention_positions="alibi"),
    "groups of two": replace(EVEN, num_key_value_heads=(2, 2, 4)),
    "shared layers": replace(EVEN, shared_layers=(0, 0, 0)),
    "uneven groups": replace(EVEN, num_key_value_heads=(2, 4, 1), query_groups=((1, 3), (1,) * 4, (4,))),
    "causal, normed keys": replace(EVEN, num_key_value_heads=(1, 2, 2), causal=True, query_key_norm=True),
    "wider global layers, signals": replace(
        EVEN,
        pre_norm=True,
        query_key_norm=True,
        value_norm=True,
        num_key_value_heads=(2, 1, 2),
        local_layers=(0, 2),
        window=4,
        local_head_size=6,
        layer_signal_size=5,
    ),
    "relative": replace(EVEN, attention_positions="relative", relative_buckets=8, relative_distance=16),
}


@pytest.mark.parametrize("removed", [{0}, {1, 2, 5}, {0, 1, 2, 3}, {7}, set(), set(range(8)), set(range(12))])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_left_computes_what_the_masked_network_computes(network: str, removed: set[int]) -> None:
    encoder = draw_weights(Encoder(NETWORKS[network])).double()
    removed &= set(range(sum(encoder.config.num_heads)))
    gates = torch.ones(5, sum(encoder.config.num_heads), dtype=torch.float64)
    gates[:, list(removed)] = 0
    pruned = remove_heads(encoder, removed)
    assert sum(pruned.config.num_heads) == sum(encoder.config.num_heads) - len(removed)
    expected = encoder(IDS, LENGTHS, head_gates=gates)
    found = pruned(IDS, LENGTHS)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, atol=1e-12, rtol=0)


def test_a_network_can_be_cut_again_and_stored() -> None:
    encoder = draw_weights(Encoder(NETWORKS["alibi"]))
    once = remove_heads(encoder, {1, 4, 5, 6, 7})
    twice = remove_heads(once, {1, 6})  # of 3, 0 and 4 heads: the first layer's third, the last layer's last
    together = remove_heads(encoder, {1, 4, 5, 6, 7, 2, 11})
    assert twice.config == together.config == EncoderConfig.from_dict(twice.config.to_dict())
    assert twice.config.kept_heads == ((0, 3), (), (0, 1, 2))
    assert torch.equal(twice(IDS, LENGTHS).pooled, together(IDS, LENGTHS).pooled)


def test_keys_and_values_go_with_the_last_head_that_reads_them() -> None:
    config = replace(EVEN, num_key_value_heads=(2, 2, 2))
    pruned = remove_heads(draw_weights(Encoder(config)), {0, 1, 6, 8, 9, 10, 11})
    assert (pruned.config.num_heads, pruned.config.num_key_value_heads) == ((2, 3, 0), (1, 2, 0))
    assert pruned.config.query_groups == ((2,), (2, 1), ())
    assert pruned.get_parameter("layers.0.attention.key.weight").shape == (config.d_k, config.hidden_size)
    assert pruned.get_parameter("layers.1.attention.value.weight").shape == (2 * config.d_v, config.hidden_size)
    assert remove_heads(pruned, {2, 3}).config.query_groups == ()  # the first layer's two and the second's one


@pytest.mark.parametrize(
    ("change", "removed", "error", "message"),
    [
        ({"value_residual": ((0, 1), (0.5, 0.5), (0.5, 0.5))}, 0, UnsupportedModel, "none can be removed"),
        ({"query_key_layer_norm": True}, 0, UnsupportedModel, "normed over all heads together: none can be removed"),
        ({}, 12, ValueError, "no head 12: the network has 12"),
    ],
)
def test_refuses_heads_that_cannot_be_removed(change: Any, removed: int, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        remove_heads(draw_weights(Encoder(replace(EVEN, **change))), {removed})


def embedded(checkpoint: Checkpoint, encoder: Encoder, texts: tuple[str, ...]) -> np.ndarray:
    rows = [checkpoint.tokenizer.encode(text).ids for text in texts]
    pooled = [encoder.use("eager")(torch.tensor([row]), torch.tensor([len(row)])).pooled[0] for row in rows]
    return torch.nn.functional.normalize(torch.stack(pooled), dim=1).numpy()


@pytest.mark.parametrize("definition", ["leave_one_out", "jacobian", "output_norm", "loss_gradient"])
def test_the_dead_head_goes_first(planted: Checkpoint, pairs_file: Path, definition: Definition) -> None:
    pruned = prune(planted, share=1 / 8, definition=definition, pairs=pairs_file, with_curve=False)
    assert pruned.record["removed"] == [[0, DEAD]]
    assert pruned.record["definition"] == definition
    assert pruned.record["after"]["points"] == pytest.approx(pruned.record["before"]["points"], abs=1e-4)
    assert pruned.record["after"]["cosine_worst"] == pytest.approx(1, abs=1e-6)
    assert pruned.checkpoint.encoder.config.num_heads == (7,)
    assert pruned.curve is None


def test_quality_is_that_of_the_half_that_was_not_chosen_by(planted: Checkpoint, pairs_file: Path) -> None:
    pruned = prune(planted, share=0.5, pairs=pairs_file, with_curve=False)
    record = pruned.record
    assert (record["chosen_on_pairs"], record["judged_on_pairs"]) == (20, 20)
    judged = read_pairs(pairs_file).choose(halve(40)[1])
    for encoder, found in ((planted.encoder, "before"), (pruned.checkpoint.encoder, "after")):
        left, right = (embedded(planted, encoder, texts) for texts in (judged.left, judged.right))
        expected = 100 * spearmanr((left * right).sum(axis=1), judged.ratings)[0]
        assert record[found]["points"] == pytest.approx(expected, abs=1e-3)
    full, cut = (embedded(planted, e, judged.left + judged.right) for e in (planted.encoder, pruned.checkpoint.encoder))
    assert record["after"]["cosine_mean"] == pytest.approx((full * cut).sum(axis=1).mean(), abs=1e-5)
    assert record["masked_difference"] <= 1e-6


def test_without_pairs_the_measure_is_the_cosine_on_held_out_text(tiny_checkpoint: Checkpoint) -> None:
    pruned = prune(tiny_checkpoint, share=0.25, with_curve=False)
    record = pruned.record
    assert (record["measure"], record["definition"]) == ("cosine", "jacobian")
    assert record["before"] == {"points": 100, "cosine_mean": 1, "cosine_worst": 1}
    assert record["after"]["points"] == pytest.approx(100 * record["after"]["cosine_mean"], abs=1e-3)
    assert record["num_heads_before"] == [4, 3, 0, 1]
    assert len(record["removed"]) == 2
    again = apply_removal(tiny_checkpoint.encoder, record["removed"])
    assert again.config == pruned.checkpoint.encoder.config
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), pruned.checkpoint.encoder.parameters(), strict=True)
    )


def test_prunes_as_far_as_the_loss_allows(planted: Checkpoint) -> None:
    lost = {0: 0.0, 1: 0.1, 2: 0.3, 3: 0.2, 4: 0.6, 5: 0.4, 6: 0.5, 7: 3.0, 8: 9.0}

    judge = Mock(
        judge=lambda encoder: PruningQuality(50 - lost[8 - sum(encoder.config.num_heads)], 1, 1),
        judge_whole=lambda: PruningQuality(50, 1, 1),
    )
    order = list(range(8))
    for allowed, expected in ((0.05, 0), (0.15, 1), (0.3, 3), (0.55, 3), (0.65, 6), (3.5, 7), (10, 8)):
        assert most_within(planted.encoder, judge, order, allowed) == expected


def test_the_reported_half_has_no_part_in_how_many_heads_go(planted: Checkpoint, tmp_path: Path) -> None:
    left, right = draw_texts(40, seed=1), draw_texts(40, seed=2)
    judged = set(halve(40)[1])

    def removed(rating_of_judged: int) -> tuple[list[list[int]], float]:
        path = tmp_path / f"{rating_of_judged}.csv"
        ratings = [(rating_of_judged * i if i in judged else i) % 6 for i in range(40)]
        path.write_text("".join(f"{a},{b},{rating}\n" for a, b, rating in zip(left, right, ratings, strict=True)))
        record = prune(planted, lose=2.0, definition="output_norm", pairs=path, with_curve=False).record
        return record["removed"], record["before"]["points"]

    (first, points), (second, other_points) = removed(1), removed(5)
    assert points != other_points
    assert first == second


def test_a_share_of_less_than_one_head_and_a_network_without_heads_are_refused(planted: Checkpoint) -> None:
    with pytest.raises(SourceError, match=r"0.01 of 8 heads is less than one: ask for at least 0.125"):
        prune(planted, share=0.01, with_curve=False)
    bare = replace(planted, encoder=remove_heads(planted.encoder, set(range(8))))
    with pytest.raises(SourceError, match="has no heads to remove"):
        prune(bare, share=0.5)


@pytest.mark.parametrize(
    ("ratings", "message"),
    [
        ([0, 1] * 7, "7 pairs with 2 different ratings to choose heads by; at least 8 with 2"),
        ([0] * 39 + [1], "20 pairs with 1 different ratings to "),
    ],
)
def test_refuses_halves_of_few_ratings(planted: Checkpoint, tmp_path: Path, ratings: list[int], message: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("".join(f"the cat,a dog,{rating}\n" for rating in ratings))
    with pytest.raises(SourceError, match=message):
        prune(planted, lose=2.0, pairs=path, with_curve=False)


def test_a_curve_has_every_step_in_every_order(planted: Checkpoint, pairs_file: Path) -> None:
    judge = read_material(planted, pairs_file, None).judge
    randoms = random_orders(8, 2)
    points = draw_curve(planted.encoder, judge, [DEAD, *range(DEAD), 7], randoms, [0, 1, 5])
    assert [point["removed"] for point in points] == [0, 1, 5]
    whole = judge.judge_whole().points
    assert points[0]["random_points"] == pytest.approx([whole, whole], abs=1e-4)
    assert points[1]["points"] == pytest.approx(whole, abs=1e-4)  # the dead head alone
    drawn = judge.judge(remove_heads(planted.encoder, randoms[1][:5])).points
    assert points[2]["random_points"][1] == pytest.approx(drawn, abs=1e-4)
    assert points[2]["share"] == 0.625
    assert points[2]["lost"] == pytest.approx(whole - points[2]["points"], abs=1e-4)


def test_the_bound_is_amdahls() -> None:
    # Without any head a run takes 3 of 4 milliseconds: a quarter goes with the heads, half of that with half of them.
    timings = {
        heads: {1: {"seconds": seconds, "whole_seconds": 0.004, "speed": 0.004 / seconds}}
        for heads, seconds in ((4, 0.0035), (8, 0.003))
    }
    found = with_bounds(timings, 8)
    assert found["attention_share"] == {"1": 0.25}
    assert found["latency"][0]["share"] == 0.5
    assert found["latency"][0]["batches"]["1"]["bound"] == pytest.approx(1 / (1 - 0.25 * 0.5), rel=1e-4)


def test_halves_steps_and_random_orders() -> None:
    chosen, judged = halve(41)
    assert (len(chosen), len(judged)) == (21, 20)
    assert sorted(chosen + judged) == list(range(41))
    assert tuple(map(len, halve(3000))) == (200, 500)
    assert counts(72) == [0, 7, 14, 22, 29, 36, 43, 50, 58, 65]
    assert counts(3) == [0, 1, 2, 3]
    orders = random_orders(12, 5)
    assert len({tuple(order) for order in orders}) == 5
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert least_first(np.array([2.0, 1.0, 1.0, 0.5])) == [3, 1, 2, 0]


def test_a_pruned_network_that_computes_something_else_is_no_result(
    planted: Checkpoint, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(encoder: Encoder, removed: list[int]) -> Encoder:
        return remove_heads(encoder, [removed[0] + 1 if removed[0] < 7 else 0])

    monkeypatch.setattr("export.pruning.driver.remove_heads", wrong)
    with pytest.raises(ParityError, match="differs by .* from that with their gates at 0"):
        prune(planted, share=1 / 8, definition="output_norm", pairs=pairs_file, with_curve=False)


def run_masked(encoder: Encoder, removed: list[list[int]]) -> np.ndarray:
    """The whole network with those gates at 0, in float64."""
    gates = torch.ones(len(IDS), sum(encoder.config.num_heads), dtype=torch.float64)
    gates[:, [encoder.config.head_span(layer).start + head for layer, head in removed]] = 0
    found = encoder.double().use("eager")(IDS, LENGTHS, head_gates=gates)
    masked: np.ndarray = found.pooled.numpy()
    return masked


def test_a_pruned_artifact_computes_what_the_masked_network_computes(
    bert_folder: Path, pairs_file: Path, tmp_path: Path, capsys: Any
) -> None:
    output = tmp_path / "pruned"
    flags = ["--prune-heads", "0.34", "--pairs", str(pairs_file), "--no-curve", "--no-explain", "--against", "none"]
    with quick_export():
        assert main([str(bert_folder), "--output", str(output), *flags]) == 0
    assert "removed 4 of 12 heads by loss_gradient: spearman x 100 " in capsys.readouterr().err
    manifest = Artifact.open(output).manifest
    assert manifest.pruning is not None
    assert sum(manifest.config.num_heads) == 8
    assert manifest.pruning["num_heads_before"] == [4, 4, 4]
    assert len(manifest.pruning["removed"]) == 4
    rows = [row[:length].numpy() for row, length in zip(IDS, LENGTHS, strict=True)]
    found = Session(output / GRAPH).run(batch_of(manifest.config, rows))["pooled"]
    expected = run_masked(read(bert_folder).encoder, manifest.pruning["removed"])
    assert np.abs(found - expected).max() < 1e-6 * max(1, np.abs(expected).max())


@pytest.mark.slow
def test_the_curve_goes_into_the_artifact_and_the_report_knows_what_is_gone(
    bert_folder: Path, pairs_file: Path, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.pruning.curve.SECONDS", 0.02)
    monkeypatch.setattr("export.pruning.driver.counts", lambda heads: [0, heads // 2])
    output = tmp_path / "curve"
    flags = ["--prune-to-quality", "5", "--pairs", str(pairs_file), "--no-explain"]
    assert main([str(bert_folder), "--output", str(output), *flags]) == 0
    manifest = Artifact.open(output).manifest
    assert {PRUNING, PRUNING_PICTURE} <= set(manifest.files)
    curve = json.loads((output / PRUNING).read_bytes())
    assert curve["heads"] == 12
    assert manifest.pruning is not None
    assert curve["chosen"] == len(manifest.pruning["removed"])
    picture = ElementTree.parse(output / PRUNING_PICTURE)  # noqa: S314 - our own
    assert len(picture.getroot().findall(".//{http://www.w3.org/2000/svg}path")) > 20
    assert {0, 6, curve["chosen"]} == {point["removed"] for point in curve["curve"]}
    assert {step["removed"] for step in curve["latency"]} == {0, 6, curve["chosen"], 12}

    assert find_subject(str(output), weights=str(bert_folder)).checkpoint.encoder.config == manifest.config
    if sum(manifest.config.num_heads):
        assert main(["heads", str(output), "--corpus", str(corpus), "--weights", str(bert_folder), "--texts", "9"]) == 0
        report = json.loads((output / HEADS).read_bytes())
        assert report["num_heads"] == list(manifest.config.num_heads)
        assert report["pruned"] == manifest.pruning["removed"]
