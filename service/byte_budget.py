"""How many bytes the process holds for all requests together: of their bodies, and of their answers.

Each body and each answer has its own limit; thousands of connections times that limit would be the machine's memory.
The texts that wait to be tokenised are bounded by the bodies' figure: the queue's limit counts tokens, which they are
not yet. What waits to be read by slow clients is bounded by the answers'.
"""

from typing import Self

from service.errors import HeldTooMuch

RETRY_AFTER_SECONDS = 1.0


class Share:
    """What one request holds, until it is given back or left as a context."""

    __slots__ = ("_budget", "held")

    def __init__(self, budget: "ByteBudget") -> None:
        self._budget = budget
        self.held = 0

    def take(self, size: int) -> None:
        """Holds more; where nothing else is held, whatever it is: its own limits have let it through.

        Raises:
            HeldTooMuch: the budget is used up.
        """
        budget = self._budget
        if budget.held and budget.held + size > budget.limit:
            raise HeldTooMuch(f"too many {budget.what} are held; try again later", retry_after=RETRY_AFTER_SECONDS)
        budget.held += size
        self.held += size

    def give_back(self) -> None:
        """Holds nothing any more."""
        self._budget.held -= self.held
        self.held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


class ByteBudget:
    """Shared by all requests of an app; used on the event loop only.

    Attributes:
        limit: bytes.
        what: is held, in the plural, for messages.
        held: bytes held now.
    """

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self.what = what
        self.held = 0

    def share(self) -> Share:
        """A request's share, with nothing in it."""
        return Share(self)
