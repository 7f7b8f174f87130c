"""What heads are chosen by, and what the choice is judged by: two halves of the text, which share nothing.

With rated pairs every other pair is for one and the rest for the other. Without, heads are chosen by the text that int8
is calibrated with (or the user's), and judged by the text that int8 is judged by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.checkpoint import Checkpoint
from export.heads.pairs import TokenizedPairs, read_pairs, tokenize_pairs
from export.heads.tokens import TokenizedText, tokenize
from export.int8.calibration import HELD_OUT_TEXTS, TEXTS, read_texts
from export.pruning.quality import Judge, judge_by_pairs, judge_by_texts
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
        SourceError: a file cannot be used.
    """
    return _from_pairs(checkpoint, pairs) if pairs else _from_texts(checkpoint, calibration or TEXTS)


def _from_pairs(checkpoint: Checkpoint, path: Path) -> Material:
    pairs = read_pairs(path)
    longest = min(LONGEST, checkpoint.max_sequence_length)
    halves = _spread(range(0, len(pairs.left), 2), MOST_CHOOSING), _spread(range(1, len(pairs.left), 2), MOST_JUDGED)
    chosen, judged = (tokenize_pairs(pairs.choose(half), checkpoint.tokenizer, longest) for half in halves)
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


def _spread(places: range, most: int) -> list[int]:
    """At most so many places, evenly: such files are sorted by where the pairs come from."""
    count = min(most, len(places))
    return [places[index * len(places) // count] for index in range(count)]
