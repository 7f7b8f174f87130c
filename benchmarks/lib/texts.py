"""Real text with its natural lengths, made from the Python standard library's own documentation.

Nothing is downloaded and nothing is shipped: docstrings are read from the library's source, the language topics from
`pydoc_data`. The texts of one Python version are always the same; `fingerprint` tells two versions apart. It
does not know tokens.
"""

import ast
import hashlib
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from model.artifact import TOKENIZER, Artifact
from service.inference.backend import Batch

Corpus = Literal["short", "mixed"]

# Parts of the library that are third-party, vendored or no documentation.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
SHORTEST_WORDS = 6  # below this a paragraph is a heading or a list item
LONGEST_WORDS = 300  # a few hundred tokens: past what most encoders read
PROSE_SHARE = 0.85  # letters and spaces; below this a paragraph is code or a table


def load_texts(corpus: Corpus, count: int, seed: int = 0) -> list[str]:
    """A random sample of a corpus, the same for the same arguments and Python version.

    Args:
        corpus: `short` is single paragraphs (about 33 MiniLM tokens on average), `mixed` whole entries (a function's
            or a topic's documentation, most of them short, some of several hundred tokens).
        count: texts wanted; past the corpus' size the sample starts over.
        seed: of the sample.
    """
    texts = list(_paragraphs() if corpus == "short" else _entries())
    random.Random(seed).shuffle(texts)  # noqa: S311 - a sample, no secret
    return [texts[index % len(texts)] for index in range(count)]


def fingerprint(texts: Iterable[str]) -> str:
    """The first 12 hex digits of the SHA-256 of all texts: equal figures need equal texts."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:12]


@cache
def _paragraphs() -> tuple[str, ...]:
    found = (part for entry in _documentation() for part in _split(entry) if _is_prose(part))
    return tuple(dict.fromkeys(found))


@cache
def _entries() -> tuple[str, ...]:
    shortened = (_shorten(_split(entry)) for entry in _documentation())
    return tuple(dict.fromkeys(entry for entry in shortened if len(entry.split()) >= SHORTEST_WORDS))


@cache
def _documentation() -> tuple[str, ...]:
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in sorted(root.rglob("*.py")) if not SKIPPED_FOLDERS & set(path.relative_to(root).parts))
    docstrings = [text for path in files for text in _docstrings(path)]
    return (*docstrings, *topics.values())


def _docstrings(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def _split(entry: str) -> list[str]:
    """The paragraphs of an entry, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", entry)]


def _shorten(paragraphs: list[str]) -> str:
    """The leading paragraphs that fit `LONGEST_WORDS`."""
    kept, words = [], 0
    for paragraph in paragraphs:
        words += len(paragraph.split())
        if words > LONGEST_WORDS:
            break
        kept.append(paragraph)
    return " ".join(kept)


def _is_prose(paragraph: str) -> bool:
    if not SHORTEST_WORDS <= len(paragraph.split()) <= LONGEST_WORDS or paragraph[-1] not in ".!?:":
        return False
    plain = sum(character.isalpha() or character == " " for character in paragraph)
    return plain >= PROSE_SHARE * len(paragraph)


TokenIds = Sequence[int]
SORTED_TOKENS = (384, 1024)  # padded tokens of a sorted batch
Plan = list[list[int]]  # which texts go into which run


def load_tokenizer(path: Path, max_sequence_length: int) -> Tokenizer:
    """A tokenizer that truncates and never pads."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_sequence_length)
    return tokenizer


def tokenize(artifact: Artifact, texts: Sequence[str]) -> list[TokenIds]:
    """Token ids of each text, special tokens included."""
    tokenizer = load_tokenizer(artifact.path(TOKENIZER), artifact.manifest.max_sequence_length)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def text_of_tokens(tokenizer: Tokenizer, words: Iterable[str], count: int) -> str:
    """The words that fit, joined: a text of exactly N tokens, special ones included.

    Args:
        tokenizer: one that cuts no earlier than past `count`.
        words: taken in order; one that would make the text too long is left out.
        count: tokens wanted.

    Raises:
        ValueError: the words came to fewer tokens.
    """
    text, tokens = "", 0
    for word in words:
        longer = f"{text} {word}".lstrip()
        if (found := len(tokenizer.encode(longer).ids)) <= count:
            text, tokens = longer, found
        if tokens == count:
            return text
    raise ValueError(f"the words come to {tokens} tokens, expected {count}")


def make_batch(rows: Sequence[TokenIds], attention_layers: tuple[int, ...] = ()) -> Batch:
    """One right-padded batch `[B, S]` of the given rows."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    input_ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = row
    return Batch(input_ids=input_ids, lengths=lengths, attention_layers=attention_layers)


def sorted_by_length(rows: Sequence[TokenIds], max_padded_tokens: int) -> Plan:
    """Longest texts first, as many a run as fit the budget of padded tokens (at least one)."""
    plan: Plan = []
    for index in sorted(range(len(rows)), key=lambda index: len(rows[index]), reverse=True):
        if plan and len(rows[plan[-1][0]]) * (len(plan[-1]) + 1) <= max_padded_tokens:
            plan[-1].append(index)
        else:
            plan.append([index])
    return plan


def standard_plans(rows: Sequence[TokenIds]) -> dict[str, Plan]:
    """The plans that every engine is measured on: no padding at all, and little padding with larger products.

    Two sizes, since engines differ in what suits them: the larger one amortises more, the smaller one's activations
    stay nearer to the core.
    """
    plans = {f"sorted, {tokens} tokens": sorted_by_length(rows, tokens) for tokens in SORTED_TOKENS}
    return {"one text a run": [[index] for index in range(len(rows))], **plans}


def make_batches(rows: Sequence[TokenIds], plan: Plan) -> list[Batch]:
    """The batches of a plan."""
    return [make_batch([rows[index] for index in run]) for run in plan]


def of_shape(stream: Iterable[int], batch_size: int, sequence_length: int) -> Batch:
    """A full batch `[B, S]` without padding, cut from a running stream of real tokens."""
    ids = np.fromiter(stream, dtype=np.int64, count=batch_size * sequence_length)
    lengths = np.full(batch_size, sequence_length, dtype=np.int64)
    return Batch(input_ids=ids.reshape(batch_size, sequence_length), lengths=lengths)
