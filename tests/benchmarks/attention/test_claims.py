import json
import math
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.attention.memory import peak, write_graphs
from benchmarks.attention.memory_worker import grown_mb
from benchmarks.attention.shapes import HIDDEN, count_parameters, every_head_count
from benchmarks.attention.softmax import Drawn, attend, compare, draw, looks_at_an_extreme, scores
from benchmarks.attention.verdicts import attention_share, distance_to_average, fastest, verdicts
from benchmarks.lib.report import Table


@pytest.mark.parametrize("heads", [2, 8, 64, 512])
def test_scores_of_one_head_are_the_sum_of_those_of_many(heads: int) -> None:
    assert compare(draw(12, positive=False, seed=0), heads).identity_error < 1e-14


def test_one_head_is_many_where_every_head_sees_all_alike() -> None:
    drawn = draw(9, positive=False, seed=1)
    blind = drawn._replace(query=torch.zeros_like(drawn.query))
    assert compare(blind).outputs_are_close
    assert compare(draw(1, positive=False, seed=1)).outputs_are_close  # one token: every softmax is 1
    assert not compare(drawn).outputs_are_close


def test_one_head_is_many_where_all_saturate_on_the_same_key() -> None:
    key = torch.zeros(4, 16)
    key[2] = 100.0
    drawn = Drawn(torch.ones(4, 16), key, torch.randn(4, 16, generator=torch.Generator().manual_seed(0)))
    found = compare(drawn, heads=4)
    assert found.saturated == 1
    assert found.outputs_are_close
    torch.testing.assert_close(attend(drawn, 4), drawn.value[2].expand(4, 16))


def test_positive_weights_hide_the_difference_and_usual_ones_show_it() -> None:
    # 100 runs of 20 tokens give 76 and 0 %; 12 runs scatter by 12 points (one standard deviation)
    positive = [compare(draw(20, positive=True, seed=seed)) for seed in range(12)]
    usual = [compare(draw(20, positive=False, seed=seed)) for seed in range(12)]
    assert 0.3 < sum(one.outputs_are_close for one in positive) / 12 < 1
    assert not any(one.outputs_are_close for one in usual)
    assert min(one.saturated for one in positive) > 0.8
    assert max(one.saturated for one in usual) == 0


def test_the_average_of_heads_is_no_head() -> None:
    drawn = draw(16, positive=False, seed=0)
    assert distance_to_average(drawn, heads=1) == pytest.approx(0, abs=1e-7)
    assert 0.05 < distance_to_average(drawn, heads=8) < 1


@pytest.mark.parametrize("heads", [1, 4, 32, 512])
def test_the_scale_takes_the_root_of_d_k_out_of_the_spread(heads: int) -> None:
    drawn = draw(40, positive=False, seed=2)
    ratio = scores(drawn, heads, scaled=False).std() / scores(drawn, heads).std()
    assert float(ratio) == pytest.approx(math.sqrt(512 / heads), rel=1e-5)
    assert float(scores(drawn, heads).std()) == pytest.approx(1, abs=0.1)  # normal weights of variance 1 / D


