from hypothesis import given
from hypothesis import strategies as st

from service.batching.request_sizes import RequestSizes

SIZES = st.lists(st.integers(1, 300), max_size=30)


@given(before=SIZES, after=SIZES, limit=st.integers(1, 400))
def test_counts_at_most_so_many_tokens_of_each_request(before: list[int], after: list[int], limit: int) -> None:
    sizes = RequestSizes()
    for tokens in before:
        sizes.change(0, tokens)
    for tokens, now in zip(before, after, strict=False):
        sizes.change(tokens, now)
    left = [*after[: len(before)], *before[len(after) :]]
    exact = sum(min(tokens, limit) for tokens in left)
    assert exact <= sizes.tokens_up_to(limit) <= 1.21 * exact


@given(sizes=SIZES, power=st.integers(0, 10))
def test_is_exact_at_powers_of_two(sizes: list[int], power: int) -> None:
    counted = RequestSizes()
    for tokens in sizes:
        counted.change(0, tokens)
    assert counted.tokens_up_to(2**power) == sum(min(tokens, 2**power) for tokens in sizes)
