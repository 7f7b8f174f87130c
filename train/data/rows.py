"""Rows of files, those that are learned from and those that are judged by."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from train.data.text_files import Row, read_rows

MOST_HELD_OUT = 1000
HELD_OUT_SHARE = 0.05
SEED = 0  # of the rows that are held out; the same in every run


class Rows(NamedTuple):
    """Rows in two parts, and the files for the record."""

    learned: list[Row]
    held_out: list[Row]
    described: Mapping[str, Any]


def read_parts(path: Path, held_out: Path | None, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Rows:
    """Reads rows; without a file of rows to judge by, 5 % of them are held out.

    Raises:
        DataError: a file cannot be used.
    """
    rows, file = read_rows(path, columns, optional=optional)
    if held_out is not None:
        judged, judged_file = read_rows(held_out, columns, optional=optional)
        return Rows(rows, judged, {"rows": file._asdict(), "held_out": judged_file._asdict()})
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED)).tolist()
    count = min(MOST_HELD_OUT, max(2, round(HELD_OUT_SHARE * len(rows))))
    shuffled = [rows[place] for place in order]
    described = {"rows": file._asdict(), "held_out": f"{count} of the rows"}
    return Rows(shuffled[count:], shuffled[:count], described)
