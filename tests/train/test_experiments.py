import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from scipy import stats

from polyhead.cli import main
from train.errors import RunError
from train.experiments.commands import SweepSettings
from train.experiments.orders import WAYS
from train.experiments.sweep import variants
from train.experiments.trials import Trial, compare, run_trials, variance_test


def test_differences_are_those_of_a_paired_t_test_and_analysis_of_variance_is_by_hand() -> None:
    values = {"a": [0.5, 0.6, 0.8], "b": [0.4, 0.52, 0.69], "c": [0.7, 0.5, 0.9]}
    found = compare(values, "a")
    expected = stats.ttest_rel(values["b"], values["a"]).confidence_interval()
    assert found["b"]["difference"]["low"] == pytest.approx(expected.low)
    assert found["b"]["difference"]["high"] == pytest.approx(expected.high)
    assert found["b"]["larger_than_seeds"] is True
    assert found["c"]["larger_than_seeds"] is False
    alone = stats.ttest_1samp(values["a"], 0).confidence_interval()
    assert (found["a"]["low"], found["a"]["high"]) == pytest.approx((alone.low, alone.high))
    assert "difference" not in found["a"]
    tested = variance_test({"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]})
    assert tested is not None
    assert tested["f"] == pytest.approx(1.5)  # between: 1.5 / 1; within: 4 / 4
    assert variance_test({"a": [1.0, 2.0]}) is None
    assert variance_test({"a": [1.0, 1.0], "b": [1.0, 1.0]}) is None


def test_a_trial_is_run_once_goes_on_from_its_checkpoint_and_begins_anew_without(tmp_path: Path) -> None:
    (tmp_path / "under-way" / "begun").mkdir(parents=True)
    (tmp_path / "under-way" / "begun" / "checkpoint.safetensors").touch()
    (tmp_path / "under-way" / "broken").mkdir()
    ran: list[tuple[str, bool]] = []

    def run(place: Path, is_begun: bool) -> dict[str, Any]:
        ran.append((place.name, is_begun))
        return {"score": 0.5}

    for name in ("begun", "broken", "one"):
        trial = Trial(name, {"steps": (3,)}, run)
        assert run_trials(tmp_path, [trial]) == run_trials(tmp_path, [trial])
    assert ran == [("begun", True), ("broken", False), ("one", False)]
    assert not any((tmp_path / "under-way").iterdir())
    with pytest.raises(RunError, match=r"one\.json is of an experiment with other settings or data"):
        run_trials(tmp_path, [Trial("one", {"steps": (4,)}, run)])


def settings_of(**changes: Any) -> SweepSettings:
    given: dict[str, Any] = {"texts": (), "output": Path(), "heads": (1, 8, 32), "num_layers": 2, "steps": 4}
    return SweepSettings(**{**given, "batch_size": 8, "seeds": 2, **changes})


def test_rows_have_equal_parameters_or_equal_heads() -> None:
    rows = {row.name: row for row in variants(384, settings_of())}
    assert [rows[f"equal-{heads}"].fields["d_k"] * heads for heads in (1, 8, 32)] == [384] * 3
    assert {rows[f"fixed-{heads}"].fields["d_v"] for heads in (1, 32)} == {48}
    assert "fixed-8" not in rows  # is equal-8
    assert rows["value-residual"].fields["value_residual"] == [[0.0, 1.0], [0.5, 0.5]]
    with pytest.raises(RunError, match="5 heads do not divide the width of 384"):
        variants(384, settings_of(heads=(5, 8)))
    with pytest.raises(RunError, match="compared with 8 heads"):
        variants(384, settings_of(heads=(1, 2)))


def test_sweep_from_the_command_line(
    tiny_folder: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep"
    given = ["train", "sweep", str(tiny_folder), "--texts", str(text_file), "--output", str(output)]
    short = ["--heads", "2", "8", "--layers", "1", "--steps", "2", "--batch-size", "8", "--seeds", "2"]
    assert main([*given, *short, "--estimate"]) == 0
    assert "12 runs of 2 steps are left: about " in capsys.readouterr().err
    assert not output.exists()
    assert main([*given, *short]) == 0
    record = json.loads((output / "sweep.json").read_bytes())
    rows = {row["row"]: row for row in record["rows"]}
    assert set(rows) == {"equal-2", "equal-8", "fixed-2", "head-dropout", "value-residual", "output-gate"}
    assert rows["equal-2"]["parameters"] == rows["equal-8"]["parameters"] > rows["fixed-2"]["parameters"]
    assert all(len(row["values"]) == 2 for row in rows.values())
    assert rows["equal-8"]["values"][0] != rows["equal-8"]["values"][1]
    assert (output / "sweep.md").read_text().count("\n| ") == len(rows)
    ElementTree.fromstring((output / "sweep.svg").read_text())  # noqa: S314 - written just above
    (output / "trials" / "output-gate-1.json").unlink()
    assert main([*given, *short]) == 0  # one run is repeated, and its seed leads to equal figures
    again = json.loads((output / "sweep.json").read_bytes())
    assert [row["values"] for row in again["rows"]] == [row["values"] for row in record["rows"]]
    short[short.index("--steps") + 1] = "3"
    assert main([*given, *short]) == 1
    assert "is of an experiment with other settings or data" in capsys.readouterr().err


def test_orders_from_the_command_line(
    tiny_folder: Path,
    text_file: Path,
    rated_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # As many as are learned from depends on the steps then.
    monkeypatch.setattr("train.experiments.orders.CHOOSING_TEXTS", 8)
    output, rated = tmp_path / "orders", rated_file.read_text()
    given = ["train", "orders", str(tiny_folder), "--texts", str(text_file), "--pairs", str(rated_file)]
    short = ["--shares", "0.5", "--seeds", "2", "--gate-steps", "4", "--steps", "6", "--batch-size", "8"]
    assert main([*given, *short, "--fitting-texts", "40", "--output", str(output)]) == 0
    record = json.loads((output / "orders.json").read_bytes())
    assert [(row["share"], row["way"]) for row in record["rows"]] == [(0.5, way) for way in WAYS]
    trials = [json.loads(path.read_bytes()) for path in (output / "trials").iterdir()]
    assert {len(trial["removed"]) for trial in trials} == {4}
    assert all(row["fitted"]["mean"] > row["not_healed"]["mean"] for row in record["rows"])
    for row in record["rows"]:
        own = [trial["healed"] for trial in trials if trial["described"]["way"] == row["way"]]
        assert sorted(row["healed"]["values"]) == sorted(own), row["way"]
    ElementTree.fromstring((output / "orders.svg").read_text())  # noqa: S314 - written just above
    assert (output / "orders.md").read_text().count("\n| ") == 4
    rated_file.write_text(rated.replace(",4", ",3"))
    for other in ([], ["--similarity-weight", "2"], ["--steps", "7"]):
        assert main([*given, *short, *other, "--fitting-texts", "40", "--output", str(output)]) == 1
        assert "is of an experiment with other settings or data" in capsys.readouterr().err
        rated_file.write_text(rated)
