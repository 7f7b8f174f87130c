"""What a tokenizer needs before its first text: its file read and tried, its threads started."""

from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

MAX_FILE_BYTES = 256 << 20  # the largest vocabularies in use take about 35 MB


def read_tokenizer(path: Path) -> FastTokenizer:
    """A tokenizer that has tokenised something: some faults of a file show only then.

    Raises:
        ValueError: the file is no tokenizer, or too large.
    """
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise ValueError(f"{path} has {size} bytes, at most {MAX_FILE_BYTES} are read")
    try:
        tokenizer = FastTokenizer.from_file(str(path))
        tokenizer.num_special_tokens_to_add(is_pair=False)
        tokenizer.encode("a")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics that are not even those
        raise ValueError(f"{path} is no tokenizer: {error}") from error
    return tokenizer


def special_ends(tokenizer: FastTokenizer) -> tuple[int | None, int | None]:
    """Ids of the special tokens that begin and end every input; None where there is none."""
    encoding = tokenizer.encode("a")
    ends = [
        token_id if special else None
        for token_id, special in zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    ]
    return (ends[0], ends[-1]) if ends else (None, None)
