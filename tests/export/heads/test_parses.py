from pathlib import Path

import numpy as np
import pytest

from export.errors import SourceError
from export.heads.parses import Arc, read_parses
from export.heads.relations import align
from export.tokens import TokenizedText

SENTENCE = """\
# text = Zum Haus, we don't.
1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_
1\tZu\tzu\tADP\t_\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\t_\t_\t3\tdet\t_\t_
3\tHaus\tHaus\tNOUN\t_\t_\t6\tobl:dir\t_\tSpaceAfter=No
4\t,\t,\tPUNCT\t_\t_\t3\tpunct\t_\t_
5\twe\twe\tPRON\t_\t_\t6\tnsubj\t_\t_
6-7\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
6\tdo\tdo\tVERB\t_\t_\t0\troot\t_\t_
7\tn't\tnot\tPART\t_\t_\t6\tadvmod\t_\t_
7.1\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_
8\t.\t.\tPUNCT\t_\t_\t6\tpunct\t_\t_

"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_text_units_and_arcs(tmp_path: Path) -> None:
    sentence = read_parses(write(tmp_path / "p.conllu", SENTENCE * 8))[0]
    assert sentence.text == "Zum Haus, we don't."
    assert [sentence.text[a:b] for a, b in sentence.units] == ["Zum", "Haus", ",", "we", "do", "n't", "."]
    # "zu" and "dem" share one unit; neither the root nor punctuation is a case.
    assert sentence.arcs == (
        Arc(0, 1, "case"),
        Arc(0, 1, "det"),
        Arc(1, 4, "obl"),
        Arc(3, 4, "nsubj"),
        Arc(5, 4, "advmod"),
    )


def test_tokens_join_the_unit_that_holds_their_last_character() -> None:
    offsets = np.array([[0, 0], [0, 2], [2, 3], [3, 8], [8, 9], [0, 0]])  # "Zu", "m", " Haus", ","
    special = np.array([True, False, False, False, False, True])
    text = TokenizedText(0, np.zeros(6, np.int64), special, np.zeros(6, bool), offsets)
    words, units = align(text, [(0, 3), (4, 8), (8, 9)])
    assert units == [-1, 0, 1, 2, -1]
    assert words == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SENTENCE * 2, "holds 2 sentences: at least 8"),
        ("plain text, no columns\n\n", "cannot be read as CoNLL-U"),
        (SENTENCE.replace("\t3\tcase", "\t9\tcase") * 8, "sentence 1 is no dependency parse"),
        (SENTENCE.replace("\t3\tcase", "\t_\t_") * 8, None),
    ],
)
def test_refuses_what_is_no_parse(tmp_path: Path, content: str, message: str | None) -> None:
    path = write(tmp_path / "p.conllu", content)
    if message is None:  # a word without a head is no case
        assert [arc.relation for arc in read_parses(path)[0].arcs] == ["det", "obl", "nsubj", "advmod"]
        return
    with pytest.raises(SourceError, match=message):
        read_parses(path)


def test_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read as CoNLL-U"):
        read_parses(tmp_path / "none.conllu")
