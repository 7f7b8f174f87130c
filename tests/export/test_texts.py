"""Texts, parses and rated pairs: what is read of files, and what of them is refused."""

from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from export.errors import SourceError
from export.heads.corpus import (
    LONGEST_TEXT,
    read_pairs,
    read_parses,
    require_ratings,
    sample_corpus,
    shuffle_places,
    tokenize_pairs,
)
from export.heads.relations import align
from export.texts import HELD_OUT_TEXTS, TokenizedText, make_pairs, read_texts, text_batches, tokenize
from tests.networks import tiny_tokenizer


@pytest.mark.parametrize("longest", [1, 2])
def test_refuses_lengths_that_leave_no_ordinary_token(tokenizer: Tokenizer, longest: int) -> None:
    with pytest.raises(SourceError, match=f"cut to {longest} tokens hold nothing but the tokenizer's special ones"):
        tokenize(["the cat sat"], tokenizer, longest)


def test_batches_hold_every_text_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n".join(["a", "the cat sat " * 30, "the dog"] * 10))
    batches = text_batches(tmp_path / "texts", tokenizer, longest=20)
    assert sum(len(batch.lengths) for batch in batches) == 30
    assert max(int(batch.lengths.max()) for batch in batches) == 20


def test_a_text_that_is_cut_keeps_every_closing_token(tokenizer: Tokenizer, tmp_path: Path) -> None:
    closing = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    two = Tokenizer.from_str(tokenizer.to_str())
    two.post_processor = TemplateProcessing(single="[CLS] $A [SEP] [SEP]", special_tokens=closing)
    (tmp_path / "texts").write_text("the cat sat on the mat\n" * 16)
    (batch,) = text_batches(tmp_path / "texts", two, longest=5)
    assert [two.id_to_token(i) for i in batch.input_ids[0].tolist()] == ["[CLS]", "the", "cat", "[SEP]", "[SEP]"]


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\u2028text\r\n" * 16, encoding="utf-8", newline="")
    assert read_texts(path) == ["one\u2028text"] * 16


def test_held_out_pairs_are_half_related() -> None:
    texts = read_texts(HELD_OUT_TEXTS)
    pairs = make_pairs(texts)
    related = [" ".join(document.split()).startswith(query) for query, document in pairs]
    assert len(pairs) == len(texts)
    assert related[0::2] == [True] * 128
    assert not any(related[1::2])


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_small_corpus_is_taken_whole_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", "\n".join([*(f"text {i}" for i in range(9)), "", "  ", "last" * LONGEST_TEXT]))
    assert sample_corpus(path, 100) == ((*(f"text {i}" for i in range(9)), ("last" * LONGEST_TEXT)[:LONGEST_TEXT]), 10)


def test_every_line_is_as_likely(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", "\n".join(map(str, range(40))))
    drawn = Counter(text for seed in range(400) for text in sample_corpus(path, 10, seed)[0])
    assert len(drawn) == 40
    assert min(drawn.values()) > 60  # 100 expected, standard deviation 8.7
    assert max(drawn.values()) < 140
    assert sample_corpus(path, 10) == sample_corpus(path, 10)


def test_a_mark_of_the_encoding_is_no_text(tmp_path: Path) -> None:
    """Windows programs begin UTF-8 files with one."""
    path = tmp_path / "marked"
    path.write_text("first\n" * 16, encoding="utf-8-sig")
    assert {*sample_corpus(path, 100)[0], *read_texts(path)} == {"first"}
    path.write_text('"one, two",b,1\n' + "a,b,2\n" * 8, encoding="utf-8-sig")
    assert read_pairs(path).left[0] == "one, two"
    path.write_text(SENTENCE * 8, encoding="utf-8-sig")
    assert read_parses(path)[0].text == "Zum Haus, we don't."


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


def test_text_units_and_arcs(tmp_path: Path) -> None:
    sentence = read_parses(write(tmp_path / "p.conllu", SENTENCE * 8))[0]
    assert sentence.text == "Zum Haus, we don't."
    assert [sentence.text[a:b] for a, b in sentence.units] == ["Zum", "Haus", ",", "we", "do", "n't", "."]
    # "zu" and "dem" share one unit; neither the root nor punctuation is a case.
    arcs = [*map(astuple, sentence.arcs)]
    assert arcs == [(0, 1, "case"), (0, 1, "det"), (1, 4, "obl"), (3, 4, "nsubj"), (5, 4, "advmod")]


def test_tokens_join_the_unit_that_holds_their_last_character() -> None:
    offsets = np.array([[0, 0], [0, 2], [2, 3], [3, 8], [8, 9], [0, 0]])  # "Zu", "m", " Haus", ","
    special = np.array([True, False, False, False, False, True])
    text = TokenizedText(0, np.zeros(6, np.int64), special, np.zeros(6, bool), offsets)
    words, units = align(text, [(0, 3), (4, 8), (8, 9)])
    assert units == [-1, 0, 1, 2, -1]
    assert words == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]


