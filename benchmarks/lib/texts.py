"""Real text with its natural lengths, made from the Python standard library's own documentation; and its batches.

Nothing is downloaded and nothing is shipped: docstrings are read from the library's source, the language topics from
`pydoc_data`. The texts of one Python version are always the same; `fingerprint` tells two versions apart.
"""

import ast
import hashlib
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from pydoc_data.topics import topics
from typing import Literal

from tokenizers import Tokenizer

from benchmarks.peers.workers import pad_rows
from model.artifact import TOKENIZER, Artifact
from service.inference.backend import Batch

Corpus = Literal["short", "mixed"]

# Parts of the library that are third-party, vendored or no documentation.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
SHORTEST_WORDS = 6  # below this a paragraph is a heading or a list item
LONGEST_WORDS = 300  # a few hundred tokens: past what most encoders read
PROSE_SHARE = 0.85  # letters and spaces; below this a paragraph is code or a table


def load_texts(corpus: Corpus, count: int, seed: int = 0) -> list[str]:
    """A random sample of a corpus, the same for the same arguments and Python version; past its size it starts over.

    `short` is single paragraphs (about 33 MiniLM tokens on average), `mixed` whole entries (a function's or a topic's
    documentation, most of them short, some of several hundred tokens).
    """
    texts = list(_read(corpus))
    random.Random(seed).shuffle(texts)  # noqa: S311 - a sample, no secret
    return [texts[index % len(texts)] for index in range(count)]


def fingerprint(texts: Iterable[str]) -> str:
    """The first 12 hex digits of the SHA-256 of all texts: equal figures need equal texts."""
    return hashlib.sha256("".join(f"{text}\0" for text in texts).encode()).hexdigest()[:12]


@cache
def _read(corpus: Corpus) -> tuple[str, ...]:
    entries = [_split(entry) for entry in _documentation()]
    if corpus == "short":
        found = [part for entry in entries for part in entry if _is_prose(part)]
    else:
        found = [text for text in map(_shorten, entries) if len(text.split()) >= SHORTEST_WORDS]
    return tuple(dict.fromkeys(found))


def _documentation() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield ast.get_docstring(node) or ""
    yield from topics.values()


def _split(entry: str) -> list[str]:
    """The paragraphs of an entry, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", entry)]


def _shorten(paragraphs: list[str]) -> str:
    """The leading paragraphs that fit `LONGEST_WORDS`."""
    words = accumulate(len(paragraph.split()) for paragraph in paragraphs)
    return " ".join(one for one, so_far in zip(paragraphs, words, strict=True) if so_far <= LONGEST_WORDS)


def _is_prose(paragraph: str) -> bool:
    if not SHORTEST_WORDS <= len(paragraph.split()) <= LONGEST_WORDS or paragraph[-1] not in ".!?:":
        return False
    plain = sum(character.isalpha() or character == " " for character in paragraph)
    return plain >= PROSE_SHARE * len(paragraph)


TokenIds = Sequence[int]
SORTED_TOKENS = (384, 1024)  # padded tokens of a sorted batch
Plan = list[list[int]]  # which texts go into which run


def load_tokenizer(artifact: Artifact, longest: int | None = None) -> Tokenizer:
    """An artifact's tokenizer, which truncates to the model's longest text, unless told otherwise, and never pads."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest or artifact.manifest.max_sequence_length)
    return tokenizer


def tokenize(artifact: Artifact, texts: Sequence[str]) -> list[TokenIds]:
    """Token ids of each text, special tokens included."""
    return [encoding.ids for encoding in load_tokenizer(artifact).encode_batch(list(texts))]


def make_batch(rows: Sequence[TokenIds], attention_layers: tuple[int, ...] = ()) -> Batch:
    """One right-padded batch `[B, S]` of the given rows."""
    input_ids, mask = pad_rows(rows)
    return Batch(input_ids=input_ids, lengths=mask.sum(axis=1), attention_layers=attention_layers)


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

    Two sizes, since the larger one amortises more, the smaller one's activations stay nearer to the core.
    """
    plans = {f"sorted, {tokens} tokens": sorted_by_length(rows, tokens) for tokens in SORTED_TOKENS}
    return {"one text a run": [[index] for index in range(len(rows))], **plans}
