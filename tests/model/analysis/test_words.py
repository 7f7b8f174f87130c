from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from model.analysis.arrays import Float32Array
from model.analysis.words import find_words, to_words, word_offsets
from tests.model.analysis.maps import assert_rows_sum_to, draw_maps, uniform

WORD_IDS = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(
    lambda pieces: [None, *(word for word, count in enumerate(pieces) for _ in range(count)), None]
)


def test_pieces_of_a_word_are_joined_and_special_tokens_stand_alone() -> None:
    assert find_words([None, 0, 1, 1, 1, 2, None]) == [(0, 1), (1, 2), (2, 5), (5, 6), (6, 7)]


def test_special_tokens_side_by_side_are_two_words() -> None:
    assert find_words([None, None, 0, None, None]) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_the_second_text_of_a_pair_counts_again() -> None:
    assert find_words([None, 0, 0, None, 0, 1, None]) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7)]


def test_no_token_no_word() -> None:
    assert find_words([]) == []


def test_a_tokenizers_own_word_ids_and_offsets(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("The cats ran.")
    assert encoding.tokens == ["[CLS]", "the", "cat", "##s", "ran", ".", "[SEP]"]
    words = find_words(encoding.word_ids)
    texts = ["The cats ran."[start:end] for start, end in word_offsets(words, encoding.offsets)]
    assert texts == ["", "The", "cats", "ran", ".", ""]


def test_sums_keys_and_takes_the_mean_of_queries() -> None:
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.25, 0.25], [1, 0, 0, 0], [0.4, 0.3, 0.2, 0.1]], np.float32)
    expected = [[0.1, 0.5, 0.4], [0.5, 0.375, 0.125], [0.4, 0.5, 0.1]]
    np.testing.assert_allclose(to_words(weights, [(0, 1), (1, 3), (3, 4)]), expected, atol=1e-7)


def test_a_uniform_head_looks_at_words_by_their_pieces() -> None:
    found = to_words(uniform(6), [(0, 1), (1, 4), (4, 6)])
    np.testing.assert_allclose(found, [[1 / 6, 3 / 6, 2 / 6]] * 3, atol=1e-7)


def test_words_of_one_piece_change_nothing(generator: np.random.Generator) -> None:
    weights = draw_maps(generator, 2, 5, 5)
    np.testing.assert_array_equal(to_words(weights, find_words([None, 0, 1, 2, None])), weights)


@settings(deadline=None)
@given(WORD_IDS, st.integers(0, 2**32 - 1), st.sampled_from([1.0, 200.0]))
def test_against_loops_and_rows_sum_to_one(word_ids: list[int | None], seed: int, sharpness: float) -> None:
    tokens = len(word_ids)
    weights = draw_maps(np.random.default_rng(seed), 2, tokens, tokens, sharpness=sharpness)
    words = find_words(word_ids)
    found = to_words(weights, words)
    assert found.shape == (2, len(words), len(words))
    assert_rows_sum_to(found, 1)
    for head, row, column in np.ndindex(found.shape):
        pieces = [range(*words[row]), range(*words[column])]
        mass = sum(float(weights[head, query, key]) for query in pieces[0] for key in pieces[1])
        assert found[head, row, column] == pytest.approx(mass / len(pieces[0]), abs=1e-6)


@settings(deadline=None)
@given(WORD_IDS, st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_reordering_words_reorders_both_axes(word_ids: list[int | None], seed: int, shuffler: Random) -> None:
    weights = draw_maps(np.random.default_rng(seed), 2, len(word_ids), len(word_ids))
    words = find_words(word_ids)
    order = list(range(len(words)))
    shuffler.shuffle(order)
    tokens = [token for word in order for token in range(*words[word])]
    lengths = [words[word][1] - words[word][0] for word in order]
    ends = np.cumsum(lengths).tolist()
    moved = to_words(weights[:, tokens][:, :, tokens], list(zip([0, *ends], ends, strict=False)))
    np.testing.assert_allclose(moved, to_words(weights, words)[:, order][:, :, order], atol=1e-6)


def test_rows_of_the_first_word_alone(generator: np.random.Generator) -> None:
    weights: Float32Array = draw_maps(generator, 3, 2, 5, 5)
    words = [(0, 2), (2, 3), (3, 5)]
    found = to_words(weights[:, :, :2], words, words[:1])
    np.testing.assert_array_equal(found, to_words(weights, words)[:, :, :1])


@pytest.mark.parametrize("words", [[(0, 2), (2, 3)], [(0, 2), (3, 4)], [(1, 4)], [], [(0, 2), (2, 2), (2, 4)]])
def test_refuses_words_that_do_not_cover_the_tokens(words: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="tokens one after the other, expected all 4 keys"):
        to_words(uniform(4), words)


def test_refuses_queries_that_are_not_the_rows() -> None:
    with pytest.raises(ValueError, match="the words cover 4 tokens one after the other, expected all 1 queries"):
        to_words(uniform(4)[:1], [(0, 1), (1, 4)])
