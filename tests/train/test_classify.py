from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from export.checkpoint import Checkpoint
from model.config_parts import ClassificationSettings
from tests.train.conftest import draw_texts, read_back
from train import loop
from train.classify import UNLABELLED, Classify, LabelTokens, read_labels
from train.commands import ClassifySettings, Level
from train.data import read_rows
from train.errors import DataError
from train.loop import Recipe
from train.settings import RunSettings


def run_of(folder: Path, epochs: float = 1, batch_size: int = 16) -> RunSettings:
    return RunSettings(output=folder / "run", epochs=epochs, batch_size=batch_size, learning_rate=4e-3, evaluations=2)


def train(recipe: Recipe, run: RunSettings) -> tuple[float, Checkpoint]:
    """The best score, and the network that has it."""
    best = loop.train(recipe, run).best
    assert best is not None
    return best, read_back(run.output)


def output(network: Checkpoint, *texts: str) -> Tensor:
    """The task's output of a text or a pair, by the network's own tokenizer."""
    row = network.tokenizer.encode(*texts)  # type: ignore[arg-type]  # its flags are named
    types = torch.tensor([row.type_ids])
    ids, lengths = torch.tensor([row.ids]), torch.tensor([len(row.ids)])
    found: Tensor = network.encoder(ids, lengths, token_type_ids=types).task_output
    return found[0]


def test_labels_are_learned_and_exported(tiny_folder: Path, tmp_path: Path) -> None:
    labelled, run = tmp_path / "labelled.csv", run_of(tmp_path, epochs=5)
    labelled.write_text("".join(f"{text},{'yes' if 'cat' in text else 'no'}\n" for text in draw_texts(160)))
    best, network = train(Classify(ClassifySettings(model=str(tiny_folder), rows=labelled), run), run)
    assert best > 80
    settings = network.encoder.config.task_settings
    assert isinstance(settings, ClassificationSettings)
    assert settings.labels == ("no", "yes")
    assert [int(output(network, text).argmax()) for text in ("the cat sat", "the dog ran")] == [1, 0]


def test_scores_of_pairs_are_learned(tiny_folder: Path, tmp_path: Path) -> None:
    rated, judged = tmp_path / "rated.csv", tmp_path / "judged.csv"
    for path, seed in ((rated, 0), (judged, 2)):
        pairs = zip(draw_texts(240, seed), draw_texts(240, seed + 1), strict=True)
        rows = [(a, b, b.split().count("cat") - a.split().count("cat")) for a, b in pairs]  # which is which counts
        path.write_text("".join(f"{a},{b},{score * (1 + 8 * seed)}\n" for a, b, score in rows))
    # held-out scores have a wider range than the learned ones
    settings = ClassifySettings(model=str(tiny_folder), rows=rated, held_out=judged, pairs=True, scores=True)
    run = run_of(tmp_path, epochs=4)
    best, network = train(Classify(settings, run), run)
    assert best > 40
    assert network.pairs
    logits = [float(output(network, left, right)) for left, right, _ in rows]
    assert 100 * spearmanr(logits, [score for *_, score in rows])[0] == pytest.approx(best, abs=0.1)


def test_labels_of_words_are_learned_and_exported(tiny_folder: Path, tmp_path: Path) -> None:
    rows, run = tmp_path / "rows.tsv", run_of(tmp_path, epochs=6, batch_size=8)
    lines = [(text, " ".join("CAT" if word == "cat" else "O" for word in text.split())) for text in draw_texts(120)]
    rows.write_text("".join(f"{text}\t{labels}\n" for text, labels in lines))
    best, network = train(LabelTokens(ClassifySettings(model=str(tiny_folder), rows=rows, level="tokens"), run), run)
    assert best > 95
    assert network.encoder.config.task == "token_classification"
    place = network.tokenizer.encode("the cat sat").tokens.index("cat")
    assert int(output(network, "the cat sat")[place].argmax()) == 0
    (tokens, targets) = read_labels(read_rows(rows, ("text", "labels"))[0][:1], ["CAT", "O"], network.tokenizer, 40)
    assert len(tokens.ids[0]) == len(targets[0])
    assert int((targets[0] != UNLABELLED).sum()) == len(lines[0][0].split())


def test_a_word_without_a_token_teaches_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    rows, run = tmp_path / "rows.csv", run_of(tmp_path, batch_size=1)
    rows.write_text("".join(f"the cat {'sat ' * number},A B{' A' * number}\n" for number in range(4)))
    with rows.open("a", encoding="utf-8") as file:
        file.write("".join(f"{chr(0x200B) * number},A\n" for number in range(1, 9)))
    recipe = LabelTokens(ClassifySettings(model=str(tiny_folder), rows=rows, level="tokens"), run)
    loop.train(recipe, run)
    assert all(tensor.isfinite().all() for tensor in recipe.encoder.state_dict().values())


def test_a_label_whose_only_row_is_held_out_is_one_of_the_labels(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"word{number},label{number}\n" for number in range(40)))
    for level in get_args(Level):
        recipe = ClassifySettings(model=str(tiny_folder), rows=path, level=level).recipe(run_of(tmp_path))
        assert len(recipe.described["targets"]["labels"]) == 40


WORDS = "".join(f"other {n},O N\n" for n in range(8))
FAULTS = {
    "a score that is a word": ("scores", "a,b,3\n" * 8 + "a,b,many\n", "line 9: the score is 'many', expected a"),
    "a score that is no number": ("scores", "a,b,3\n" * 8 + "a,b,nan\n", "line 9: the score is 'nan', expected a"),
    "scores all alike": ("scores", "a,b,3\n" * 9, "every score is 3; nothing can be learned"),
    "one label": ("labels", "a,b,same\n" * 9, "1 different labels; expected 2 to 1000"),
    "scores as labels": ("labels", "".join(f"a{n},b,{n}\n" for n in range(1001)), "to 1000. Are these scores?"),
    "a label that is not learned": ("labels", "a,b,4\na,b,5\n" * 4, "line 1: label '3' is none of those learned from"),
    "fewer labels than words": ("words", WORDS + "a b,O\n", "line 9: 2 words and 1 labels"),
    "a word's label that is not learned": ("words", WORDS + "a b,O X\n", "line 9: label 'X' is none of those"),
    "no labels": ("words", WORDS + "a, \n", "line 9: labels is empty"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_targets_that_teach_nothing_are_named(fault: str, tiny_folder: Path, tmp_path: Path) -> None:
    kind, content, message = FAULTS[fault]
    rows, judged = tmp_path / "rows.csv", tmp_path / "judged.csv"
    is_words = kind == "words"
    rows.write_text(WORDS.replace("other", "word") if is_words else content)
    judged.write_text(content if is_words else "c,d,3\n" * 8)
    given: Any = {"level": "tokens"} if is_words else {"pairs": True, "scores": kind == "scores"}
    with pytest.raises(DataError, match=message):
        ClassifySettings(model=str(tiny_folder), rows=rows, held_out=judged, **given).recipe(run_of(tmp_path))
