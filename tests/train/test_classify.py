from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from export.checkpoint import read_checkpoint
from export.sources import Folder
from model.config_parts import ClassificationSettings
from tests.train.conftest import draw_texts
from train import loop
from train.classify import Classify, ClassifySettings
from train.errors import DataError
from train.label_tokens import LabelSettings, LabelTokens
from train.settings import RunSettings

RUN = {"epochs": 8, "batch_size": 8, "learning_rate": 4e-3, "evaluations": 2}


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "labelled.csv"
    path.write_text("".join(f"{text},{'yes' if 'cat' in text else 'no'}\n" for text in draw_texts(160)))
    return path


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    return rate(tmp_path / "rated.csv", 0)


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    return rate(tmp_path / "judged.csv", 2)


def rate(path: Path, seed: int) -> Path:
    pairs = zip(draw_texts(160, seed), draw_texts(160, seed + 1), strict=True)
    rows = [(a, b, b.split().count("cat") - a.split().count("cat")) for a, b in pairs]  # which text is which counts
    path.write_text("".join(f"{a},{b},{score}\n" for a, b, score in rows))
    return path


def test_labels_are_learned_and_exported(tiny_folder: Path, labelled: Path, tmp_path: Path) -> None:
    run = RunSettings(output=tmp_path / "run", **RUN)  # type: ignore[arg-type]
    recipe = Classify(ClassifySettings(model=str(tiny_folder), rows=labelled), run)
    progress = loop.train(recipe, run)
    assert progress.best is not None
    assert progress.best > 80
    back = read_checkpoint(Folder(run.output, "run"))
    settings = back.encoder.config.task_settings
    assert isinstance(settings, ClassificationSettings)
    assert settings.labels == ("no", "yes")
    ids = [back.tokenizer.encode(text).ids for text in ("the cat sat", "the dog ran")]
    logits = torch.cat([back.encoder(torch.tensor([row]), torch.tensor([len(row)])).task_output for row in ids])
    assert logits.argmax(dim=1).tolist() == [1, 0]


def test_scores_of_pairs_are_learned(tiny_folder: Path, rated: Path, judged: Path, tmp_path: Path) -> None:
    run = RunSettings(output=tmp_path / "run", **RUN)  # type: ignore[arg-type]
    settings = ClassifySettings(model=str(tiny_folder), rows=rated, held_out=judged, pairs=True, kind="scores")
    recipe = Classify(settings, run)
    progress = loop.train(recipe, run)
    assert progress.best is not None
    assert progress.best > 40
    back = read_checkpoint(Folder(run.output, "run"))
    assert back.pairs
    logits = []
    for line in judged.read_text().splitlines():
        left, right, _ = line.split(",")
        row = back.tokenizer.encode(left, right)
        found = back.encoder(
            torch.tensor([row.ids]), torch.tensor([len(row.ids)]), token_type_ids=torch.tensor([row.type_ids])
        )
        logits.append(float(found.task_output))
    scores = np.array([float(line.split(",")[2]) for line in judged.read_text().splitlines()])
    assert 100 * spearmanr(logits, scores)[0] == pytest.approx(progress.best, abs=0.1)


def test_a_label_whose_only_row_is_held_out_is_one_of_the_labels(tiny_folder: Path, tmp_path: Path) -> None:
    path, run = tmp_path / "rows.csv", RunSettings(output=tmp_path / "run")
    path.write_text("".join(f"word{number},label{number}\n" for number in range(40)))
    assert len(Classify(ClassifySettings(model=str(tiny_folder), rows=path), run).described["targets"]["labels"]) == 40
    words = LabelTokens(LabelSettings(model=str(tiny_folder), rows=path), run)
    assert len(words.described["targets"]["labels"]) == 40


FAULTS = {
    "a score that is a word": (
        "a,b,3\n" * 8 + "a,b,many\n",
        "scores",
        "line 9: the score is 'many', expected a number",
    ),
    "scores all alike": ("a,b,3\n" * 9, "scores", "every score is 3; nothing can be learned"),
    "one label": ("a,b,same\n" * 9, "labels", "1 different labels; expected 2 to 1000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_targets_that_teach_nothing_are_named(fault: str, tiny_folder: Path, tmp_path: Path) -> None:
    content, kind, message = FAULTS[fault]
    path = tmp_path / "rows.csv"
    path.write_text(content)
    judged = tmp_path / "judged.csv"
    judged.write_text("c,d,3\n" * 8)
    settings = ClassifySettings(model=str(tiny_folder), rows=path, held_out=judged, pairs=True, kind=kind)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        Classify(settings, RunSettings(output=tmp_path / "run"))
