from pathlib import Path

import pytest
import torch

from export.checkpoint import read_checkpoint
from export.sources import Folder
from tests.train.conftest import draw_texts
from train import loop
from train.data import read_rows
from train.errors import DataError
from train.label_tokens import UNLABELLED, LabelSettings, LabelTokens, read_labels
from train.settings import RunSettings


def test_labels_of_words_are_learned_and_exported(tiny_folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    lines = [(text, " ".join("CAT" if word == "cat" else "O" for word in text.split())) for text in draw_texts(120)]
    rows.write_text("".join(f"{text}\t{labels}\n" for text, labels in lines))
    run = RunSettings(output=tmp_path / "run", epochs=6, batch_size=8, learning_rate=4e-3, evaluations=2)
    progress = loop.train(LabelTokens(LabelSettings(model=str(tiny_folder), rows=rows), run), run)
    assert progress.best is not None
    assert progress.best > 95
    back = read_checkpoint(Folder(run.output, "run"))
    assert back.encoder.config.task == "token_classification"
    encoding = back.tokenizer.encode("the cat sat")
    (logits,) = back.encoder(torch.tensor([encoding.ids]), torch.tensor([len(encoding.ids)])).task_output
    (tokens, targets) = read_labels(read_rows(rows, ("text", "labels"))[0][:1], ["CAT", "O"], back.tokenizer, 40)
    assert len(tokens.ids[0]) == len(targets[0])
    assert int((targets[0] != UNLABELLED).sum()) == len(lines[0][0].split())
    assert logits.argmax(dim=1).tolist()[encoding.tokens.index("cat")] == 0


TREE = "# text = Dogs don't\n1\tDogs\tdog\tNOUN\t_\t_\t0\troot\t_\t_\n2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
TREE += (
    "2\tdo\tdo\tAUX\t_\t_\t1\taux\t_\t_\n3\tn't\tnot\tPART\t_\t_\t1\tadvmod\t_\t_\n3.1\tx\tx\tX\t_\t_\t_\t_\t_\t_\n\n"
)


def test_a_treebank_is_read_as_words_and_parts_of_speech(tmp_path: Path) -> None:
    path = tmp_path / "tree.conllu"
    path.write_text(TREE * 8)
    rows, _ = read_rows(path, ("text", "labels"))
    assert {row.fields for row in rows} == {("Dogs do n't", "NOUN AUX PART")}
    path.write_text(TREE * 8 + "1\tDogs\n")
    with pytest.raises(DataError, match="line 57: 2 columns, expected CoNLL-U's 10"):
        read_rows(path, ("text", "labels"))


@pytest.mark.parametrize(
    ("last", "message"),
    [("a b\tO", "2 words and 1 labels"), ("a b\tO X", "label 'X' is none of those"), ("a\t ", "labels is empty")],
)
def test_faults_name_their_line(tiny_folder: Path, tmp_path: Path, last: str, message: str) -> None:
    rows, judged = tmp_path / "rows.tsv", tmp_path / "judged.tsv"
    rows.write_text("".join(f"word {n}\tO N\n" for n in range(9)))
    judged.write_text("".join(f"other {n}\tO N\n" for n in range(8)) + last + "\n")
    settings = LabelSettings(model=str(tiny_folder), rows=rows, held_out=judged)
    with pytest.raises(DataError, match=f"line 9: {message}"):
        LabelTokens(settings, RunSettings(output=tmp_path / "run"))
