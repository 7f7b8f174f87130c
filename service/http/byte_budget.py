"""How many bytes of request bodies the process holds, all requests together.

Each body has its own limit; thousands of connections times that limit would be the machine's memory. The texts that
wait to be tokenised are bounded by the same figure: the queue's limit counts tokens, which they are not yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import Overloaded

RETRY_AFTER_SECONDS = 1.0


class BodyShare:
    """What one request holds."""

    __slots__ = ("_budget", "held")

    def __init__(self, budget: "BodyBudget") -> None:
        self._budget = budget
        self.held = 0

    def take(self, size: int) -> None:
        """Holds more.

        Raises:
            Overloaded: the budget is used up.
        """
        budget = self._budget
        if budget.held + size > budget.limit:
            raise Overloaded("too many request bodies are held; try again later", retry_after=RETRY_AFTER_SECONDS)
        budget.held += size
        self.held += size


class BodyBudget:
    """Shared by all requests of an app; used on the event loop only.

    Attributes:
        limit: bytes.
        held: bytes held now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """A request's share, given back when the request is over."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held -= share.held
