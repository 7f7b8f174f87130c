"""A text of any length in windows that the model takes, each with the tokenizer's special tokens."""

from collections.abc import Sequence

import numpy as np

from service.tokenization.rows import PlainTokens, RowTemplate
from service.tokenization.tokenized import TokenizedInput


def in_windows(text: PlainTokens, template: RowTemplate, max_sequence_length: int) -> TokenizedInput:
    """A text as windows of the greatest length, the last one shorter; its `input_ids` are those of all of them."""
    room = max_sequence_length - template.num_added
    starts = range(0, max(1, len(text.ids)), room)
    windows = tuple(template.join([PlainTokens(text.ids[start : start + room])], [slice(None)]) for start in starts)
    input_ids = np.concatenate([window.input_ids for window in windows])
    return TokenizedInput(input_ids, False, len(input_ids), None, windows=windows)


def all_windows(tokenized: Sequence[TokenizedInput]) -> list[TokenizedInput]:
    """The windows of all texts, one after the other."""
    return [window for item in tokenized for window in item.windows]
