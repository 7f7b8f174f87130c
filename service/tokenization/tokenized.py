"""What a tokenizer makes of one input: its token ids, and where its tokens stand in the text."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding

from service.inference.backend import Int64Array

Offset = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KeptEncoding:
    """What is read of the `Encoding` of a text that was cut; the library's own holds on to all that was cut off.

    Attributes:
        tokens: their texts.
        offsets: as `TokenizedInput.offsets`.
        word_ids: the word each token belongs to; None for special tokens.
        special_tokens_mask: 1 for special tokens.
    """

    tokens: list[str]
    offsets: list[Offset]
    word_ids: list[int | None]
    special_tokens_mask: list[int]


@dataclass(frozen=True, slots=True)
class TokenizedInput:
    """One input as the model sees it.

    Attributes:
        input_ids: [n], special tokens included.
        truncated: whether the text was longer than the model takes and its end was cut off.
        full_length: tokens before it was cut.
        encoding: the library's own result, or what is kept of it, for tokens and offsets; None for an input given as
            token ids, and where nothing but ids was asked for.
        text: what was tokenised; None for an input given as token ids. A pair's two texts stand one behind the other,
            the second from `second_start` on.
        type_ids: [n], token types; None where all are 0.
        second_start: of a pair, where the second text begins in `text`.
        segments: [n], the text of a pair that each token is of, 0 or 1, None for special tokens; None for one text.
        windows: of a text that is read in windows, each as the model sees it; `input_ids` is then all of them.
    """

    input_ids: Int64Array
    truncated: bool
    full_length: int
    encoding: Encoding | KeptEncoding | None
    text: str | None = None
    type_ids: Int64Array | None = None
    segments: Sequence[int | None] | None = None
    second_start: int = 0
    windows: tuple["TokenizedInput", ...] = ()

    @property
    def offsets(self) -> Sequence[Offset] | None:
        """Where each token stands in its own text, [start, end) in characters; (0, 0) for special tokens.

        None for an input given as token ids, which has no text, and where nothing but ids was asked for.
        """
        return None if self.encoding is None else self.encoding.offsets


def text_offsets(item: TokenizedInput) -> list[Offset]:
    """Where each token stands in `item.text`: as `offsets`, but for the second text of a pair."""
    offsets = list(item.offsets or ())
    if item.segments is None:
        return offsets
    shifts = [item.second_start if segment == 1 else 0 for segment in item.segments]
    return [(start + shift, end + shift) for (start, end), shift in zip(offsets, shifts, strict=True)]
