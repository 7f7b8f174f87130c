"""What a model reads around the two texts of a pair, in words, as language models that judge pairs do.

Standard library only.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PairWording:
    """Words in front of and behind each text of a pair, tokenised together with it.

    Tokens of the wording may reach into a text: a byte-level tokenizer reads a question mark and the line's end behind
    it as one token. So these words are no special tokens of the tokenizer's template.

    Attributes:
        before: in front of the first text, and of the second.
        after: behind each.
    """

    before: tuple[str, str]
    after: tuple[str, str]

    def wrap(self, texts: Sequence[str]) -> tuple[str, str]:
        """The texts of a pair with their words around them."""
        first, second = texts
        return self.before[0] + first + self.after[0], self.before[1] + second + self.after[1]

    def spans(self, texts: Sequence[str]) -> list[tuple[int, int]]:
        """Where each text of a pair stands in what `wrap` makes of it, [start, end) in characters."""
        return [(len(before), len(before) + len(text)) for before, text in zip(self.before, texts, strict=True)]
