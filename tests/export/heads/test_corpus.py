import hashlib
from collections import Counter
from pathlib import Path

import pytest

from export.errors import SourceError
from export.heads.corpus import LONGEST_TEXT, sample_corpus


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_small_corpus_is_taken_whole_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", [f"text {i}" for i in range(9)] + ["", "  ", "last"])
    sample = sample_corpus(path, 100)
    assert sample.texts == (*(f"text {i}" for i in range(9)), "last")
    assert sample.seen == 10
    assert sample.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_line_is_as_likely(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", [str(i) for i in range(40)])
    drawn = Counter(text for seed in range(400) for text in sample_corpus(path, 10, seed).texts)
    assert len(drawn) == 40
    assert min(drawn.values()) > 60  # 100 expected, standard deviation 8.7
    assert max(drawn.values()) < 140
    assert sample_corpus(path, 10) == sample_corpus(path, 10)


def test_a_line_of_any_length_is_cut_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "c.txt"
    path.write_text("é" * 300_000 + "\n" + "\n".join("abcdefgh"), encoding="utf-8")
    sample = sample_corpus(path, 100)
    assert sample.seen == 9
    assert sample.texts[0] == "é" * LONGEST_TEXT


def test_refuses_what_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds 2 texts, one a line: at least 8"):
        sample_corpus(write(tmp_path / "c.txt", ["a", "b"]), 10)
    with pytest.raises(SourceError, match="cannot be read as UTF-8 text"):
        sample_corpus(tmp_path / "none", 10)
    (tmp_path / "latin").write_bytes("é\n".encode("latin-1") * 9)
    with pytest.raises(SourceError, match="cannot be read as UTF-8 text"):
        sample_corpus(tmp_path / "latin", 10)
