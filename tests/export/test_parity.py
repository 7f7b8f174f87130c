from typing import Any

import numpy as np
import pytest

from export.errors import ParityError
from export.grid import grid, one_of_a_kind
from export.parity import Parity, Tolerance
from tests.networks import vary

EXACT = np.zeros((2, 3))
OFF = np.full((2, 3), 2e-5, np.float32)


def test_a_difference_above_the_tolerance_is_refused() -> None:
    message = "pooled differs from the PyTorch encoder by 2.00e-05 at most and 2.00e-05 on average, relative to 1"
    with pytest.raises(ParityError, match=message):
        Parity().record("pooled", OFF, EXACT, Tolerance(1e-5, 1e-3))


def test_as_many_times_pytorchs_own_rounding_is_allowed() -> None:
    parity, tolerance = Parity(), Tolerance(1e-5, 1e-3, rounding=2.0)
    parity.record("gated.attentions.0", OFF, EXACT, tolerance, rounded=OFF * 0.3)
    with pytest.raises(ParityError, match="allowed are 1e-05, or 2 times PyTorch's own rounding of 6.00e-06"):
        parity.judge(tolerance)
    parity.record("attentions.1", OFF * 0.1, EXACT, tolerance, rounded=OFF * 0.55)  # the same output, elsewhere
    parity.judge(tolerance)
    found = parity.to_dict(tolerance)
    assert (found["gated"], found["attentions"]) == (pytest.approx(2e-5), pytest.approx(2e-6))
    assert found["rounding"] == {"attentions": pytest.approx(1.1e-5)}
    parity.record("pooled", OFF, EXACT, tolerance, rounded=OFF * 0.3)  # another output's rounding does not count
    with pytest.raises(ParityError, match="pooled differs from the PyTorch encoder by 2.00e-05 at most"):
        parity.judge(tolerance)


def test_a_difference_far_above_the_tolerance_ends_the_verification_at_once() -> None:
    with pytest.raises(ParityError, match="pooled differs from the PyTorch encoder by 2.00e-04"):
        Parity().record("pooled", OFF * 10, EXACT, Tolerance(1e-5, 1.0, rounding=2.0), rounded=OFF * 10)


def test_rounding_does_not_excuse_a_wrong_mean() -> None:
    with pytest.raises(ParityError, match="2.00e-05 on average"):
        Parity().record("pooled", OFF, EXACT, Tolerance(1e-5, 1e-5, rounding=2.0), rounded=OFF)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_is_refused(value: float) -> None:
    for expected, rounded in ((EXACT + value, None), (EXACT, OFF + np.float32(value))):
        with pytest.raises(ParityError, match="the PyTorch encoder's pooled holds values that are not finite"):
            Parity().record("pooled", OFF * 0, expected, Tolerance(1e-5, 1e-5, rounding=2.0), rounded)


def test_a_difference_that_is_no_number_is_refused() -> None:
    with pytest.raises(ParityError, match="pooled differs from the PyTorch encoder by nan"):
        Parity(differences={"pooled": np.nan}).judge(Tolerance(1e-5, 1e-5))


def test_differences_are_relative_to_large_references_only() -> None:
    parity = Parity()
    parity.record("last_hidden_state", np.array([1000.01], np.float32), np.array([1000.0]), Tolerance(2e-5, 2e-5))
    assert parity.differences["last_hidden_state"] == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.parametrize(
    ("longest", "of_all", "of_some", "of_none"),
    [(40, 40, [], []), (512, 512, [], []), (514, 512, [514], []), (1024, 512, [1024], []), (1025, 512, [1024], [1025])],
)
def test_every_length_is_compared_and_long_ones_with_fewer_weights(
    longest: int, of_all: int, of_some: list[int], of_none: list[int]
) -> None:
    cases = list(grid(vary(max_positions=longest)))
    assert max(case.sequence for case in cases if case.layers == (0, 1)) == of_all
    assert [case.sequence for case in cases if case.layers == (1,)] == of_some
    assert [case.sequence for case in cases if not case.layers] == of_none


def test_a_long_network_is_compared_up_to_a_length_that_fits_memory() -> None:
    cases = list(grid(vary(max_positions=8192)))
    assert max(case.sequence for case in cases) == 2048
    assert max(len(case.lengths) * case.sequence for case in cases if case.layers) <= 1024


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"num_heads": (4, 4, 4)}, (2,)),
        ({"num_heads": (4, 4, 0)}, (1,)),
        ({"num_heads": (0, 0)}, ()),
        ({"num_heads": (4,) * 5, "local_layers": (1, 2, 4), "window": 3}, (3, 4)),
        ({"num_heads": (4, 4, 0), "local_layers": (1, 2), "window": 3}, (0, 1)),
    ],
)
def test_one_layer_of_a_kind_is_compared_where_not_all_are(change: dict[str, Any], layers: tuple[int, ...]) -> None:
    assert one_of_a_kind(vary(**change)) == layers
