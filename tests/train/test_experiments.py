import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from polyhead import Engine
from tests.command import Run
from tests.task_artifacts import quick_export
from train.errors import RunError
from train.experiments.commands import SweepSettings
from train.experiments.orders import WAYS
from train.experiments.patterns.memory import MEMORISED, attend, memorise, promised
from train.experiments.patterns.network import Network, Row
from train.experiments.patterns.report import draw_pictures
from train.experiments.patterns.servable import encoder_of, write_servable
from train.experiments.patterns.tasks import KEYS, PLACES, TASKS, VALUES, Task, texts_of, vocabulary
from train.experiments.patterns.training import MAIN, look_at_offsets, rows, train_row
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
    with pytest.raises(PermissionError, match=r"one\.json is no directory that can be written to"):
        run_trials(tmp_path / "trials" / "one.json", [Trial("another", {}, run)])
    assert len(ran) == 3


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


def test_sweep_from_the_command_line(tiny_folder: Path, text_file: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "sweep"
    short = ["--heads", "2", "8", "--layers", "1", "--batch-size", "8", "--seeds", "2"]
    given = ["train", "sweep", tiny_folder, "--texts", text_file, "--output", output, *short, "--steps"]
    run(*given, 2, "--estimate")
    assert "12 runs of 2 steps are left: about " in run.said
    assert not output.exists()
    run(*given, 2)
    record = json.loads((output / "sweep.json").read_bytes())
    rows = {row["row"]: row for row in record["rows"]}
    assert set(rows) == {"equal-2", "equal-8", "fixed-2", "head-dropout", "value-residual", "output-gate"}
    assert rows["equal-2"]["parameters"] == rows["equal-8"]["parameters"] > rows["fixed-2"]["parameters"]
    assert all(len(row["values"]) == 2 for row in rows.values())
    assert rows["equal-8"]["values"][0] != rows["equal-8"]["values"][1]
    assert (output / "sweep.md").read_text().count("\n| ") == len(rows)
    ElementTree.fromstring((output / "sweep.svg").read_text())  # noqa: S314 - written just above
    (output / "trials" / "output-gate-1.json").unlink()
    run(*given, 2)  # one run is repeated, and its seed leads to equal figures
    again = json.loads((output / "sweep.json").read_bytes())
    assert [row["values"] for row in again["rows"]] == [row["values"] for row in record["rows"]]
    assert "is of an experiment with other settings or data" in run(*given, 3, code=1)


def test_orders_from_the_command_line(
    tiny_folder: Path, text_file: Path, rated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    # As many as are learned from depends on the steps then.
    monkeypatch.setattr("train.experiments.orders.CHOOSING_TEXTS", 8)
    output, rated = tmp_path / "orders", rated_file.read_text()
    flags = "--shares 0.5 --seeds 2 --gate-steps 4 --steps 6 --batch-size 8 --fitting-texts 40"
    places = ["--texts", text_file, "--pairs", rated_file, "--output", output]
    given = ["train", "orders", tiny_folder, *places, *flags.split()]
    run(*given)
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
        assert "is of an experiment with other settings or data" in run(*given, *other, code=1)
        rated_file.write_text(rated)


def examples(task: str) -> list[tuple[list[list[int]], list[int]]]:
    ids, answers = TASKS[task].make(50, torch.Generator().manual_seed(0))
    assert answers.shape == (50, TASKS[task].answers)
    assert answers.max() < len(TASKS[task].labels)
    return [
        ([[i for i in place if i] for place in text], own)
        for text, own in zip(ids.tolist(), answers.tolist(), strict=True)
    ]


def test_tasks_have_the_answers_that_they_say() -> None:
    for text, answers in examples("four keys"):  # in the order asked
        values = {key - 1: value - 1 - KEYS for key, value in text[:PLACES]}
        asked = [token - 1 - KEYS - VALUES - slot * KEYS for slot, token in enumerate(text[PLACES])]
        assert [values[key] for key in asked] == answers
    for text, answers in examples("two offsets"):
        assert [text[PLACES - 1][0] - 1, text[PLACES - 4][0] - 1] == answers
    for text, (answer,) in examples("count of three"):
        assert sum(text[token - 3] == [2] for token in text[PLACES]) == answer
    for text, (answer,) in examples("agreement"):
        subjects = [place[0] - 1 for place in text if place and place[0] in (1, 2)]
        distractors = [place for place in text if place and place[0] in (3, 4)]
        assert subjects == [answer]
        assert len(distractors) == 1
    for text, (answer,) in examples("own token"):
        assert text[PLACES] == [answer + 1]


def test_predictions() -> None:
    for row, predicted in (
        (Row("four keys", 4, 8, 8), 1.0),
        (Row("four keys", 1, 32, 32), (1 + 3 / 8) / 4),
        (Row("four keys", 32, 1, 1), 1 / 8),
        (Row("count of three", 1, 6, 32), 1.0),
        (Row("count of three", 1, 4, 32), 3 / 8),
        (Row("own token", 1, 32, 32), 1.0),
        (Row("two offsets", 32, 1, 1), 1.0),
    ):
        assert row.predicted == pytest.approx(predicted), row.name
    assert {heads: promised(heads) for heads in (1, 2, 4, 8, 16, 32)} == {1: 8, 2: 15, 4: 29, 8: 25, 16: 17, 32: 1}


def test_a_network_memorises_by_the_attention_of_torch_and_ends_as_soon_as_every_seed_has() -> None:
    generator = torch.Generator().manual_seed(0)
    contexts, queries = torch.randn(2, 6, 8, 32, generator=generator), torch.randn(2, 6, 1, 32, generator=generator)
    weights = [torch.randn(2, 32, size, generator=generator) for size in (32, 32, 32, 1)]
    answers = attend(contexts, queries, weights, 4)
    for run in range(2):
        query, key, value, output = (weight[run] for weight in weights)
        reference = nn.MultiheadAttention(32, 4, bias=False, batch_first=True)
        reference.in_proj_weight.data = torch.cat([query.T, key.T, value.T])
        reference.out_proj.weight.data = torch.eye(32)
        context, _ = reference(queries[run], contexts[run], contexts[run])
        torch.testing.assert_close(answers[run], (context[:, 0] @ output)[:, 0], atol=1e-4, rtol=1e-4)
    found = memorise(8, [0, 1], 300)
    assert max(found["errors"]) <= MEMORISED
    assert 0 < max(found["values"]) < 300


@pytest.mark.parametrize(
    "row",
    [
        Row("four keys", 4, 3, 5),
        Row("two offsets", 2, 3, 5, layers=2, width=24),
        Row("two offsets", 1, 32, 32, feed_forward=False),
        Row("count of three", 32, 1, 1),
        Row("agreement", 2, 4, 4),
        Row("own token", 2, 4, 4),
        Row("one key", 4, 8, 8, gated=True),
    ],
    ids=lambda row: row.name,
)
def test_seeds_side_by_side_are_each_the_encoder_that_is_served(row: Row) -> None:
    task = TASKS[row.task]
    ids, _ = task.make(6, torch.Generator().manual_seed(0))
    network = Network(row, [3, 4])
    for gates in network.gates_of_seeds:  # one closed, one nearly open
        gates.log_alpha.data = torch.tensor([9.0, -9.0, 0.5, 9.0])
    settled = [gates.settled()[None] for gates in network.gates_of_seeds]
    found = network(torch.stack([ids, ids]), torch.stack(settled) if settled else None)
    assert not torch.allclose(found[0], found[1])
    input_ids = input_ids_of(task, ids)
    for seed in range(2):
        encoder = encoder_of(network, seed)
        assert sum(encoder.config.num_heads) == row.layers * row.heads - row.gated
        expected = encoder(input_ids, torch.full((6,), PLACES + 1)).task_output
        torch.testing.assert_close(found[seed].flatten(1), expected, atol=1e-5, rtol=1e-5)


def test_weights_of_one_head_are_those_of_the_served_encoder_and_carry_the_order_of_two_offsets() -> None:
    row, task = Row("two offsets", 1, 32, 32), TASKS["two offsets"]
    network, found = train_row(row, [0], 500)
    assert found["accuracies"][0] > 0.95
    ids, answers = task.make(400, torch.Generator().manual_seed(5))
    looked = look_at_offsets(network, (ids[None], answers[None]))
    (weights,) = encoder_of(network, 0).use("eager")(input_ids_of(task, ids), torch.full((400,), 9)).attentions
    assert weights is not None
    logits = network(ids[None])
    torch.testing.assert_close(network.last_weights[0, :, :, 0], weights[:, :, -1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(network(ids[None], weights=weights[None, :, :, -1:]), logits, atol=1e-4, rtol=1e-4)
    assert looked["place_weights"][0] == pytest.approx(weights[:, 0, -1].mean(dim=0).tolist(), abs=1e-4)
    assert looked["weight_difference"][0] > 0.1
    assert looked["right_if_equal"][0] < 0.8


def test_a_row_that_is_learned_ends_early() -> None:
    _, found = train_row(Row("own token", 1, 32, 32), [0, 1], 750)
    assert min(found["accuracies"]) >= 0.995
    assert found["steps"] < 750
    assert [step for step, _ in found["curve"]] == list(range(100, found["steps"] + 1, 100))
    assert found["curve"][-1][1] == pytest.approx(sum(found["accuracies"]) / 2)
    assert found["attention_parameters"] == 4 * 32 * 32


def test_gates_of_heads_that_a_task_does_not_need_close() -> None:
    network, found = train_row(Row("own token", 2, 4, 4, gated=True), [0], 250)
    assert min(found["accuracies"]) >= 0.995
    assert found["open_heads"] == [0]
    assert encoder_of(network, 0).config.num_heads == (0,)


def test_a_trained_network_is_served_and_its_head_looks_at_the_asked_key(tmp_path: Path, run: Run) -> None:
    network, _ = train_row(Row("one key", 1, 32, 32), [0], 300)
    write_servable(tmp_path / "one-key", network, 0)
    with quick_export():
        run("export", tmp_path / "one-key", "--output", tmp_path / "artifact", "--no-explain")
    with Engine.load(tmp_path / "artifact") as engine:
        task = TASKS["one key"]
        ids, answers = task.make(100, torch.Generator().manual_seed(1))
        texts = texts_of(task, ids)
        assert engine.manifest.model == "one-key"
        assert set() < set(" ".join(engine.manifest.examples).split()) <= {*vocabulary(task)}
        found = [scores[0]["label"] for scores in engine.classify(texts)]
        assert sum(label == f"v{answer}" for label, answer in zip(found, answers[:, 0], strict=True)) > 90
        looked_at = 0
        for text, attention in zip(texts, engine.encode(texts, attention={"layers": [0]}).attention, strict=True):
            assert attention["tokens"] == text.split()
            weights = attention["weights"][0][0][-1]
            looked_at += text.split()[np.argmax(weights)].startswith(text.split()[-1].replace("?", "="))
        assert looked_at > 90


def test_patterns_from_the_command_line(tmp_path: Path, run: Run) -> None:
    output = tmp_path / "patterns"
    flags = "--tasks agreement memory --seeds 2 --steps 2"
    given = ["train", "patterns", *flags.split(), "--output", output]
    run(*given)
    record = json.loads((output / "patterns.json").read_bytes())
    assert [row["heads"] for row in record["rows"]] == [1, 2, 4, 8, 16, 32, 8]
    assert [len(row.get("open_heads", ())) for row in record["rows"]] == [0, 0, 0, 0, 0, 0, 2]
    assert all(len(row["values"]) == 2 and row["low"] <= row["mean"] <= row["high"] for row in record["rows"])
    assert (output / "patterns.md").read_text().count("\n| ") == 7
    for row in record["rows"]:
        assert row["values"][row["served_seed"]] == max(row["values"])
        assert (output / "networks" / row["network"] / "model.safetensors").is_file()
    drawn = {path.stem for path in output.glob("*.svg")}
    assert drawn == {"patterns", "patterns-gates", "patterns-memory", "patterns-steps"}
    assert [(row["heads"], row["values"]) for row in record["memory"]] == [(n, [2, 2]) for n in (1, 2, 4, 8, 16, 32)]
    for name in drawn:
        ElementTree.fromstring((output / f"{name}.svg").read_text())  # noqa: S314 - written just above
    (output / "trials" / "agreement-h2-k16-v16-l1.json").unlink()
    run(*given)  # one row is trained again, to equal figures
    assert json.loads((output / "patterns.json").read_bytes())["rows"][1]["values"] == record["rows"][1]["values"]


def input_ids_of(task: Task, ids: Tensor) -> Tensor:
    """Examples' token ids [N, S, F] as ids of words, [N, S]."""
    words = vocabulary(task)
    return torch.tensor([[words[word] for word in text.split()] for text in texts_of(task, ids)])


def found_of(row: Row) -> dict[str, Any]:
    """A row of patterns.json, with figures that differ from row to row."""
    mean = row.predicted - 0.001 * row.heads
    figures: dict[str, Any] = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "steps": 100 * row.heads}
    if row.gated:
        figures["open_heads"] = [TASKS[row.task].needs, 8]
    if row.task == "two offsets":
        figures["place_weights"] = [[1 / (PLACES + 1)] * (PLACES + 1)] * 2
    curve = [(100, mean / 2), (200, mean)]
    return {**asdict(row), "needs": TASKS[row.task].needs, "predicted": row.predicted, "curve": curve, **figures}


NARROW_AND_WIDE = [f"{task}, {width}" for task in MAIN for width in (32, 64)]
LEGENDS = {
    "patterns": "agreement|one key|count of three|two offsets|four keys|own token|"
    "agreement|one key|count of three|two offsets|four keys",
    "patterns-width": "|".join(NARROW_AND_WIDE * 2),
    "patterns-keys": "one key|predicted|count of three|predicted",
    "patterns-values": "1|2|4|8|32",  # the sizes: one line needs no name
    "patterns-layers": "one key, h = 1|two offsets, h = 1|four keys, h = 1|four keys, h = 4|four keys, h = 2",
    "patterns-gates": "the same places|places asked for|as needed",
    "patterns-steps": "agreement|one key|count of three|two offsets|h = 1|h = 2|h = 4|h = 8|h = 32",
    "patterns-offsets": "seed 0|seed 1|with feed-forward|attention alone|predicted",
}


def test_every_picture_is_drawn_small_the_same_each_time_and_with_its_lines() -> None:
    drawn = draw_pictures([found_of(row) for row in rows(list(TASKS))])
    assert list(drawn) == list(LEGENDS)
    assert drawn == draw_pictures([found_of(row) for row in rows(list(TASKS))])
    assert max(map(len, drawn.values())) < 60_000
    for name, legend in LEGENDS.items():
        root = ElementTree.fromstring(drawn[name])  # noqa: S314 - drawn just above
        shown = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [text for text in shown if text in legend.split("|")] == legend.split("|"), name


def test_bars_of_gates_reach_from_the_fewest_to_the_most_heads() -> None:
    gated = found_of(Row("four keys", 8, 8, 8, gated=True)) | {"open_heads": [5, 8]}
    other = found_of(Row("agreement", 8, 8, 8, gated=True)) | {"open_heads": [1, 1]}
    picture = draw_pictures([gated, other])["patterns-gates"]
    bars = re.findall(r'class="(\w) bar" d="M[\d.]+ ([\d.]+)V([\d.]+)"', picture)
    heights = {kind: float(low) - float(high) for kind, low, high in bars}
    assert heights["a"] == 0 < heights["b"]  # 1 to 1 for agreement, 5 to 8 for four keys
