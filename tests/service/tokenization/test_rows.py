"""Rows of one text or two: equal to what the tokenizers library makes of the texts together, and cut as it cuts."""

import asyncio
import tracemalloc
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.processors import RobertaProcessing, TemplateProcessing

from model.artifact import PairWording
from service.errors import Invalid, TooLarge
from service.tokenization.inputs import Inputs, Truncate, tokenize
from service.tokenization.rows import NoRoom, PairTruncation, PlainTokens
from service.tokenization.tokenizer import Tokenizer
from tests.service.fake_engine import CLS, SEP, make_tokenizer

LONGEST = 12
KNOWN = ["the", "cat", "cats", "sat", "on", "a", "mat", "zebra", "?", "日本", "\x00", "e\u0301", "🤖"]
WORDS = st.lists(st.sampled_from(KNOWN), max_size=20).map(" ".join)
BERT = make_tokenizer().post_processor
ROBERTA = RobertaProcessing(("[SEP]", SEP), ("[CLS]", CLS), trim_offsets=False, add_prefix_space=False)


def tokenizer_with(processor: Any) -> Any:
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processor
    return tokenizer


def rows(tokenizer: FastTokenizer, *texts: str, **options: Any) -> Any:
    ours = Tokenizer(FastTokenizer.from_str(tokenizer.to_str()), LONGEST, threads=1)
    encode: Any = ours.encode_pairs([texts], **options) if len(texts) > 1 else ours.encode(texts, **options)
    return asyncio.run(encode)[0]


def expected(tokenizer: FastTokenizer, *texts: str, strategy: PairTruncation, direction: str = "right") -> Any:
    library: Any = FastTokenizer.from_str(tokenizer.to_str())
    library.enable_truncation(LONGEST, strategy=strategy, direction=direction)
    return library.encode(*texts)


@pytest.mark.parametrize("processor", [BERT, ROBERTA], ids=["bert", "roberta"])
@given(texts=st.lists(WORDS, min_size=1, max_size=2), from_start=st.booleans())
def test_a_row_is_the_library_s(processor: Any, texts: list[str], from_start: bool) -> None:
    tokenizer = tokenizer_with(processor)
    found = rows(tokenizer, *texts, from_start=from_start)
    row = expected(tokenizer, *texts, strategy="longest_first", direction="left" if from_start else "right")
    assert found.input_ids.tolist() == row.ids
    assert ([0] * len(row.ids) if found.type_ids is None else found.type_ids.tolist()) == row.type_ids
    assert found.segments == (row.sequence_ids if len(texts) > 1 else None)
    for name in ("tokens", "offsets", "word_ids", "special_tokens_mask"):
        assert getattr(found.encoding, name) == getattr(row, name), name
    assert found.truncated == bool(row.overflowing)
    assert found.full_length == len(tokenizer.encode(*texts).ids)
    alone = rows(tokenizer, *texts, from_start=from_start, ids_only=True)
    assert (alone.encoding, alone.input_ids.tolist()) == (None, row.ids)


@given(first=WORDS, second=WORDS)
def test_only_the_second_text_is_cut(first: str, second: str) -> None:
    tokenizer = tokenizer_with(BERT)
    tokens = len(tokenizer.encode(first, add_special_tokens=False).ids)
    if tokens >= LONGEST - 3:
        with pytest.raises(NoRoom, match=f"the first text has {tokens} tokens and leaves no room for the second"):
            rows(tokenizer, first, second, truncation="only_second")
        return
    found = rows(tokenizer, first, second, truncation="only_second")
    row = expected(tokenizer, first, second, strategy="only_second")
    assert found.input_ids.tolist() == row.ids
    cut = rows(tokenizer, first, second, truncation="only_second", most=(None, 2))
    assert cut.segments.count(1) == min(2, found.segments.count(1))


