import torch

from model.config import Pooling
from model.pooling import POOLINGS

HIDDEN = torch.tensor([[[1.0, -5.0], [3.0, -1.0], [99.0, 99.0]], [[2.0, 4.0], [99.0, -99.0], [99.0, 99.0]]])
LENGTHS = torch.tensor([2, 1])


def pool(name: Pooling) -> list[list[float]]:
    pooled: list[list[float]] = POOLINGS[name](HIDDEN, LENGTHS).tolist()
    return pooled


def test_mean_of_the_real_tokens() -> None:
    assert pool("mean") == [[2.0, -3.0], [2.0, 4.0]]


def test_first_token() -> None:
    assert pool("cls") == [[1.0, -5.0], [2.0, 4.0]]


def test_largest_value_of_the_real_tokens() -> None:
    assert pool("max") == [[3.0, -1.0], [2.0, 4.0]]


def test_last_real_token() -> None:
    assert pool("last") == [[3.0, -1.0], [2.0, 4.0]]


def test_mean_of_no_token_is_zero() -> None:
    assert torch.equal(POOLINGS["mean"](HIDDEN, torch.tensor([0, 0])), torch.zeros(2, 2))


def test_the_mean_of_a_long_text_does_not_overflow_in_half_precision() -> None:
    hidden = torch.full((1, 8192, 2), 8.5, dtype=torch.float16)  # the sum is 69,632, float16 ends at 65,504
    assert POOLINGS["mean"](hidden, torch.tensor([8192])).tolist() == [[8.5, 8.5]]
