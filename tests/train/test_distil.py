import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from tests.train.conftest import draw, read_back
from train import loop
from train.commands import DistilSettings
from train.data import read_material
from train.distil import Distil, make_student, student_config
from train.distillation import (
    PROJECTIONS,
    hidden_loss,
    last_projections,
    relation_heads,
    relation_loss,
    similarity_loss,
)
from train.embedding import cosine_figures
from train.errors import DataError, RunError
from train.settings import RunSettings


def test_a_student_begins_with_the_teachers_weights_that_fit() -> None:
    teacher = draw_weights(Encoder(TINY))
    student = make_student(TINY, teacher, [0, 1, 2, 3], seed=0, parts=True)
    ids, lengths = torch.tensor([[4, 5, 6, 7]]), torch.tensor([4])
    assert torch.equal(student.eval()(ids, lengths).pooled, teacher(ids, lengths).pooled)
    drawn = make_student(TINY, teacher, [0, 1, 2, 3], seed=0, parts=False).state_dict()
    assert not torch.equal(drawn["embeddings.token.weight"], teacher.state_dict()["embeddings.token.weight"])
    teacher = draw_weights(Encoder(replace(TINY, num_heads=(4, 4))))
    config = student_config(teacher.config, {"num_heads": [2], "d_k": 4, "output_gate": True})
    state, whole = make_student(config, teacher, [1], seed=0, parts=True).state_dict(), teacher.state_dict()
    assert torch.equal(state["layers.0.feed_forward.up.weight"], whole["layers.1.feed_forward.up.weight"])
    assert state["layers.0.attention.query.weight"].shape == (8, 32)
    assert state["layers.0.attention.query.weight"].std() == pytest.approx(0.02, rel=0.2)


def test_fields_of_a_layer_each_are_those_of_the_layers_that_the_student_stands_for() -> None:
    windowed = replace(TINY, num_heads=(4,) * 4, attention_positions="rotary", local_layers=(0, 1, 2), window=3)
    assert student_config(windowed, {"num_heads": [4, 4]}).local_layers == (0,)  # of layers 1 and 3
    all_local = student_config(windowed, {"num_heads": [4]})
    assert (all_local.local_layers, all_local.window) == ((), None)
    grouped = replace(TINY, num_heads=(4, 4, 4), num_key_value_heads=(1, 2, 4))
    assert student_config(grouped, {"num_heads": [4]}).num_key_value_heads == (4,)
    assert student_config(grouped, {"num_heads": [8, 8, 8]}).num_key_value_heads == (2, 4, 8)
    assert student_config(grouped, {"num_heads": [3, 3, 3]}).num_key_value_heads == ()
    mixed = replace(TINY, num_heads=(4, 4, 4), value_residual=((0.0, 1.0), (0.3, 0.7), (0.5, 0.5)))
    assert student_config(mixed, {"num_heads": [4, 4]}).value_residual == ((0.0, 1.0), (0.5, 0.5))
    biased = replace(
        TINY, num_heads=(2, 3), attention_positions="alibi", original_heads=4, kept_heads=((0, 3), (0, 1, 2))
    )
    assert student_config(biased, {"num_heads": [3]}).kept_heads == ((0, 1, 2),)
    assert student_config(biased, {"num_heads": [4, 4]}).original_heads == 0
    shared = replace(TINY, num_heads=(4, 4, 4), shared_layers=(0, 0, 0))
    assert student_config(shared, {"num_heads": [4, 4]}).shared_layers == (0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": []}, "cannot be built: num_heads is empty"),
        ({"num_heads": 4}, "cannot be built: incomplete encoder configuration"),
        ({"nonsense": 1}, "cannot be built: unknown fields nonsense"),
        ({"vocab_size": 7}, "the student's vocab_size is 7, the teacher's 48"),
        ({"hidden_size": 16}, "the student's embedding_size is 16, the teacher's 32"),
    ],
)
def test_students_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        student_config(TINY, changes)


