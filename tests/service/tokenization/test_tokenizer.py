"""Tokenizers: ids the short way and the whole way, long and many texts, faulty files and libraries."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer

from service.errors import InternalError, NotReady, Overloaded
from service.observability.logs import describe
from service.tokenization import tokenizer as tokenizer_module
from service.tokenization.inputs import Inputs, tokenize
from service.tokenization.plain_text import PlainText
from service.tokenization.tokenizer import (
    CHARACTERS_AT_ONCE,
    INLINE_CHARACTERS,
    MAX_FILE_BYTES,
    TEXTS_AT_ONCE,
    Tokenizer,
)
from tests.service.conftest import Served, bodies
from tests.service.fake_backend import PATIENCE
from tests.service.fake_engine import MAX_LENGTH, make_tokenizer
from tests.texts import varied_texts
from tests.tokenizers import TOKENIZERS, bpe, unigram, wordpiece

ours = Tokenizer(make_tokenizer(), MAX_LENGTH, threads=1)


def test_long_inputs_come_from_a_thread_the_same() -> None:
    texts = ["the cat sat", "on a mat " * INLINE_CHARACTERS]
    threaded = asyncio.run(ours.encode(texts))
    assert [one.input_ids.tolist() for one in threaded] == [one.input_ids.tolist() for one in ours.encode_now(texts)]


MANY = 2000


@pytest.mark.parametrize(
    ("inputs", "overlap"),
    [
        (Inputs(text_pairs=[("the cat", "sat on a mat")] * MANY), None),  # few texts to tokenise, and many rows to make
        (Inputs(texts=["the cat"] * MANY), 0),
        (Inputs(token_ids=[[5] * MAX_LENGTH] * MANY), None),
        (Inputs(id_pairs=[[[5, 6], [7]]] * MANY), None),
    ],
    ids=["pairs of texts", "windows", "token ids", "pairs of ids"],
)
def test_many_rows_are_made_on_a_thread(inputs: Inputs, overlap: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    make, made_by = np.array, set[int]()

    def noted(*given: Any, **named: Any) -> Any:
        made_by.add(threading.get_ident())
        return make(*given, **named)

    monkeypatch.setattr(np, "array", noted)
    found = asyncio.run(tokenize(ours, inputs, vocab_size=1000, overlap=overlap))
    assert (len(found), bool(made_by), threading.get_ident() in made_by) == (MANY, True, False)


def test_padding_and_truncation_of_the_file_do_not_count(tmp_path: Path) -> None:
    made, path = make_tokenizer(), tmp_path / "tokenizer.json"
    made.enable_padding(length=32)
    made.enable_truncation(4)
    made.save(str(path))
    (item,) = Tokenizer.load(path, MAX_LENGTH, threads=1).encode_now(["the cat sat on a mat"])
    assert len(item.input_ids) == 8


PANICS = json.loads(make_tokenizer().to_str())
PANICS["post_processor"]["special_tokens"] = {}
NO_UNKNOWN = json.loads(make_tokenizer().to_str())
NO_UNKNOWN["model"]["unk_token"] = "[NONE]"  # noqa: S105 - a token of text
FILES = {
    "empty": "",
    "later version": '{"version": "9.9"}',
    "deep": '{"model":' + "[" * 100_000,
    "makes the library panic": json.dumps(PANICS),
    "fails on an unknown word": json.dumps(NO_UNKNOWN),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_file_that_is_no_tokenizer(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{path} is no tokenizer"):
        Tokenizer.load(path, MAX_LENGTH, threads=1)


def test_huge_file_is_not_read_and_a_length_leaves_room(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(path))
    with pytest.raises(ValueError, match="leaves no room for text"):
        Tokenizer.load(path, 2, threads=1)
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # sparse: no block on the disk
    with pytest.raises(ValueError, match=f"{path} has {MAX_FILE_BYTES + 1} bytes, at most"):
        Tokenizer.load(path, MAX_LENGTH, threads=1)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_ids_alone_are_the_same_ids_for_every_kind_of_tokenizer(kind: str) -> None:
    tokenizer = Tokenizer(FastTokenizer.from_str(TOKENIZERS[kind]().to_str()), 16, threads=1)
    texts = [*varied_texts(), "<mask> [MASK] </s>", " leading and trailing ", "\n\t"]
    alone, whole = tokenizer.encode_now(texts, ids_only=True), tokenizer.encode_now(texts)
    assert [item.input_ids.tolist() for item in alone] == [item.input_ids.tolist() for item in whole]
    assert [item.full_length for item in alone] == [item.full_length for item in whole]


def test_a_closed_tokenizer_says_so() -> None:
    tokenizer = Tokenizer(make_tokenizer(), MAX_LENGTH, threads=1)
    tokenizer.close()
    with pytest.raises(NotReady, match="no longer takes work"):
        asyncio.run(tokenizer.encode(["on a mat " * INLINE_CHARACTERS]))


class Panic(BaseException):
    """What the library's own panics look like from here."""


