import hashlib
import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tests.train.conftest import draw_texts
from train.batching import (
    as_running_text,
    epoch_batches,
    ordinary_tokens,
    related_batches,
    substitute,
    tokenize_texts,
)
from train.data import DataFile, read_parts, read_rows, read_texts
from train.errors import DataError

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
    assert files == [DataFile("a.txt", digests[0], 4), DataFile("b.txt", digests[1], 5)]


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
        assert file.examples == 9
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
    "not UTF-8": ("a.txt", b"one\ntwo\nna\xefve\n", r"a.txt, line 3: not UTF-8 \(byte 3 of the line\)"),
    "one line of 10 MB": ("a.txt", b"one\n" + b"x" * 10_000_000, "a.txt, line 2: longer than 1048576 bytes"),
    "one column": ("a.csv", GOOD + "only one\n", "a.csv, line 5: 1 columns; expected anchor, positive"),
    "three columns": ("a.tsv", "a\tb\n" * 2 + "a\tb\tc\n", "a.tsv, line 3: 3 columns; expected anchor, positive"),
    "an open quote": ("a.csv", GOOD + '"open,b\n', "a.csv, line 5: not CSV"),
    "an empty field": ("a.csv", GOOD + "a, \n", "a.csv, line 5: positive is empty"),
    "a header": ("a.csv", "Text, label\n" + GOOD, r"a.csv, line 1: names the columns \(Text,  label\): take the line"),
    "a header with tabs": ("a.tsv", "anchor\tpositive\n" + "a\tb\n" * 8, "a.tsv, line 1: names the columns"),
    "not JSON": ("a.jsonl", '{"anchor": "a", "positive": "b"}\n{', "a.jsonl, line 2: not JSON"),
    "other fields": ("a.jsonl", '{"query": "a", "positive": "b"}', "line 1: has query, positive; expected an object"),
    "no object": ("a.jsonl", "[1]", "line 1: has list; expected an object with anchor, positive"),
    "a null": (
        "a.jsonl",
        '{"anchor": "a", "positive": 2}\n{"anchor": null, "positive": "b"}',
        "line 2: anchor is null, expected a text or a number",
    ),
    "no CoNLL-U": ("a.conllu", TREE * 8 + "1\tDogs\n", "a.conllu, line 57: 2 columns, expected CoNLL-U's 10"),
    "another ending": ("a.json", "{}", "a.json: expected a name that ends in .csv, .tsv or .jsonl"),
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
    with pytest.raises(DataError, match=message):
        read_texts([path]) if name.endswith(".txt") else read_rows(path, ("anchor", "positive"), optional=optional)


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


def test_near_texts_become_batch_mates() -> None:
    batches = torch.randperm(320, generator=torch.Generator().manual_seed(0)).view(20, 16).tolist()
    places = [place for batch in batches for place in batch]
    angles = torch.tensor([place % 10 for place in places]) * 0.6  # ten kinds of texts
    found = related_batches(batches, torch.stack([angles.cos(), angles.sin()], dim=1))
    assert sorted(place for batch in found for place in batch) == sorted(places)
    assert {len(batch) for batch in found} == {16}

    def alike(some: list[list[int]]) -> int:
        return sum(one % 10 == other % 10 for batch in some for one in batch for other in batch)

    assert alike(found) > 3 * alike(batches)
    assert sorted(place for batch in related_batches(batches, torch.ones(320, 1)) for place in batch) == sorted(places)


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
