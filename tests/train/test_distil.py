from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from export.checkpoint import read_checkpoint
from export.sources import Folder
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from train import loop
from train.distil import Distil, DistilSettings
from train.distillation import read_material
from train.errors import RunError
from train.settings import RunSettings
from train.student import make_student, matched_layers, student_config


@pytest.mark.parametrize(
    ("student", "teacher", "expected"), [(6, 6, [0, 1, 2, 3, 4, 5]), (3, 6, [1, 3, 5]), (1, 6, [5])]
)
def test_layers_are_evenly_spaced_up_to_the_last(student: int, teacher: int, expected: list[int]) -> None:
    assert matched_layers(student, teacher) == expected


def test_a_student_of_the_same_shape_begins_as_its_teacher() -> None:
    teacher = draw_weights(Encoder(TINY))
    student = make_student(TINY, teacher, [0, 1, 2, 3], seed=0, parts=True)
    ids, lengths = torch.tensor([[4, 5, 6, 7]]), torch.tensor([4])
    assert torch.equal(student.eval()(ids, lengths).pooled, teacher(ids, lengths).pooled)
    drawn = make_student(TINY, teacher, [0, 1, 2, 3], seed=0, parts=False).state_dict()
    assert not torch.equal(drawn["embeddings.token.weight"], teacher.state_dict()["embeddings.token.weight"])


def test_what_does_not_fit_is_drawn() -> None:
    teacher = draw_weights(Encoder(replace(TINY, num_heads=(4, 4))))
    config = student_config(teacher.config, {"num_heads": [2], "d_k": 4, "output_gate": True})
    state, whole = make_student(config, teacher, [1], seed=0, parts=True).state_dict(), teacher.state_dict()
    assert torch.equal(state["layers.0.feed_forward.up.weight"], whole["layers.1.feed_forward.up.weight"])
    assert state["layers.0.attention.query.weight"].shape == (8, 32)
    assert state["layers.0.attention.query.weight"].std() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": []}, "cannot be built: num_heads is empty"),
        ({"nonsense": 1}, "cannot be built: unknown fields nonsense"),
        ({"vocab_size": 7}, "the student's vocab_size is 7, the teacher's 48"),
        ({"hidden_size": 16}, "the student's embedding_size is 16, the teacher's 32"),
    ],
)
def test_students_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RunError, match=message):
        student_config(TINY, changes)


def test_a_run_brings_the_student_nearer_to_its_teacher(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    student: dict[str, Any] = {
        "num_heads": [3, 3],
        "d_v": 6,
        "value_residual": [[0, 1], [0.5, 0.5]],
        "learned_value_residual": True,
    }
    settings = DistilSettings(model=str(tiny_folder), texts=(text_file,), student=student)
    run = RunSettings(output=tmp_path / "small", epochs=4, batch_size=8, learning_rate=3e-3, evaluations=2)
    progress = loop.train(Distil(settings, run), run)
    scores = [figures["cosine_mean"] for figures in progress.evaluations]
    assert scores[-1] > scores[0] + 0.05
    written = read_checkpoint(Folder(run.output, "small")).encoder
    assert written.config.num_heads == (3, 3)
    assert written.config.learned_value_residual


def test_no_text_is_both_learned_from_and_judged_by(text_file: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice.txt"
    twice.write_text(text_file.read_text() * 2)
    own = read_material([twice], None)
    assert not {*own.learned} & {*own.held_out}
    assert len(own.held_out) == 2
    assert sorted([*own.learned, *own.held_out]) == sorted({*text_file.read_text().splitlines()})
    judged = tmp_path / "judged.txt"
    judged.write_text("\n".join([*text_file.read_text().splitlines()[:10], "new york"]))
    given = read_material([twice], judged)
    assert not {*given.learned} & {*given.held_out}
    assert len(given.held_out) == 11