def test_a_word_without_a_head_is_no_case(tmp_path: Path) -> None:
    path = write(tmp_path / "p.conllu", SENTENCE.replace("\t3\tcase", "\t_\t_") * 8)
    assert [arc.relation for arc in read_parses(path)[0].arcs] == ["det", "obl", "nsubj", "advmod"]


def test_pairs_stay_together_and_empty_ones_go(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = ['"the cat, sat",dog,1.5'] + [f"cat,dog,{i}" for i in range(6)] + ["", ",dog,2", "mat,sat,3"]
    pairs = read_pairs(write(tmp_path / "p.csv", "\n".join(rows) + "\n\n"))
    assert pairs.left[0] == "the cat, sat"
    found = tokenize_pairs(pairs, tokenizer, 40)
    assert found.ratings.tolist() == [1.5, 0, 1, 2, 3, 4, 5, 3]
    assert [text.place for text in found.texts] == list(range(16))
    assert found.right[-1].ids.tolist() == [2, 6, 3]
    assert pairs.choose([8, 0]).right == ("sat", "dog")


def read_calibration(path: Path) -> object:
    return text_batches(path, tiny_tokenizer(), longest=20)


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_calibration, "one\n\ntwo\n", "holds 2 texts, one a line: at least 16"),
        (read_calibration, b"\xff\xfe", "UTF-8"),
        (read_calibration, "\u200b\n" * 16, "holds no text with a token of the model's vocabulary"),
        (partial(sample_corpus, count=10), "a\nb", "holds 2 texts, one a line: at least 8"),
        (partial(sample_corpus, count=10), None, "file cannot be read: No such file"),
        (partial(sample_corpus, count=10), b"a\n" * 9 + b"\xe9\n", "file is no UTF-8 text: "),
        (read_parses, SENTENCE * 2, "holds 2 sentences: at least 8"),
        (read_parses, "plain text, no columns\n\n", "cannot be read as CoNLL-U"),
        (read_parses, SENTENCE.replace("\t3\tcase", "\t9\tcase") * 8, "no dependency parse: token or column 9 is"),
        (read_pairs, "a,b,1\n" * 3, "holds 3 pairs: at least 8"),
        (read_pairs, "a,b,1\n" * 9, "with different ratings"),
        (read_pairs, "left,right,score\n" + "a,b,1\n" * 9, "row 1: expected text,text,rating, without a header"),
        (read_pairs, "a,b\n" * 9, "row 1: expected"),
        (read_pairs, "a,b,1\n" * 3 + "a,b,nan\n", "row 4: .*not finite"),
    ],
)
def test_refuses_files_that_are_no_texts_parses_or_pairs(
    tmp_path: Path, read: Callable[[Path], object], content: str | bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SourceError, match=message):
        read(tmp_path / "file")


def test_a_draw_from_alternating_ratings_has_both(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = read_pairs(write(tmp_path / "p.csv", "cat,dog,0\ncat,mat,1\n" * 40))
    drawn = tokenize_pairs(pairs.choose(shuffle_places(80)[:40]), tokenizer, 40)
    assert require_ratings(drawn, tmp_path, "to measure importance on") is drawn
    alike = tokenize_pairs(pairs.choose(range(0, 80, 2)), tokenizer, 40)
    with pytest.raises(SourceError, match="40 pairs with 1 different ratings to measure importance on; at least 8"):
        require_ratings(alike, tmp_path, "to measure importance on")