def test_a_run_brings_the_student_nearer_to_its_teacher(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    residual = {"value_residual": [[0, 1], [0.5, 0.5]], "learned_value_residual": True}
    student = tmp_path / "student.json"
    student.write_text(json.dumps({"num_heads": [3, 3], **residual}))
    (tiny_folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot"}')
    described = json.loads((tiny_folder / "config.json").read_bytes())
    (tiny_folder / "config.json").write_text(json.dumps({**described, "removed": {"heads": [[1, 3]]}}))
    settings = DistilSettings(model=str(tiny_folder), texts=(text_file,), student=student, d_v=6)
    run = RunSettings(output=tmp_path / "small", epochs=4, batch_size=8, learning_rate=3e-3, evaluations=2)
    scores = [figures["cosine_mean"] for figures in loop.train(Distil(settings, run), run).evaluations]
    assert scores[-1] > scores[0] + 0.05
    written = read_back(run.output)
    assert (written.encoder.config.num_heads, written.encoder.config.d_v) == ((3, 3), 6)
    assert written.encoder.config.learned_value_residual
    assert written.defaults.similarity == "cosine"  # what it learned, not its teacher's
    assert not written.removed


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
    with pytest.raises(DataError, match="0 different texts, without those that are held out; at least 8"):
        read_material([text_file], text_file)


def test_similarity_loss_is_a_plain_loop() -> None:
    a, b = draw(4, 8), draw(4, 8, seed=1)
    cosine = nn.CosineSimilarity(dim=0)
    expected = np.mean([(cosine(a[i], a[j]) - cosine(b[i], b[j])) ** 2 for i in range(4) for j in range(4)])
    assert similarity_loss(a, b) == pytest.approx(float(expected))
    assert similarity_loss(3 * a, a) == pytest.approx(0, abs=1e-12)


def test_hidden_loss_is_0_at_equality_and_1_at_the_mean() -> None:
    whole = [draw(50, 8), 100 * draw(50, 8, seed=1) + 3]
    assert hidden_loss(whole, whole) == 0
    assert hidden_loss([h.mean(dim=0).expand_as(h) for h in whole], whole) == pytest.approx(1)


def test_figures_of_cosines_leave_out_texts_without_tokens() -> None:
    angles = torch.linspace(0, 0.5, 101, dtype=torch.float64)
    found = torch.stack([angles.cos(), angles.sin()], dim=1)
    expected = torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand(101, 2)
    figures = cosine_figures(*(torch.cat([x, torch.zeros(1, 2)]) for x in (5 * found, expected)))
    assert figures["cosine_mean"] == pytest.approx(float(angles.cos().mean()))
    assert figures["cosine_first_percentile"] == pytest.approx(float(angles[99].cos()))
    assert figures["cosine_worst"] == pytest.approx(float(angles[100].cos()))
    found[7] = torch.nan
    assert all(map(math.isnan, cosine_figures(found, expected).values()))


LENGTHS = [3, 1, 5]


def random_projections(width: int, seed: int) -> dict[str, Tensor]:
    return {name: draw(sum(LENGTHS), width, seed=seed + place) for place, name in enumerate(PROJECTIONS)}


def plain(student: dict[str, Tensor], teacher: dict[str, Tensor], heads: int) -> float:
    """The definition, a text and a head at a time."""
    terms = []
    for name in PROJECTIONS:
        texts = zip(*(torch.split(network[name], LENGTHS) for network in (student, teacher)), strict=True)
        for own, whole in ((a.chunk(heads, dim=1), b.chunk(heads, dim=1)) for a, b in texts):
            for rows in zip(own, whole, strict=True):
                found, expected = ((x @ x.T / math.sqrt(x.shape[1])).softmax(dim=1) for x in rows)
                terms += (expected * (expected / found).log()).sum(dim=1).tolist()
    return sum(terms) / len(terms)


def test_relation_loss_is_its_definition_for_networks_of_other_widths() -> None:
    student, teacher = random_projections(6, 0), random_projections(12, 1)
    assert relation_heads(6, 12) == 6
    assert relation_loss(student, teacher, LENGTHS).item() == pytest.approx(plain(student, teacher, 6), rel=1e-5)
    assert relation_loss(student, student, LENGTHS).item() == pytest.approx(0, abs=1e-6)
    student = {name: rows.requires_grad_() for name, rows in student.items()}
    relation_loss(student, teacher, LENGTHS).backward()  # type: ignore[no-untyped-call]
    assert all(rows.grad is not None and bool(rows.grad.isfinite().all()) for rows in student.values())


def test_projections_are_those_of_the_last_layer_with_heads() -> None:
    encoder = draw_weights(Encoder(replace(TINY, num_heads=(4, 2, 0))))
    with last_projections(encoder) as found:
        encoder(torch.tensor([[4, 5, 6]]), torch.tensor([3]))
    sizes = {"query": TINY.d_k, "key": TINY.d_k, "value": TINY.d_v}
    assert {name: rows.shape for name, rows in found.items()} == {name: (3, 2 * size) for name, size in sizes.items()}
    with last_projections(draw_weights(Encoder(replace(TINY, num_heads=(0, 0))))) as found:
        assert found == {}
