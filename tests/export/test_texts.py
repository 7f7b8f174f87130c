from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from export.errors import SourceError
from export.texts import HELD_OUT_TEXTS, make_pairs, read_texts, text_batches, tokenize


@pytest.mark.parametrize("longest", [1, 2])
def test_refuses_lengths_that_leave_no_ordinary_token(tokenizer: Tokenizer, longest: int) -> None:
    with pytest.raises(SourceError, match=f"cut to {longest} tokens hold nothing but the tokenizer's special ones"):
        tokenize(["the cat sat"], tokenizer, longest)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\n\ntwo\n", "holds 2 texts, one a line: at least 16"),
        (b"\xff\xfe", "UTF-8"),
        ("\u200b\n".encode() * 16, "holds no text with a token of the model's vocabulary"),
    ],
)
def test_refuses_calibration_text_that_says_nothing(
    tokenizer: Tokenizer, tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "texts").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        text_batches(tmp_path / "texts", tokenizer, longest=20)


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
