"""A text's tokens: the words they make, those left out, and their shares of a vector and of a similarity."""

import sys
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import BertPreTokenizer, Metaspace
from tokenizers.processors import TemplateProcessing

from model.analysis.arrays import Float32Array
from model.analysis.contributions import contributions, pooled_parts, token_shares
from model.analysis.words import exclude_special, find_words, punctuation_mask, word_offsets
from model.config import Pooling
from model.tasks import POOLINGS
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


NAMES: tuple[Pooling, ...] = get_args(Pooling)
AXES = np.eye(3, dtype=np.float32)


def pooled(hidden: Float32Array, pooling: Pooling) -> torch.Tensor:
    """As the encoder itself pools, [D]."""
    return POOLINGS[pooling](torch.from_numpy(hidden)[None], torch.tensor([len(hidden)]))[0]


@st.composite
def two_texts(draw: st.DrawFn) -> tuple[Float32Array, Float32Array]:
    """Hidden states [n, D] and [m, D] around a common mean, as an encoder's are."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    width = draw(st.sampled_from([1, 8, 384]))
    centre = generator.standard_normal(width, dtype=np.float32)
    lengths = [draw(st.integers(1, 40)) for _ in range(2)]
    first, second = (centre + generator.standard_normal((count, width), dtype=np.float32) for count in lengths)
    return first, second


def test_cells_by_pooling() -> None:
    cells = contributions(AXES[[0, 1]], AXES[[0, 0, 2]], pooling="mean", similarity="dot")
    np.testing.assert_allclose(cells, np.array([[1, 1, 0], [0, 0, 0]]) / 6, rtol=1e-6)
    a = np.array([[5, 0, 2], [1, 3, 2]], dtype=np.float32)  # wins: 0, 1, and the first of equals 0
    b = np.array([[1, 1, 0], [2, 0, 7]], dtype=np.float32)  # wins: 1, 0, 1
    cells = contributions(a, b, pooling="max", similarity="dot")
    np.testing.assert_array_equal(cells, [[0, 5 * 2 + 2 * 7], [3 * 1, 0]])
    one: dict[Pooling, tuple[int, int]] = {"cls": (0, 0), "last": (1, 2)}
    for pooling, cell in one.items():
        cells = contributions(AXES[[0, 0]] + 1, AXES[[0, 1, 0]] + 1, pooling=pooling)
        assert np.argwhere(cells).tolist() == [list(cell)]
        assert cells[cell] == pytest.approx(1.0)


@settings(deadline=None)
@given(two_texts(), st.sampled_from(NAMES))
def test_cells_sum_to_the_similarity_parts_to_the_pooled_vector_and_shares_to_one(
    drawn: tuple[Float32Array, Float32Array], pooling: Pooling
) -> None:
    a, b = drawn
    first, second = (pooled(hidden, pooling).double() for hidden in drawn)
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=0).item()
    cells = contributions(a, b, pooling=pooling)
    assert (cells.shape, cells.dtype.name) == ((len(a), len(b)), "float32")
    assert cells.sum(dtype=np.float64) == pytest.approx(cosine, abs=1e-5)
    dot = contributions(a, b, pooling=pooling, similarity="dot").sum(dtype=np.float64)
    assert dot == pytest.approx((first @ second).item(), rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(pooled_parts(a, pooling).sum(axis=0), first.numpy(), atol=1e-5)
    shares = token_shares(a, pooling)
    assert shares.shape == (len(a),)
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)


def test_shares_by_pooling() -> None:
    hidden = np.array([[5, 0, 2, 9], [1, 3, 2, 1]], dtype=np.float32)
    shares = {pooling: token_shares(hidden, pooling).tolist() for pooling in NAMES}
    assert shares == {"mean": [0.5, 0.5], "cls": [1, 0], "max": [0.75, 0.25], "last": [0, 1]}


def test_refuses_a_cosine_with_nothing() -> None:
    opposite = np.concatenate([AXES, -AXES])
    with pytest.raises(ValueError, match="pooled vector is 0, its cosine with anything is undefined: ask for the dot"):
        contributions(AXES, opposite, pooling="mean")
    assert contributions(AXES, opposite, pooling="mean", similarity="dot").sum() == pytest.approx(0.0, abs=1e-7)
