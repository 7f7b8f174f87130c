"""How many values a body of JSON may hold: a parser's work grows with them, and it holds the event loop meanwhile.

Two megabytes of text are parsed in two milliseconds, two megabytes of `[1],[1],...` in 300. It knows no fields.
"""

import asyncio
import re

from service.errors import TooLarge

CHECKED_BYTES = 16_384  # a smaller body cannot hold enough values to matter
SPARE = 4096  # values that a request may have besides its inputs: names, options, head masks
STRINGS_AT_ONCE = 256  # of which the event loop is free again, about a quarter of a millisecond

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


async def check_structure(raw: bytes, *, max_texts: int, max_tokens: int) -> None:
    """Refuses a body with more values than the largest request has, before it is parsed.

    Args:
        raw: the body.
        max_texts: inputs that a request may have; each may be a list.
        max_tokens: token ids that a request may have.

    Raises:
        TooLarge: more values, lists and objects, or names than that.
    """
    if len(raw) <= CHECKED_BYTES:
        return
    limits = (max_texts + max_tokens + SPARE, max_texts + SPARE, SPARE)
    if _exceeded(_count(raw), limits) is None:  # what stands inside texts counts here, and is few in most
        return
    values, lists, names = 0, 0, 0
    end = 0
    for index, string in enumerate(_STRING.finditer(raw)):
        found = _count(raw[end : string.start()])
        values, lists, names = values + found[0], lists + found[1], names + found[2]
        end = string.end()
        if index % STRINGS_AT_ONCE == 0:
            _refuse((values, lists, names), limits)
            await asyncio.sleep(0)
    found = _count(raw[end:])
    _refuse((values + found[0], lists + found[1], names + found[2]), limits)


def _count(part: bytes) -> tuple[int, int, int]:
    """Values, lists and objects, and names, about."""
    return part.count(b","), part.count(b"[") + part.count(b"{"), part.count(b":")


def _exceeded(counts: tuple[int, int, int], limits: tuple[int, int, int]) -> str | None:
    """What there is too much of, and how much of it is taken; None where all is within its limit."""
    for count, limit, what in zip(counts, limits, ("values", "lists and objects", "names"), strict=True):
        if count > limit:
            return f"more than {limit} {what}"
    return None


def _refuse(counts: tuple[int, int, int], limits: tuple[int, int, int]) -> None:
    if (what := _exceeded(counts, limits)) is not None:
        raise TooLarge(f"the body holds {what}; send fewer inputs a request")
