"""How many waiting requests have how many tokens, counted by powers of two."""

_CLASSES = 64  # one for every number of bits that a request's tokens may have


class RequestSizes:
    """Answers in constant time what a sum over all waiting requests would answer. One thread at a time."""

    def __init__(self) -> None:
        self._requests = [0] * _CLASSES  # by bits of their tokens; the first class, of requests without any, has no use
        self._tokens = [0] * _CLASSES

    def change(self, before: int, after: int) -> None:
        """Notes that a request which had `before` tokens in the queue now has `after`; 0 is a request not there."""
        old, new = before.bit_length(), after.bit_length()
        self._requests[old] -= 1
        self._tokens[old] -= before
        self._requests[new] += 1
        self._tokens[new] += after

    def tokens_up_to(self, limit: int) -> int:
        """The tokens of all requests, with at most `limit` counted of each.

        Exact where `limit` is a power of two. Else the requests of as many bits as `limit` are taken together, so the
        sum may come out too high, by 21 % at most.
        """
        bits = limit.bit_length()
        smaller, larger = sum(self._tokens[:bits]), sum(self._requests[bits + 1 :])
        return smaller + min(self._tokens[bits], limit * self._requests[bits]) + limit * larger
