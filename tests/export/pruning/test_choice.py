"""Which heads are chosen and what is said of it, on a planted network whose dead head matters to nothing."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from export.checkpoint import Checkpoint
from export.errors import ParityError, SourceError
from export.heads.corpus import read_pairs
from export.pruning.curve import PruningQuality, counts, draw_curve, most_within, with_bounds
from export.pruning.driver import (
    Definition,
    halve,
    least_first,
    prune,
    random_orders,
    read_material,
)
from export.pruning.removal import apply_removal, remove_heads
from model.encoder import Encoder
from tests.planted import DEAD, draw_texts


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
