"""Turns a checkpoint's tokenizer.json into the artifact's: no truncation, no padding, lowering made explicit.

A stored tokenizer carries the truncation and padding of whoever saved it last (128 tokens in all-MiniLM-L6-v2, whose
limit is 256); the service does both itself.
"""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence

from export.errors import SourceError
from export.vocabulary import build_tokenizer


def read_tokenizer(folder: Path, *, do_lower_case: bool = False) -> Tokenizer:
    """Reads and cleans a tokenizer.

    Args:
        folder: where tokenizer.json stands, or the files that came before it.
        do_lower_case: put a lowering in front of the normaliser (idempotent where it lowers already).

    Raises:
        SourceError: no tokenizer.json, or not one, and nothing that can be turned into one exactly.
    """
    path = folder / "tokenizer.json"
    tokenizer = _load(path) if path.is_file() else build_tokenizer(folder)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if do_lower_case:
        rest = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = NormalizerSequence([Lowercase(), *rest])
    return tokenizer


def _load(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise SourceError(f"{path} is not a tokenizer: {error}") from error
