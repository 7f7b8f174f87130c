from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer

from service.tokenization.plain_text import PlainText
from service.tokenization.tokenizer import Tokenizer
from tests.tokenizers import bpe, unigram, wordpiece

LONGEST = 16
ADDED = ["<extra>", AddedToken("New York", normalized=True), AddedToken("[unused1]", special=True)]
WORDS = ["lower", "Lowest", "unbelievably", "[SEP]", "[sep]", "new york", "<EXTRA>", "don't", "3.14"]
WORDS += ["\n", "\t", "caf\u00e9", "\u4e2d", "x" * 120]
texts = st.lists(
    st.sampled_from(WORDS) | st.text("abcXYZ .,'[]#@09_-\n", max_size=8) | st.text(max_size=4), max_size=12
).map(" ".join)


def pair(**options: Any) -> tuple[FastTokenizer, PlainText]:
    made = FastTokenizer.from_str(wordpiece().to_str())
    made.normalizer = BertNormalizer(**options)
    made.add_tokens(ADDED)
    plain = PlainText.of(made)
    assert plain is not None
    return made, plain


PAIRS = {
    "uncased": pair(lowercase=True),
    "cased": pair(lowercase=False),
    "accents kept": pair(lowercase=True, strip_accents=False),
    "control characters kept": pair(lowercase=True, clean_text=False, handle_chinese_chars=False),
}


@pytest.mark.parametrize("kind", PAIRS)
@given(text=texts)
@example("The cats sat on the mats, unbelievably tokenised;\ndon't they? (Yes: 3.14, abc123.) lower lowest newer")
@example("")
def test_plain_text_has_the_ids_of_the_whole_way(kind: str, text: str) -> None:
    whole, plain = PAIRS[kind]
    if plain.prepare(text) is not None:
        expected = whole.encode(text, add_special_tokens=False).ids
        assert plain.ids([text], are_short=True) == plain.ids([text], are_short=False) == [expected]


@pytest.mark.parametrize("text", ["A text.", "two\nlines", "don't [x] 3.14 <y>", "#" * 50])
def test_ordinary_english_is_plain(text: str) -> None:
    assert PAIRS["uncased"][1].prepare(text) == text.lower().replace("\n", " ")
    assert PAIRS["cased"][1].prepare(text) == text.replace("\n", " ")


@pytest.mark.parametrize(
    "text", ["caf\u00e9", "tab\there", "nul\0", "del\x7f", "\u4e2d", "a [SEP] b", "in NEW york", "<Extra>"]
)
def test_what_the_normaliser_or_an_added_token_would_touch_is_not(text: str) -> None:
    assert PAIRS["uncased"][1].prepare(text) is None


def test_other_tokenizers_have_no_shorter_way() -> None:
    lower, whole_words = (FastTokenizer.from_str(wordpiece().to_str()) for _ in range(2))
    lower.normalizer = Lowercase()
    whole_words.model = WordLevel(wordpiece().get_vocab(), unk_token="[UNK]")  # noqa: S106 - a token of the vocabulary
    assert [PlainText.of(made) for made in (bpe(), unigram(), lower, whole_words)] == [None] * 4


def test_a_word_too_long_for_the_model_is_unknown_although_the_vocabulary_has_it() -> None:
    long = "a" * 101
    made = FastTokenizer(WordPiece({"[UNK]": 0, "a": 1, "##a": 2, long: 3}, unk_token="[UNK]"))  # noqa: S106 - likewise
    made.normalizer, made.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    plain = PlainText.of(made)
    assert plain is not None
    text = f"a {long} {long[:3]}"
    assert plain.ids([text], are_short=True) == [made.encode(text).ids] == [[1, 0, 1, 2, 2]]


@pytest.mark.parametrize(
    ("added", "text"),
    [
        (AddedToken("caf\u00e9", normalized=True), "my cafe here"),
        (AddedToken("\n", special=True), "a\nb"),
        (AddedToken("\n", normalized=False), "a\nb"),
        (AddedToken("\u212ag", normalized=True), "ten Kg"),  # the kelvin sign, which lowers to an ASCII k
        (AddedToken("new york", normalized=True), "my New\nYork here"),
        (AddedToken("New York", normalized=False), "my New York here, new york"),
    ],
)
def test_a_text_with_an_added_token_in_it_has_the_ids_of_the_whole_way(added: AddedToken, text: str) -> None:
    made = FastTokenizer.from_str(wordpiece().to_str())
    made.add_tokens([added])
    tokenizer = Tokenizer(made, LONGEST, threads=1)
    (alone,), (whole,) = tokenizer.encode_now([text], ids_only=True), tokenizer.encode_now([text])
    assert alone.input_ids.tolist() == whole.input_ids.tolist()
