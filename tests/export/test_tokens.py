import pytest
from tokenizers import Tokenizer

from export.errors import SourceError
from export.tokens import tokenize


@pytest.mark.parametrize("longest", [1, 2])
def test_refuses_lengths_that_leave_no_ordinary_token(tokenizer: Tokenizer, longest: int) -> None:
    message = f"cut to {longest} tokens hold nothing but the tokenizer's 2 special ones; at least 3 are needed"
    with pytest.raises(SourceError, match=message):
        tokenize(["the cat sat"], tokenizer, longest)


def test_texts_are_cut_to_the_length_asked_for(tokenizer: Tokenizer) -> None:
    assert [len(text.ids) for text in tokenize(["the cat sat", "dog"], tokenizer, 3)] == [3, 3]
