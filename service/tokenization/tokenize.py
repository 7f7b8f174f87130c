"""From a request's inputs to rows of token ids: texts, token ids, and pairs of either."""

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

from service.tokenization.inputs import (
    INPUTS,
    InputNames,
    Inputs,
    as_tokenized,
    check_ids,
    refuse_surrogates,
    refuse_truncated,
)
from service.tokenization.rows import PairTruncation
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

Truncate = bool | Literal["start"]
"""What happens to a text that is too long: true cuts its end off, `"start"` its start, false refuses it."""


class TokenizeOptions(TypedDict, total=False):
    """How a request wants its inputs read.

    Attributes:
        truncate: what happens to texts that are too long (default: their end is cut off); token ids by themselves are
            never cut.
        pair_truncation: which text of a pair is cut (default: the longer one).
        names: what the caller calls the inputs, for errors.
        ids_only: whether tokens and offsets can be left out.
        deadline: `time.monotonic()` value after which the answer is worth nothing.
        most_tokens: of each text of a row, without special tokens; what is more is cut off (default: no limit).
        in_windows: whether texts are read in windows, and nothing is cut off (default: no).
    """

    truncate: Truncate
    pair_truncation: PairTruncation
    names: InputNames
    ids_only: bool
    deadline: float | None
    most_tokens: Sequence[int | None] | None
    in_windows: bool


async def tokenize(
    tokenizer: Tokenizer, inputs: Inputs, *, vocab_size: int, **options: Unpack[TokenizeOptions]
) -> list[TokenizedInput]:
    """Inputs as the model sees them.

    Args:
        tokenizer: the artifact's.
        inputs: what to tokenise.
        vocab_size: ids that the model has.
        **options: `TokenizeOptions`.

    Raises:
        ServiceError: Invalid or TooLarge for token ids that the model does not take, a text that is no Unicode, or a
            long one where cutting is not allowed; DeadlineExceeded.
    """
    names, truncate = options.get("names", INPUTS), options.get("truncate", True)
    longest, from_start = tokenizer.max_sequence_length, truncate == "start"
    if inputs.token_ids is not None:
        return as_tokenized(inputs.token_ids, names=names, vocab_size=vocab_size, max_length=longest)
    if inputs.id_pairs is not None:
        for index, pair in enumerate(inputs.id_pairs):
            for ids in pair:
                check_ids(ids, *names.of(index), vocab_size=vocab_size)
        truncation = options.get("pair_truncation", "longest_first")
        tokenized = tokenizer.join_ids(inputs.id_pairs, truncation, from_start=from_start)
    else:
        tokenized = await _tokenize_texts(tokenizer, inputs, names, options, from_start=from_start)
    if not truncate:
        refuse_truncated(tokenized, names=names, max_length=longest)
    return tokenized


async def _tokenize_texts(
    tokenizer: Tokenizer, inputs: Inputs, names: InputNames, options: TokenizeOptions, *, from_start: bool
) -> list[TokenizedInput]:
    rows: Sequence[Sequence[str]] = inputs.text_pairs or [(text,) for text in inputs.texts or ()]
    ids_only, deadline, most = options.get("ids_only", False), options.get("deadline"), options.get("most_tokens")
    try:
        if inputs.texts is not None and options.get("in_windows"):
            return await tokenizer.encode_windows(inputs.texts, deadline=deadline)
        if inputs.texts is not None and not from_start and most is None:
            return await tokenizer.encode(inputs.texts, ids_only=ids_only, deadline=deadline)
        truncation = options.get("pair_truncation", "longest_first")
        return await tokenizer.encode_rows(
            rows, truncation=truncation, from_start=from_start, most=most, ids_only=ids_only, deadline=deadline
        )
    except TypeError:  # what the library says of half a surrogate pair, which no JSON brings here
        for index, row in enumerate(rows):
            refuse_surrogates(row, *names.of(index))
        raise