@given(first=WORDS, second=WORDS, from_start=st.booleans())
def test_token_ids_of_a_pair_make_the_row_of_its_texts(first: str, second: str, from_start: bool) -> None:
    tokenizer = tokenizer_with(BERT)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in (first, second)]
    ours = Tokenizer(FastTokenizer.from_str(tokenizer.to_str()), LONGEST, threads=1)
    cut: Truncate = "start" if from_start else True
    given = Inputs(id_pairs=[ids])
    (found,) = asyncio.run(tokenize(ours, given, vocab_size=tokenizer.get_vocab_size(), truncate=cut))
    ours.close()
    assert found.input_ids.tolist() == rows(tokenizer, first, second, from_start=from_start).input_ids.tolist()
    assert found.encoding is None


def test_a_tokenizer_without_a_template_of_pairs_says_so() -> None:
    special_tokens = [("[CLS]", CLS), ("[SEP]", SEP)]
    backwards = TemplateProcessing(single="[CLS] $A [SEP]", pair="$B [SEP] $A", special_tokens=special_tokens)
    with pytest.raises(Invalid, match="has no template for pairs"):
        rows(tokenizer_with(backwards), "a", "cat")


def test_words_around_a_pair_count_as_special_and_end_at_its_texts() -> None:
    """Of a token that reaches into them, as a question mark with the line's end may, the text's own part is told."""
    wording = PairWording(before=("the ", "a"), after=("t on", " mat"))
    ours = Tokenizer(make_tokenizer(), LONGEST, threads=1, pair_wording=wording)
    (found,) = asyncio.run(ours.encode_pairs([("ca", " sat")]))
    ours.close()
    assert found.encoding is not None
    assert found.encoding.tokens == ["[CLS]", "the", "cat", "on", "[SEP]", "a", "sat", "mat", "[SEP]"]
    assert found.encoding.offsets == [(0, 0), (0, 0), (0, 2), (0, 0), (0, 0), (0, 0), (1, 4), (0, 0), (0, 0)]
    assert found.segments == [None, None, 0, None, None, None, 1, None, None]


@pytest.mark.parametrize("wording", [None, PairWording(before=("Query: ", ""), after=("", "."))])
def test_a_long_query_of_many_documents_is_held_once(wording: PairWording | None) -> None:
    query, count = "the cat " * 20_000, 200
    ours = Tokenizer(make_tokenizer(), LONGEST, threads=1, pair_wording=wording)
    tracemalloc.start()
    found = asyncio.run(ours.encode_pairs([(query, f"mat {place}") for place in range(count)], ids_only=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ours.close()
    assert found[7].text == f"{query}\nmat 7"
    assert peak < count * len(query) / 2


@pytest.mark.parametrize(
    ("kept", "read"), [(slice(2), [0]), (slice(7, None), [2]), (slice(3, 7), [1, 2]), (slice(None), [0, 1, 2])]
)
def test_of_a_long_text_only_what_is_kept_is_read(kept: slice, read: list[int]) -> None:
    class Part(list[str]):
        @property
        def tokens(self) -> list[str]:
            reads.append(parts.index(self))
            return self

    reads: list[int] = []
    parts = [Part("abc"), Part("def"), Part("ghi")]
    assert PlainTokens(range(9), cast("Any", tuple(parts))).every("tokens", kept) == list("abcdefghi"[kept])
    assert reads == read


def test_rows_are_refused_by_their_lengths_before_they_are_made() -> None:
    check = Mock(side_effect=TooLarge("enough"))
    pairs = [["the cat " * 9, "sat"], ["the", "a mat"], ["the cat " * 9, "sat on a mat"]]
    ours = Tokenizer(make_tokenizer(), LONGEST, threads=1)
    with pytest.raises(TooLarge, match="enough"):
        asyncio.run(ours.encode_pairs(pairs, most=(None, 2), check_lengths=check))
    made = asyncio.run(ours.encode_pairs(pairs, most=(None, 2)))
    check.assert_called_once_with([len(row.input_ids) for row in made])
