import torch
from hypothesis import given
from hypothesis import strategies as st

from export.int8.layers import QuantizedFeedForward, QuantizedLinear, quantize, quantize_rows


def test_a_product_of_integers_is_exact() -> None:
    weight = torch.tensor([[127.0, -127.0, 1.0], [0.0, 127.0, -64.0]]) * 0.5
    linear = QuantizedLinear(weight, torch.tensor([10.0, -1.0]), zero_point=3)
    x = torch.tensor([[3, 4, 5], [255, 0, 3]], dtype=torch.uint8)
    expected = (x.float() - 3) @ weight.T + torch.tensor([10.0, -1.0])
    torch.testing.assert_close(linear(x), expected, atol=1e-3, rtol=0)


def test_each_column_has_its_own_scale_and_zeros_stay_zero() -> None:
    weight = torch.tensor([[1e-6, -1e-6], [1000.0, 500.0], [0.0, 0.0]])
    linear = QuantizedLinear(weight, None)
    torch.testing.assert_close(linear.dequantized().float(), weight, atol=0, rtol=0.015)
    assert linear(torch.ones(1, 2, dtype=torch.uint8))[0, 2] == 0


@given(st.integers(1, 9), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.9, 1.0]))
def test_no_input_saturates_a_sum_of_two_products_in_16_bits(inputs: int, seed: int, alike: float) -> None:
    weight = torch.randn(20, inputs, generator=torch.Generator().manual_seed(seed))
    weight = (1 - alike) * weight + alike * weight[:, :1].abs()  # neighbours of like size and sign
    rounded = QuantizedLinear(weight, None).weight.int()  # [K, N]
    assert rounded.abs().max() <= 127
    pairs = torch.nn.functional.pad(rounded, (0, 0, 0, inputs % 2)).reshape(-1, 2, 20)
    largest, smallest = pairs.clamp(min=0).sum(dim=1), pairs.clamp(max=0).sum(dim=1)
    assert 255 * int(largest.max()) < 2**15
    assert 255 * int(smallest.min()) >= -(2**15)
    full = torch.maximum(rounded.abs().amax(dim=0), torch.maximum(largest, -smallest).amax(dim=0))
    assert full.min() >= 126  # the steps are no larger than that takes


def test_rounds_half_to_even_and_saturates() -> None:
    assert quantize(torch.tensor([-3.0, 0.5, 1.5, 254.6, 300.0])).tolist() == [0, 0, 2, 255, 255]


@given(st.lists(st.floats(-0.125, 50, width=32), min_size=4, max_size=4), st.floats(0.05, 3.0))
def test_rows_are_rounded_in_their_own_step(row: list[float], step: float) -> None:
    x = torch.tensor([row, [value / 2 for value in row]])
    found = quantize_rows(x, torch.tensor([step, step / 2]), torch.tensor(20, dtype=torch.uint8))
    assert torch.equal(found[0], found[1])
    inside = (x[0] / step).abs() < 200
    error = (found[0].float() - 20) * step - x[0]
    assert (error[inside].abs() <= step * 0.5001).all()


def test_the_feed_forward_is_close_to_its_float_form() -> None:
    torch.manual_seed(0)
    up, weight = QuantizedLinear(torch.randn(32, 16) * 0.01, torch.randn(32)), torch.randn(16, 32)
    made = QuantizedFeedForward(up, QuantizedLinear(weight, None, zero_point=20), torch.zeros(16), "gelu", 0.17)
    x = torch.randint(0, 256, (64, 16)).float()
    expected = torch.nn.functional.gelu(made.up(quantize(x))) @ weight.T
    assert torch.nn.functional.cosine_similarity(made(x), expected).min() > 0.999
