"""Closed forms: what heads with known weights become."""

from typing import Any

import numpy as np
import pytest

from service.answers.maps import make_maps
from service.requests.attention_schemas import AttentionRequest
from service.requests.axes import plan_axes
from service.requests.selection import select_attention
from service.tokenization.tokenizer import Tokenizer
from tests.service.fake_engine import MAX_LENGTH, make_tokenizer

TOKENIZER = Tokenizer(make_tokenizer(), MAX_LENGTH, threads=1)
N = 6  # [CLS] the cat ##s sat [SEP]
LAYERS = 3
UNIFORM = {layer: np.full((2, N, N), 1 / N, np.float32) for layer in range(LAYERS)}
IDENTITY = {layer: np.stack([np.eye(N, dtype=np.float32)] * 2) for layer in range(LAYERS)}
PREVIOUS_AND_NEXT = {
    layer: np.stack([np.roll(np.eye(N, dtype=np.float32), step, axis=1) for step in (-1, 1)]) for layer in range(LAYERS)
}


def maps_of(attentions: Any, **options: Any) -> dict[str, list[Any]]:
    request = AttentionRequest(**options)
    (axes,) = plan_axes(request, TOKENIZER.encode_now(["the cats sat"]), TOKENIZER)
    return make_maps(attentions, select_attention(request, [2] * LAYERS), axes)


def weights_of(attentions: Any, **options: Any) -> Any:
    (weights,) = maps_of(attentions, **options)["weights"]
    return weights


def test_rollout_of_uniform_heads_forgets_half_of_itself_a_layer() -> None:
    kept = 2.0**-LAYERS
    expected = kept * np.eye(N) + (1 - kept) / N
    np.testing.assert_allclose(weights_of(UNIFORM, reduce="rollout"), [expected], atol=1e-6)


def test_rollout_of_heads_that_look_at_themselves_is_the_identity() -> None:
    np.testing.assert_array_equal(weights_of(IDENTITY, reduce="rollout"), [np.eye(N)])


def test_mean_and_maximum_of_two_heads_that_look_apart() -> None:
    both = PREVIOUS_AND_NEXT[0].sum(axis=0)
    np.testing.assert_array_equal(weights_of(PREVIOUS_AND_NEXT, reduce="mean"), [both / 2])
    np.testing.assert_array_equal(weights_of(PREVIOUS_AND_NEXT, reduce="max"), [both])


def test_a_uniform_head_looks_at_words_by_their_pieces() -> None:
    expected = np.broadcast_to(np.array([1, 1, 2, 1, 1]) / N, (2, 5, 5))
    np.testing.assert_allclose(weights_of(UNIFORM, level="word"), expected, atol=1e-7)


@pytest.mark.parametrize(("renormalise", "mass"), [(False, (N - 2) / N), (True, 1)])
def test_mass_without_special_tokens(renormalise: bool, mass: float) -> None:
    found = weights_of(UNIFORM, exclude_special=True, renormalise=renormalise)
    np.testing.assert_allclose(found, np.full((2, N - 2, N - 2), mass / (N - 2)), atol=1e-7)


def test_information_passes_through_special_tokens_before_they_are_left_out() -> None:
    """Heads look one token back around the end, so what reaches token 1 from token 4 came through both special ones."""
    attentions = {layer: PREVIOUS_AND_NEXT[layer][[0, 0]] for layer in range(LAYERS)}
    rolled = weights_of(attentions, reduce="rollout", exclude_special=True)
    step = (np.roll(np.eye(N), -1, axis=1) + np.eye(N)) / 2
    np.testing.assert_allclose(rolled, [np.linalg.matrix_power(step, LAYERS)[1:-1, 1:-1]], atol=1e-7)
    assert rolled[0, 0, 3] == pytest.approx(2.0**-LAYERS)


def test_what_top_k_of_a_uniform_head_leaves_out() -> None:
    maps = maps_of(UNIFORM, top_k=2)
    np.testing.assert_array_equal(maps["indices"][0], np.broadcast_to([0, 1], (2, N, 2)))
    np.testing.assert_allclose(maps["left_out"][0], np.full((2, N), (N - 2) / N), atol=1e-7)
