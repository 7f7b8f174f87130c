import sys
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import BertPreTokenizer, Metaspace
from tokenizers.processors import TemplateProcessing

from model.analysis.words import exclude_special, find_words, punctuation_mask, word_offsets
from tests.model.analysis.maps import draw_maps, uniform
from tests.texts import varied_texts
from tests.tokenizers import bpe, unigram, wordpiece


def spans_of(word_ids: list[int | None]) -> list[tuple[int, int]]:
    """Spans of tokens by the word they name, special tokens alone."""
    names = [("special", token) if word is None else ("word", word) for token, word in enumerate(word_ids)]
    starts = [token for token, name in enumerate(names) if not token or names[token - 1] != name]
    return list(zip(starts, [*starts[1:], len(names)], strict=True))


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    encoding = tokenizer.encode(text)
    words = find_words(text, encoding.offsets, encoding.word_ids)
    return [text[start:end] for start, end in word_offsets(words, encoding.offsets, text)]


def whole_text_at_once() -> Tokenizer:
    """Pieces over the whole text, as some SentencePiece conversions have them: to the tokenizer it is one word."""
    made = Tokenizer.from_str(unigram().to_str())
    made.pre_tokenizer = Metaspace(split=False)
    return made


def untrimmed() -> Tokenizer:
    """Byte-level BPE whose tokens count the space before them as theirs, as ModernBERT's do."""
    made = Tokenizer.from_str(bpe().to_str())
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": wordpiece,
    "bpe": bpe,
    "bpe-untrimmed": untrimmed,
    "unigram": unigram,
    "unigram-whole": whole_text_at_once,
}


TEXTS = {
    "The cats sat on the mats.": ["The", "cats", "sat", "on", "the", "mats", "."],
    "unbelievably  tokenised,\nlower-newest": ["unbelievably", "tokenised", ",", "lower", "-", "newest"],
    "abc123 naïve café": ["abc123", "naïve", "café"],
    "it costs 14€ “quoted”": ["it", "costs", "14€", "“", "quoted", "”"],
    "日 word 语": ["日", "word", "语"],
    "🙂🚀 e\u0301x": ["🙂🚀", "e\u0301x"],
    "": [],
    " \t ": [],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_same_words_whatever_the_tokenizer(kind: str) -> None:
    tokenizer = KINDS[kind]()
    for text, words in TEXTS.items():  # a text of nothing but white space may be a token, which is a word then
        assert [word for word in words_of(tokenizer, text) if word.strip()] == words, text


def test_white_space_of_its_own_begins_the_word_that_follows() -> None:
    text = "a   b "
    offsets, word_ids = [(0, 0), (0, 1), (1, 3), (3, 5), (5, 6), (0, 0)], [None, 0, 1, 2, 3, None]
    assert find_words(text, offsets, word_ids) == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]
    trimmed = [(0, 0), (0, 1), (3, 3), (4, 5), (6, 6), (0, 0)]
    assert find_words(text, trimmed, word_ids) == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]


def test_words_are_those_of_berts_own_tokenizer() -> None:
    for text in varied_texts():
        if not set(text) & {"\u200b", "\u202e", "\ufeff"}:
            encoding = wordpiece().encode(text)
            assert find_words(text, encoding.offsets, encoding.word_ids) == spans_of(encoding.word_ids), text


def test_words_by_hand() -> None:
    """Special tokens stand alone, ideographs too; one character's pieces do not, nor a token across two words."""
    words = find_words("ab", [(0, 0), (0, 0), (0, 1), (1, 2), (0, 0)], [None, None, 0, 0, None])
    assert words == [(0, 1), (1, 2), (2, 4), (4, 5)]
    offsets = [(0, 1), (0, 1), (0, 2), (1, 2), (2, 3), (2, 3)]  # bytes; the third token crosses two ideographs
    assert find_words("日本语", offsets, [0] * 6) == [(0, 4), (4, 6)]
    assert find_words("of the mat", [(0, 6), (6, 10)], [0, 0]) == [(0, 1), (1, 2)]


ENDS = np.array([True, False, False, False, True])


def test_special_tokens_are_left_out(generator: np.random.Generator) -> None:
    weights = np.tile(np.array([0.5, 0.1, 0.2, 0.1, 0.1], dtype=np.float32), (5, 1))
    found = exclude_special(weights, ENDS, renormalise=True)  # rows keep their proportions
    np.testing.assert_allclose(found, [[0.25, 0.5, 0.25]] * 3, atol=1e-7)
    weights = np.zeros((5, 5), dtype=np.float32)
    weights[:, 0] = 1  # no row keeps anything
    np.testing.assert_array_equal(exclude_special(weights, ENDS, renormalise=True), np.zeros((3, 3)))
    weights = draw_maps(generator, 2, 3, 1, 5)
    found = exclude_special(weights, ENDS, queries=np.array([False]))  # the special row was asked for
    np.testing.assert_array_equal(found, weights[..., 1:4])
    assert found.flags.c_contiguous
    for renormalise in (False, True):  # no other tokens
        found = exclude_special(uniform(2)[np.newaxis], np.array([True, True]), renormalise=renormalise)
        assert found.shape == (1, 0, 0)


def are_punctuation(*pieces: str) -> list[bool]:
    found: list[bool] = punctuation_mask(pieces, np.zeros(len(pieces), dtype=np.bool_)).tolist()
    return found


def test_punctuation_is_as_berts_pre_tokenizer_splits_it() -> None:
    assert all(are_punctuation(*".,-—«。؟$^`", "...", "##-", "Ġ,", "▁!", "##"))
    assert not any(are_punctuation("", *"aĠ▁3漢😀€ \n", "##s", "a.", "Ġthe", "3.5"))
    special = np.array([True, False, False, True])
    assert punctuation_mask(["<", "hi", "!", ">"], special).tolist() == [False, False, True, False]
    characters, split = [chr(code) for code in range(128)], BertPreTokenizer().pre_tokenize_str
    alone = [[piece for piece, _ in split(f"a{character}a")] == ["a", character, "a"] for character in characters]
    assert are_punctuation(*characters) == alone


@pytest.mark.parametrize(("gap", "words"), [("\ufffd", [(0, 2)]), ("\x0b", [(0, 2)]), (" ", [(0, 1), (1, 2)])])
def test_what_no_token_holds_costs_no_call_a_character(gap: str, words: list[tuple[int, int]]) -> None:
    events: list[str] = []
    text, places = f"a{gap * 1000}b", [(0, 1), (1001, 1002)]
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        found = find_words(text, places, [0, 1])
    finally:
        sys.setprofile(None)
    assert found == words
    assert len(events) < len(text)
