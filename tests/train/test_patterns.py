"""Made-up tasks have the answers that they say, seeds trained side by side are those alone, and the command reports."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from polyhead.cli import main
from train.experiments.patterns import KEYS, PLACES, TASKS, VALUES, Network, Row, train_row


def examples(task: str) -> list[tuple[list[list[int]], list[int]]]:
    ids, answers = TASKS[task].make(50, torch.Generator().manual_seed(0))
    assert answers.shape == (50, TASKS[task].answers)
    assert answers.max() < TASKS[task].classes
    return [
        ([[i for i in place if i] for place in text], own)
        for text, own in zip(ids.tolist(), answers.tolist(), strict=True)
    ]


def test_keys_are_answered_by_their_values_in_the_order_asked() -> None:
    for text, answers in examples("four keys"):
        values = {key - 1: value - 1 - KEYS for key, value in text[:PLACES]}
        asked = [token - 1 - KEYS - VALUES - slot * KEYS for slot, token in enumerate(text[PLACES])]
        assert [values[key] for key in asked] == answers


def test_the_other_tasks_have_the_answers_that_they_say() -> None:
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


@pytest.mark.parametrize(
    ("row", "predicted"),
    [
        (Row("four keys", 4, 8, 8), 1.0),
        (Row("four keys", 1, 32, 32), (1 + 3 / 8) / 4),
        (Row("four keys", 32, 1, 1), 1 / 8),
        (Row("count of three", 1, 6, 32), 1.0),
        (Row("count of three", 1, 4, 32), 3 / 8),
        (Row("own token", 1, 32, 32), 1.0),
        (Row("two offsets", 32, 1, 1), 1.0),
    ],
)
def test_predictions(row: Row, predicted: float) -> None:
    assert row.predicted == pytest.approx(predicted)


@pytest.mark.parametrize("layers", [1, 2])
def test_seeds_side_by_side_are_each_alone_and_a_plain_network(layers: int) -> None:
    row = Row("four keys", 4, 3, 5, layers)
    ids, _ = TASKS[row.task].make(6, torch.Generator().manual_seed(0))
    both, alone = Network(row, [3, 4]), Network(row, [4])
    found = both(torch.stack([ids, ids]))
    torch.testing.assert_close(found[1:], alone(ids[None]))
    assert not torch.allclose(found[0], found[1])
    hidden = (alone.tokens[0][ids] * (ids > 0)[..., None]).sum(dim=2) + alone.places[0]
    for part in alone.parts:
        normed = rms_norm(hidden, (32,))
        heads = [
            (normed @ part[name][0]).reshape(6, PLACES + 1, 4, -1).transpose(1, 2) for name in ("query", "key", "value")
        ]
        hidden = hidden + scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2) @ part["output"][0]
        inner = (rms_norm(hidden, (32,)) @ part["up"][0] + part["bias"][0]).relu()
        hidden = hidden + inner @ part["down"][0]
    expected = (rms_norm(hidden[:, -1], (32,)) @ alone.answer[0]).reshape(6, 4, -1)
    torch.testing.assert_close(found[1], expected, atol=1e-5, rtol=1e-5)


def test_a_row_that_is_learned_ends_early() -> None:
    found = train_row(Row("own token", 1, 32, 32), [0, 1], 750)
    assert min(found["accuracies"]) >= 0.995
    assert found["steps"] < 750
    assert found["attention_parameters"] == 4 * 32 * 32


def test_gates_of_heads_that_a_task_does_not_need_close() -> None:
    found = train_row(Row("own token", 4, 8, 8, gated=True), [0, 1], 400)
    assert min(found["accuracies"]) >= 0.995
    assert found["open_heads"] == [0, 0]
    row, ids = Row("own token", 4, 8, 8, gated=True), TASKS["own token"].make(3, torch.Generator().manual_seed(0))[0]
    network = Network(row, [0])
    without = network(ids[None], torch.zeros(1, 1, 4))
    network.parts[0]["output"].data.zero_()
    torch.testing.assert_close(network(ids[None]), without)


def test_patterns_from_the_command_line(tmp_path: Path) -> None:
    output = tmp_path / "patterns"
    given = ["train", "patterns", "--tasks", "agreement", "--seeds", "2", "--steps", "2", "--output", str(output)]
    assert main(given) == 0
    record = json.loads((output / "patterns.json").read_bytes())
    assert [row["heads"] for row in record["rows"]] == [1, 2, 4, 8, 32, 8]
    assert [len(row.get("open_heads", ())) for row in record["rows"]] == [0, 0, 0, 0, 0, 2]
    assert all(len(row["values"]) == 2 and row["low"] <= row["mean"] <= row["high"] for row in record["rows"])
    assert (output / "patterns.md").read_text().count("\n| ") == 6
    ElementTree.fromstring((output / "patterns.svg").read_text())  # noqa: S314 - written just above
    (output / "trials" / "agreement-2-16-16-1.json").unlink()
    assert main(given) == 0  # one row is trained again, to equal figures
    assert json.loads((output / "patterns.json").read_bytes())["rows"][1]["values"] == record["rows"][1]["values"]