@pytest.mark.parametrize("ids_only", [False, True])
def test_a_panic_of_the_library_is_a_failure_of_ours(monkeypatch: pytest.MonkeyPatch, *, ids_only: bool) -> None:
    panics = Mock(side_effect=Panic("a s\u00e9cret secret"))
    monkeypatch.setattr(ours, "_tokenizer", Mock(encode=panics, encode_batch_fast=panics))
    with pytest.raises(InternalError) as caught:
        ours.encode_now(["a s\u00e9cret secret"], ids_only=ids_only)
    assert "secret" not in str(describe(caught.value))


async def test_freed_memory_of_long_texts_is_returned_once_no_more_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = threading.Event()
    monkeypatch.setattr(tokenizer_module, "trim_heap", trimmed.set)
    tokenizer = Tokenizer(make_tokenizer(), MAX_LENGTH, threads=1)
    await tokenizer.encode(["a" * 5000])
    assert not trimmed.is_set()
    await tokenizer.encode(["a" * 131_072])
    assert await asyncio.to_thread(trimmed.wait, PATIENCE)
    tokenizer.close()


@pytest.mark.parametrize("ids_only", [False, True])
def test_a_long_text_leaves_other_threads_the_interpreter(*, ids_only: bool) -> None:
    tokenizer = Tokenizer(wordpiece(), 256, threads=1)

    def share() -> float:
        """The processor time of this thread, as a share of what the tokenizer's took meanwhile."""
        spent: list[float] = []

        def tokenize() -> None:
            before = time.thread_time()
            tokenizer.encode_now(["\u4e2d" * 131_072], ids_only=ids_only)
            spent.append(time.thread_time() - before)

        thread, before = threading.Thread(target=tokenize), time.thread_time()
        thread.start()
        while thread.is_alive():
            pass
        return (time.thread_time() - before) / spent[0]

    # About 1, and below 0.1 if the interpreter is held; a busy machine lets this thread wait at times.
    assert any(share() > 0.3 for _ in range(10))


def test_texts_come_to_the_library_in_calls_of_few_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is cut off is held for few texts at once."""
    encode = Mock(wraps=ours._encode)
    monkeypatch.setattr(ours, "_encode", encode)
    texts = ["cat " * 500] * 50 + ["dog " * 20_000, "cat"]
    assert [item.full_length for item in asyncio.run(ours.encode(texts))] == [502] * 50 + [20_002, 3]
    sizes = sorted(sum(map(len, call.args[0])) for call in encode.call_args_list)
    assert (sum(sizes), sizes[-1], sizes[-2] <= CHARACTERS_AT_ONCE) == (sum(map(len, texts)), 80_000, True)
    encode.reset_mock()
    ours.encode_now(["cat " * 20] * (3 * TEXTS_AT_ONCE + 1))
    assert [len(call.args[0]) for call in encode.call_args_list] == [TEXTS_AT_ONCE] * 3 + [1]


def test_routes_refuse_long_texts_while_the_queue_is_full(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = served.engine.tokenizer._queue
    monkeypatch.setattr(queue, "_refusal", lambda *_: Overloaded("the expected wait is 9 s", retry_after=9.0))
    assert served.engine.tokenizer.early_refusal(INLINE_CHARACTERS) is None, "it would not wait"
    for path, body in bodies("the cat " * 1000).items():
        response = served.client.post(path, json=body)
        assert (response.status_code, response.headers["retry-after"]) == (429, "9"), path
        assert served.metric("polyhead_tokenizer_queue_characters") == 0, path


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


def test_ordinary_english_is_plain_and_what_the_normaliser_or_an_added_token_would_touch_is_not() -> None:
    for text in ("A text.", "two\nlines", "don't [x] 3.14 <y>", "#" * 50):
        assert PAIRS["uncased"][1].prepare(text) == text.lower().replace("\n", " ")
        assert PAIRS["cased"][1].prepare(text) == text.replace("\n", " ")
    for text in ("caf\u00e9", "tab\there", "nul\0", "del\x7f", "\u4e2d", "a [SEP] b", "in NEW york", "<Extra>"):
        assert PAIRS["uncased"][1].prepare(text) is None, text


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
