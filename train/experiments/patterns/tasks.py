"""The made-up tasks: examples with their answers, and each place as a word, so that an example reads as a text."""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations, permutations, product
from typing import NamedTuple

import torch
from torch import Tensor

PLACES = 8  # that an answer is found at; one more holds the question
KEYS, VALUES = 16, 8
CHOSEN = 3  # places whose values are counted
OFFSETS = (1, 4)
MAJORITY = 3 / 8  # of the counts 0 to 3 of ones among three places

Examples = tuple[Tensor, Tensor]
"""Token ids [N, S, F], of which a place adds F embeddings (0 is none), and answers [N, A]."""

Words = Mapping[str, tuple[int, ...]]
"""The token ids of a place, ascending, by the word that a text has for it."""


class Task(NamedTuple):
    """What is asked."""

    needs: int  # patterns that the answering place needs at once
    key_size: int  # the smallest d_k of a head that has one
    answers: int  # A, read from the last place side by side
    labels: tuple[str, ...]  # a name for each of the C classes of an answer
    make: Callable[[int, torch.Generator], Examples]  # examples, as many as asked for
    words: Callable[[], Words]  # every place that examples have
    guessed: float  # share of the answers that are right without a pattern


VALUE_NAMES = tuple(f"v{value}" for value in range(VALUES))


def recall(asked: int) -> Task:
    """Places hold a key and a value; the last one asks for the values of several keys, each in its own place."""

    def make(count: int, generator: torch.Generator) -> Examples:
        keys = torch.rand(count, KEYS, generator=generator).argsort(dim=1)[:, :PLACES]
        values = torch.randint(VALUES, (count, PLACES), generator=generator)
        chosen = torch.rand(count, PLACES, generator=generator).argsort(dim=1)[:, :asked]
        ids = torch.zeros(count, PLACES + 1, max(2, asked), dtype=torch.int64)
        ids[:, :PLACES, 0], ids[:, :PLACES, 1] = 1 + keys, 1 + KEYS + values
        slots = torch.arange(asked) * KEYS
        ids[:, PLACES, :asked] = 1 + KEYS + VALUES + slots + keys.gather(1, chosen)
        return ids, values.gather(1, chosen)

    @cache
    def words() -> Words:
        pairs = {f"k{key}=v{value}": (1 + key, 1 + KEYS + value) for key, value in product(range(KEYS), range(VALUES))}
        first = 1 + KEYS + VALUES
        questions = {
            ",".join(f"k{key}" for key in keys) + "?": tuple(first + slot * KEYS + key for slot, key in enumerate(keys))
            for keys in permutations(range(KEYS), asked)
        }
        return pairs | questions

    return Task(asked, 2, asked, VALUE_NAMES, make, words, 1 / VALUES)


def copy_offsets(count: int, generator: torch.Generator) -> Examples:
    """The last place repeats the tokens at two distances before it."""
    values = torch.randint(VALUES, (count, PLACES), generator=generator)
    ids = torch.zeros(count, PLACES + 1, 1, dtype=torch.int64)
    ids[:, :PLACES, 0] = 1 + values
    return ids, torch.stack([values[:, PLACES - offset] for offset in OFFSETS], dim=1)


def count_chosen(count: int, generator: torch.Generator) -> Examples:
    """The last place names three places; the answer is how many of them hold a one."""
    bits = torch.randint(2, (count, PLACES), generator=generator)
    chosen = torch.rand(count, PLACES, generator=generator).argsort(dim=1)[:, :CHOSEN]
    ids = torch.zeros(count, PLACES + 1, CHOSEN, dtype=torch.int64)
    ids[:, :PLACES, 0] = 1 + bits
    ids[:, PLACES] = 3 + chosen
    return ids, bits.gather(1, chosen).sum(dim=1, keepdim=True)


def agree(count: int, generator: torch.Generator) -> Examples:
    """The number of the subject, somewhere before; a distractor has a number too, others have none."""
    two = torch.rand(count, PLACES, generator=generator).argsort(dim=1)[:, :2]
    numbers = torch.randint(2, (count, 2), generator=generator)
    ids = torch.zeros(count, PLACES + 1, 1, dtype=torch.int64)
    ids[:, :PLACES, 0] = 5 + torch.randint(VALUES, (count, PLACES), generator=generator)
    ids[:, :, 0].scatter_(1, two, 1 + torch.tensor([0, 2]) + numbers)
    return ids, numbers[:, :1]


def repeat_own(count: int, generator: torch.Generator) -> Examples:
    """The last place's own token: no other place is needed."""
    ids = 1 + torch.randint(VALUES, (count, PLACES + 1, 1), generator=generator)
    return ids, ids[:, PLACES] - 1


def value_words() -> Words:
    """A value in each place."""
    return {name: (1 + value,) for value, name in enumerate(VALUE_NAMES)}


def counted_words() -> Words:
    """Zeros and ones, and questions for three places, the first of which is 0."""
    questions = combinations(range(PLACES), CHOSEN)
    asked = {",".join(map(str, places)) + "?": tuple(3 + place for place in places) for places in questions}
    return {"0": (1,), "1": (2,), **asked}


def agreement_words() -> Words:
    """The subject and the distractor in two numbers, words without one, and the question, a place without a token."""
    named = ("subject", "subjects", "other", "others", *(f"w{word}" for word in range(VALUES)))
    return {"?": (), **{name: (1 + token,) for token, name in enumerate(named)}}


TASKS: Mapping[str, Task] = {
    "own token": Task(0, 0, 1, VALUE_NAMES, repeat_own, value_words, 1.0),
    "agreement": Task(1, 1, 1, ("one", "many"), agree, agreement_words, 1 / 2),
    "one key": recall(1),
    "count of three": Task(1, 2 * CHOSEN, 1, tuple(map(str, range(CHOSEN + 1))), count_chosen, counted_words, MAJORITY),
    "two offsets": Task(2, 1, len(OFFSETS), VALUE_NAMES, copy_offsets, lambda: {"?": (), **value_words()}, 1 / VALUES),
    "four keys": recall(4),
}


def vocabulary(task: Task) -> dict[str, int]:
    """Ids of words in a network that reads one token a place; 0 is left for what is no word."""
    return {word: index for index, word in enumerate(task.words(), start=1)}


def texts_of(task: Task, ids: Tensor) -> list[str]:
    """Examples' token ids [N, S, F] as texts, a word a place."""
    words = {tokens: word for word, tokens in task.words().items()}
    places = [[tuple(sorted(token for token in place if token)) for place in text] for text in ids.tolist()]
    return [" ".join(words[place] for place in text) for text in places]
