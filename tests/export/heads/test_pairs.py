from pathlib import Path

import pytest
from tokenizers import Tokenizer

from export.errors import SourceError
from export.heads.pairs import read_pairs, require_ratings, shuffle_places, tokenize_pairs


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_pairs_stay_together_and_empty_ones_go(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = ['"the cat, sat",dog,1.5'] + [f"cat,dog,{i}" for i in range(6)] + [",dog,2", "mat,sat,3"]
    pairs = read_pairs(write(tmp_path / "p.csv", "\n".join(rows) + "\n"))
    assert pairs.left[0] == "the cat, sat"
    found = tokenize_pairs(pairs, tokenizer, 40)
    assert found.ratings.tolist() == [1.5, 0, 1, 2, 3, 4, 5, 3]
    assert [text.place for text in found.texts] == list(range(16))
    assert found.right[-1].ids.tolist() == [2, 6, 3]
    assert pairs.choose([8, 0]).right == ("sat", "dog")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,1\n" * 3, "holds 3 pairs: at least 8"),
        ("a,b,1\n" * 9, "with different ratings"),
        ("sentence1,sentence2,score\n" + "a,b,1\n" * 9, "row 1: expected text,text,rating, without a header"),
        ("a,b\n" * 9, "row 1: expected"),
        ("a,b,1\n" * 3 + "a,b,nan\n", "row 4: .*not finite"),
    ],
)
def test_refuses_what_is_no_pairs(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_pairs(write(tmp_path / "p.csv", content))


def test_a_draw_from_alternating_ratings_has_both(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = read_pairs(write(tmp_path / "p.csv", "cat,dog,0\ncat,mat,1\n" * 40))
    drawn = tokenize_pairs(pairs.choose(shuffle_places(80)[:40]), tokenizer, 40)
    assert require_ratings(drawn, tmp_path, "to measure importance on") is drawn
    alike = tokenize_pairs(pairs.choose(range(0, 80, 2)), tokenizer, 40)
    with pytest.raises(SourceError, match="40 pairs with 1 different ratings to measure importance on; at least 8"):
        require_ratings(alike, tmp_path, "to measure importance on")