@pytest.mark.parametrize("heads", [8, 64, 512])
def test_a_heads_scores_have_no_more_rank_than_dimensions(heads: int) -> None:
    exact = Drawn(*(x.double() for x in draw(100, positive=False, seed=3)))
    assert int(torch.linalg.matrix_rank(scores(exact, heads)[:4]).max()) == min(100, 512 // heads)


def test_a_scalar_head_looks_at_an_extreme_key_only() -> None:
    exact = Drawn(*(x.double() for x in draw(50, positive=False, seed=4)))
    assert looks_at_an_extreme(exact, scores(exact, 512)) == 1


def test_parameters_do_not_depend_on_the_number_of_heads() -> None:
    counted = {count_parameters(heads, HIDDEN // heads, HIDDEN // heads)[0] for heads in (1, 2, 4, 8, 16, 32, 64)}
    assert counted == {4 * HIDDEN**2 + 4 * HIDDEN}
    assert count_parameters(5, 3, 7)[0] == count_parameters(5, 3, 7)[1]


@pytest.fixture(scope="module")
def head_counts() -> Table:
    with torch.inference_mode():
        return every_head_count()


def test_every_head_count_runs(head_counts: Table) -> None:
    (row,) = head_counts.rows
    assert row["ran"] == HIDDEN
    assert row["formula_wrong"] == 0
    assert row["largest_difference"] < 1e-5


def test_attentions_share_of_a_layer_bounds_what_pruning_brings() -> None:
    assert attention_share(384, 0) == pytest.approx(1 / 3)
    assert attention_share(384, 512) == pytest.approx(1280 / 2816)
    assert fastest(384, 0, 0.5) == pytest.approx(1.2)
    assert fastest(384, 512, 0) == 1


def test_claims_name_only_what_was_measured(head_counts: Table) -> None:
    claims = [row["claim"] for row in verdicts({}).rows]
    assert claims == ["30 to 40 % of heads can go: as much faster", "maps are small beside the model"]
    with_shapes = verdicts({head_counts.name: head_counts.rows}).rows
    assert with_shapes[0]["figure"].startswith(f"{4 * HIDDEN**2 + 4 * HIDDEN} for each h dividing {HIDDEN}")
    assert with_shapes[1]["figure"] == f"{HIDDEN} of {HIDDEN} counts, 0 off the formula"


def test_memory_is_that_of_the_longest_text() -> None:
    ways = (
        "graph, no weights",
        "graph, last layer's weights",
        "graph, all layers' weights",
        "operator MultiHeadAttention",
    )
    rows = [{"way": way, "64": 0.25, "128": 1.0 + i, "exponent": 9.0} for i, way in enumerate(ways)]
    growth, sizes = (row["figure"] for row in verdicts({"memory": rows}).rows[:2])
    assert growth == "growth n^9.00 against n^9.00"
    assert sizes == "MB without, last layer, all: 1 / 2 / 3"
    (unknown, *_) = verdicts({"memory": [{**row, "exponent": None} for row in rows]}).rows
    assert unknown["claim"] == "weights cost only when asked for"  # nothing is said of growth that was not measured


def test_the_peak_of_a_run_is_what_it_held() -> None:
    assert 60 < grown_mb(hold_a_megabyte_a_token, 64) < 72
    assert 28 < grown_mb(hold_a_megabyte_a_token, 32) < 40


def hold_a_megabyte_a_token(tokens: int) -> None:
    """Past the allocator, which may have as much left from before."""
    with mmap.mmap(-1, tokens << 20) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1


@pytest.mark.exhaustive
def test_the_standard_operator_holds_scores_and_the_other_does_not(tmp_path: Path) -> None:
    write_graphs(tmp_path)
    scores_mb = 4 * 2048**2 * 4 / 2**20  # 4 heads
    assert 0.9 * scores_mb < peak(tmp_path, "Attention", 2048) < 1.3 * scores_mb
    assert peak(tmp_path, "MultiHeadAttention", 2048) < 0.2 * scores_mb
    assert 0.9 * scores_mb < peak(tmp_path, "none", 2048) < 1.5 * scores_mb  # one layer's, of three
    assert peak(tmp_path, "all", 2048) > 3 * scores_mb  # what is answered, at the least


@pytest.mark.exhaustive
def test_the_script_prints_claims_and_json() -> None:
    command = [sys.executable, "-m", "benchmarks.attention", "claims", "--only", "softmax", "values", "--runs", "3"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own script
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == "attention claims"
    options = {row["option"]: row for row in result["tables"]["value_stream"]}
    assert {row["neutral_change"] for row in options.values()} == {0}
    assert all(row["active_change"] > 1e-3 for row in options.values())
    assert all(row["fused"] == 3 for row in options.values())


def test_refuses_lengths_that_give_no_growth(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.attention.claims import main  # noqa: PLC0415 - the script, not a part of it

    monkeypatch.setattr(sys, "argv", ["attention claims", "--lengths", "512"])
    with pytest.raises(SystemExit):
        main()
    assert "at least two, ascending" in capsys.readouterr().err
