import hashlib
import json
import re
from pathlib import Path

import pytest

from train.data.text_files import DataFile, read_rows, read_texts
from train.errors import DataError

TEXTS = [f"text number {index}" for index in range(9)]


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


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_rows_are_the_same_in_every_form(ending: str, tmp_path: Path) -> None:
    rows = [(text, f'other, "{text}"') for text in TEXTS]
    lines = {
        "csv": [f'{a},"{b.replace(chr(34), chr(34) * 2)}"' for a, b in rows],
        "tsv": ["\t".join(row) for row in rows],
        "jsonl": [json.dumps({"anchor": a, "more": 1, "positive": b}) for a, b in rows],
    }[ending]
    found, file = read_rows(write(tmp_path / f"rows.{ending}", "\n".join(lines)), ("anchor", "positive"))
    assert [row.fields for row in found] == rows
    assert found[4].place.endswith(f"rows.{ending}, line 5")
    assert file.examples == 9


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
    "not JSON": ("a.jsonl", '{"anchor": "a", "positive": "b"}\n{', "a.jsonl, line 2: not JSON"),
    "other fields": ("a.jsonl", '{"query": "a", "positive": "b"}', "line 1: has query, positive; expected an object"),
    "no object": ("a.jsonl", "[1]", "line 1: has list; expected an object with anchor, positive"),
    "another ending": ("a.json", "{}", "a.json: expected a name that ends in .csv, .tsv or .jsonl"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_file_and_line(fault: str, tmp_path: Path) -> None:
    name, content, message = FAULTS[fault]
    path = tmp_path / name
    if content is not None:
        write(path, content)
    with pytest.raises(DataError) as raised:
        read_texts([path]) if name.endswith(".txt") else read_rows(path, ("anchor", "positive"))
    assert re.search(message, str(raised.value))
