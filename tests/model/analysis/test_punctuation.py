import numpy as np
import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from model.analysis.punctuation import punctuation_mask


def is_punctuation(piece: str) -> bool:
    return bool(punctuation_mask([piece], np.array([False]))[0])


@pytest.mark.parametrize("piece", [".", ",", "...", "-", "—", "«", "。", "؟", "$", "^", "`", "##-", "Ġ,", "▁!", "##"])
def test_punctuation(piece: str) -> None:
    assert is_punctuation(piece)


@pytest.mark.parametrize("piece", ["", "a", "##s", "a.", "Ġthe", "▁", "Ġ", "3", "3.5", "漢", "😀", "€", " ", "\n"])
def test_no_punctuation(piece: str) -> None:
    assert not is_punctuation(piece)


def test_special_tokens_never_count() -> None:
    special = np.array([True, False, False, True])
    assert punctuation_mask(["<", "hi", "!", ">"], special).tolist() == [False, False, True, False]


def test_every_ascii_character_as_berts_pre_tokenizer_splits_it() -> None:
    split = BertPreTokenizer()
    for code in range(128):
        character = chr(code)
        alone = [piece for piece, _ in split.pre_tokenize_str(f"a{character}a")] == ["a", character, "a"]
        assert is_punctuation(character) == alone, code
