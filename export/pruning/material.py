"""The texts that heads are chosen by, and the texts that the choice is judged by; the two share none.

With rated pairs half of them, drawn at random, are for one and the rest for the other. Without, heads are chosen by the
text that int8 is calibrated with (or the user's), and judged by the text that int8 is judged by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.checkpoint import Checkpoint
from export.heads.pairs import TokenizedPairs, read_pairs, require_ratings, shuffle_places, tokenize_pairs
from export.int8.calibration import HELD_OUT_TEXTS, TEXTS, read_texts
from export.pruning.quality import Judge, judge_by_pairs, judge_by_texts
from export.tokens import TokenizedText, tokenize
from model.artifact import hash_file

LONGEST = 128
MOST_CHOOSING = 200  # texts or pairs: importance may run the network once a head over them
MOST_JUDGED = 500  # pairs, for each of the networks along a curve


@dataclass(frozen=True, slots=True)
class Material:
    """Texts and the judge.

    Attributes:
        texts: heads are chosen by them; with pairs their left texts, then the right ones.
        pairs: the same as pairs, or None.
        judge: measures networks on the other half.
        described: how many of what, for the record.
    """

    texts: Sequence[TokenizedText]
    pairs: TokenizedPairs | None
    judge: Judge
    described: dict[str, Any]


def read_material(checkpoint: Checkpoint, pairs: Path | None, calibration: Path | None) -> Material:
    """Reads the halves.

    Raises:
        SourceError: a file cannot be used, or half of its pairs are too few or all rated alike.
    """
    return _from_pairs(checkpoint, pairs) if pairs else _from_texts(checkpoint, calibration or TEXTS)


def halve(count: int) -> tuple[list[int], list[int]]:
    """Places of the pairs that heads are chosen by, and of those that the choice is judged by."""
    places, half = shuffle_places(count), (count + 1) // 2
    return sorted(places[:half][:MOST_CHOOSING]), sorted(places[half:][:MOST_JUDGED])


def _from_pairs(checkpoint: Checkpoint, path: Path) -> Material:
    pairs = read_pairs(path)
    longest = min(LONGEST, checkpoint.max_sequence_length)
    chosen, judged = (
        require_ratings(tokenize_pairs(pairs.choose(half), checkpoint.tokenizer, longest), path, purpose)
        for half, purpose in zip(halve(len(pairs.left)), ("to choose heads by", "to judge by"), strict=True)
    )
    described = {
        "text": {"name": path.name, "sha256": hash_file(path)},
        "chosen_on_pairs": len(chosen.left),
        "judged_on_pairs": len(judged.left),
    }
    return Material(chosen.texts, chosen, judge_by_pairs(checkpoint.encoder, judged), described)


def _from_texts(checkpoint: Checkpoint, path: Path) -> Material:
    longest = min(LONGEST, checkpoint.max_sequence_length)
    texts, held_out = (
        tokenize(read_texts(source)[:MOST_CHOOSING], checkpoint.tokenizer, longest) for source in (path, HELD_OUT_TEXTS)
    )
    described = {
        "text": {"name": path.name, "sha256": hash_file(path)},
        "chosen_on_texts": len(texts),
        "judged_on_texts": len(held_out),
    }
    return Material(texts, None, judge_by_texts(checkpoint.encoder, held_out), described)
