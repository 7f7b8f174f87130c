import hashlib
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint import Checkpoint
from export.heads.report import make_report
from export.heads.statistics import REPORTED
from tests.planted import DEAD, NEXT, PREVIOUS, REPEATED, SELF, SEPARATOR, TWIN, UNIFORM, draw_texts, sharp_weight

LENGTHS = np.array([len(text.split()) + 2 for text in draw_texts(60)])  # [CLS] and [SEP] besides the words
SHARP = np.array([sharp_weight(int(length)) for length in LENGTHS])
REST = (1 - SHARP) / (LENGTHS - 1)  # weight of each other token


@pytest.fixture(scope="module")
def report(planted: Checkpoint, corpus: Path, pairs_file: Path, parses_file: Path) -> dict[str, Any]:
    return make_report(planted, corpus, rated=pairs_file, parsed=parses_file, importance_texts=24, max_tokens=40)


def statistic(report: dict[str, Any], head: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = report["heads"][head]["statistics"][name]
    return found


@pytest.mark.parametrize(
    ("head", "role"),
    [
        (PREVIOUS, "previous"),
        (SELF, "self"),
        (NEXT, "next"),
        (SEPARATOR, "special"),
        (UNIFORM, "broad"),
        (REPEATED, "repeated_token"),
        (TWIN, "previous"),
    ],
)
def test_each_planted_head_gets_its_role(report: dict[str, Any], head: int, role: str) -> None:
    assert report["heads"][head]["role"] == role
    passed = report["heads"][head]["rules_passed"][0]
    assert passed["p"] < 1e-6
    assert passed["mean"] > passed["threshold"]
    assert passed["n"] > 40


@pytest.mark.parametrize(
    ("head", "name", "by_text"),
    [
        # One row has no such neighbour: it is uniform, and adds nothing to the score.
        (PREVIOUS, "offset_previous", (LENGTHS - 1) / LENGTHS * SHARP),
        (NEXT, "offset_next", (LENGTHS - 1) / LENGTHS * SHARP),
        (SELF, "offset_self", SHARP),
        (SELF, "entropy", -SHARP * np.log(SHARP) - (LENGTHS - 1) * REST * np.log(REST)),
        (UNIFORM, "entropy", np.log(LENGTHS)),
        (UNIFORM, "normalized_entropy", np.ones(60)),
        (UNIFORM, "distance", (LENGTHS**2 - 1) / (3 * LENGTHS)),
        (UNIFORM, "signed_distance", np.zeros(60)),
        (UNIFORM, "sink", 1 / LENGTHS),
        (UNIFORM, "special_mass", 2 / LENGTHS),
        (SEPARATOR, "special_mass", SHARP + REST),
        (PREVIOUS, "previous_rate", np.ones(60)),
        (SELF, "previous_rate", np.zeros(60)),
    ],
)
def test_means_intervals_and_counts_are_those_of_the_closed_form(
    report: dict[str, Any], head: int, name: str, by_text: np.ndarray[Any, Any]
) -> None:
    found = statistic(report, head, name)
    assert found["n"] == 60
    assert found["mean"] == pytest.approx(by_text.mean(), rel=1e-4, abs=1e-5)
    half = 2.0009954 * by_text.std(ddof=1) / math.sqrt(60)  # Student's t for 59 degrees, from a table
    assert found["high"] - found["mean"] == pytest.approx(half, rel=1e-3, abs=1e-5)
    assert found["mean"] - found["low"] == pytest.approx(half, rel=1e-3, abs=1e-5)


def test_a_repeating_querys_mass_on_its_repetitions(report: dict[str, Any]) -> None:
    # k repetitions share e^12 each against n - k others, so nearly all mass is theirs.
    found = statistic(report, REPEATED, "repeated_token")
    assert found["mean"] == pytest.approx(1, abs=1e-3)
    assert found["n"] == sum(len(set(text.split())) < len(text.split()) for text in draw_texts(60))


def test_a_dead_head_is_of_no_importance_by_any_definition(report: dict[str, Any]) -> None:
    heads = report["heads"]
    for name in ("leave_one_out", "jacobian", "output_norm", "spearman_loss", "loss_gradient"):
        assert heads[DEAD]["importance"][name]["mean"] == pytest.approx(0, abs=1e-12), name
        values = [abs(head["importance"][name]["mean"]) for head in heads]
        assert np.argmin(values) == DEAD, name
        assert heads[SELF]["importance"][name]["low"] is not None
    assert statistic(report, DEAD, "special_norm_share")["mean"] is None
    assert statistic(report, DEAD, "special_norm_share")["n"] == 0


def test_identical_heads_are_at_no_distance_and_in_one_group(report: dict[str, Any]) -> None:
    redundancy = report["redundancy"]
    divergences = np.array(redundancy["divergences"])
    assert divergences[PREVIOUS, TWIN] == pytest.approx(0, abs=1e-7)
    assert divergences[SELF, DEAD] == pytest.approx(0, abs=1e-7)
    np.testing.assert_array_equal(divergences, divergences.T)
    assert 0.6 < divergences[PREVIOUS, NEXT] <= math.log(2)  # nearly disjoint
    mean = pytest.approx(divergences[np.triu_indices(8, k=1)].mean(), rel=1e-3)
    assert redundancy["means"] == {"same_layer": mean, "different_layers": None}
    assert 0 < redundancy["untrained_means"]["same_layer"] < 1e-3  # all nearly uniform
    heads = report["heads"]
    assert heads[PREVIOUS]["group"] == heads[TWIN]["group"] != heads[NEXT]["group"]
    assert heads[PREVIOUS]["nearest"] == {"layer": 0, "head": TWIN, "divergence": pytest.approx(0, abs=1e-7)}
    first_joins = {frozenset((int(a), int(b))) for a, b, *_ in redundancy["tree"][:2]}
    assert first_joins == {frozenset((PREVIOUS, TWIN)), frozenset((SELF, DEAD))}
    assert heads[PREVIOUS]["map"] == pytest.approx(heads[TWIN]["map"], abs=1e-3)
    assert sorted(redundancy["leaf_order"]) == list(range(8))


def test_relations_are_scored_against_the_best_offset_and_an_untrained_network(report: dict[str, Any]) -> None:
    rows = {row["relation"]: row for row in report["relations"]["relations"]}
    assert set(rows) == {"prior", "same"}  # subtypes are left out, the root is no relation
    prior, same = rows["prior"], rows["same"]
    assert prior["baseline"]["accuracy"] == prior["best"]["accuracy"] == 1.0
    assert prior["best"]["head"] in (PREVIOUS, TWIN)
    assert same["cases"] == same["sentences"] == 60
    # 60 sentences, distances 2 to 8 in turn: the rule is right in 9 of them, the repeating head in all.
    assert same["baseline"]["accuracy"] == pytest.approx(9 / 60, abs=1e-5)
    assert same["best"] == {**same["best"], "head": REPEATED, "accuracy": 1.0, "high": 1.0}
    assert same["best"]["low"] == pytest.approx(60 / (60 + 1.959964**2), rel=1e-4)  # Wilson's for 60 of 60
    assert same["best"]["p"] < 1e-6
    assert same["untrained"]["accuracy"] < 0.7


def test_a_head_follows_a_relation_only_where_it_beats_the_rule(report: dict[str, Any]) -> None:
    followed = {h["head"]: {f["relation"] for f in h["relations_followed"]} for h in report["heads"]}
    assert followed[REPEATED] == {"same"}
    assert followed[PREVIOUS] == set()  # all of `prior`, and so does the rule


def test_files_are_named_with_their_hashes_and_counts(
    report: dict[str, Any], corpus: Path, pairs_file: Path, parses_file: Path
) -> None:
    described = report["corpus"], report["importance"]["pairs"], report["relations"]
    for path, found in zip((corpus, pairs_file, parses_file), described, strict=True):
        assert (found["name"], found["sha256"]) == (path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    assert (described[0]["texts_in_file"], described[1]["pairs"], described[2]["sentences"]) == (60, 24, 60)


def test_documentation_names_every_field_statistic_and_definition(report: dict[str, Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "heads.md").read_text()
    named = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    head = report["heads"][0]
    fields = {*report, *head, *head["rules_passed"][0], *report["corpus"], *report["importance"], *report["redundancy"]}
    assert fields | {*head["statistics"], *head["importance"], *REPORTED} <= named
