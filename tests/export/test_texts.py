from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from export.errors import SourceError
from export.texts import graph_inputs, run_encoder, tokenize
from model.artifact import ATTENTION_LAYERS, NORM_LAYERS, TOKEN_TYPE_IDS
from model.encoder import Encoder
from tests.networks import TINY, draw_weights


@pytest.mark.parametrize("longest", [1, 2])
def test_refuses_lengths_that_leave_no_ordinary_token(tokenizer: Tokenizer, longest: int) -> None:
    message = f"cut to {longest} tokens hold nothing but the tokenizer's 2 special ones; at least 3 are needed"
    with pytest.raises(SourceError, match=message):
        tokenize(["the cat sat"], tokenizer, longest)


def test_texts_are_cut_to_the_length_asked_for(tokenizer: Tokenizer) -> None:
    assert [len(text.ids) for text in tokenize(["the cat sat", "dog"], tokenizer, 3)] == [3, 3]


IDS, LENGTHS = np.array([[1, 2, 3], [4, 0, 0]]), np.array([3, 1])


def test_a_graph_is_fed_the_layers_asked_for_and_types_only_where_it_takes_them() -> None:
    inputs = graph_inputs(TINY, IDS, LENGTHS, layers=(0, 2))
    for name in (ATTENTION_LAYERS, NORM_LAYERS):
        assert inputs[name].tolist() == [True, False, True, False]
    assert not inputs[TOKEN_TYPE_IDS].any()
    assert TOKEN_TYPE_IDS not in graph_inputs(replace(TINY, type_vocab_size=0), IDS, LENGTHS)


def test_the_encoder_reads_the_same_arrays() -> None:
    encoder = draw_weights(Encoder(TINY)).use("eager")
    types = np.array([[0, 1, 1], [1, 0, 0]])
    found = run_encoder(encoder, graph_inputs(TINY, IDS, LENGTHS, layers=range(4), token_type_ids=types))
    expected = encoder(torch.tensor(IDS), torch.tensor(LENGTHS), token_type_ids=torch.tensor(types))
    assert torch.equal(found.pooled, expected.pooled)
    assert found.value_norms[0] is not None
    assert expected.value_norms[0] is None
