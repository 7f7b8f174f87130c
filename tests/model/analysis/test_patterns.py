import numpy as np
import pytest

from model.analysis.patterns import offset_rate, rare_token, sink, variability


def one_hot(targets: list[int], size: int) -> np.ndarray:
    return np.eye(size, dtype=np.float32)[targets][np.newaxis]


def test_sink_is_what_the_first_token_takes() -> None:
    assert sink(one_hot([0, 0, 2, 1], 4)).tolist() == [0.5]
    assert sink(np.full((2, 5, 5), 0.2, np.float32)).tolist() == pytest.approx([0.2, 0.2])


def test_offset_rate_counts_rows_that_have_such_a_key() -> None:
    weights = one_hot([2, 0, 1, 0], 4)
    rate = offset_rate(weights, -1)
    assert rate is not None
    assert rate.tolist() == pytest.approx([2 / 3])  # rows 1 and 2 of 1, 2, 3
    assert offset_rate(weights, -4) is None


def test_rare_token_wants_one_rarest_among_enough() -> None:
    counts = np.array([100, 9, 1, 9, 9, 9, 100])
    special = np.array([True, *[False] * 5, True])
    rate = rare_token(one_hot([2, 2, 3, 2, 2, 6, 2], 7), counts, special)
    assert rate is not None
    assert rate.tolist() == pytest.approx(
        [3 / 5]
    )  # the last query's largest is special: of the ordinary none is larger
    assert rare_token(one_hot([0] * 7, 7), np.array([100, 1, 1, 9, 9, 9, 100]), special) is None
    assert rare_token(one_hot([0] * 4, 4), np.array([5, 1, 2, 3]), np.zeros(4, bool)) is None


def test_variability_is_0_for_a_head_blind_to_content_and_near_1_for_one_that_never_repeats() -> None:
    size = 64
    blind = np.broadcast_to(np.full((4, 4), 0.25, np.float32), (size, 1, 4, 4))
    assert variability(blind).tolist() == [[0.0]] * size
    apart = np.zeros((size, 1, 1, size), np.float32)
    apart[np.arange(size), 0, 0, np.arange(size)] = 1  # each text looks at a place of its own
    expected = 1 - 1 / size  # (1 - 1/X + (X - 1)/X) / 2
    np.testing.assert_allclose(variability(apart), expected, rtol=1e-6)
