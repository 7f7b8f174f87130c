"""`polyhead rerank`, `similar` and `classify`: a score a text, as a table for people or as JSON lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from polyhead.encode import Source
from polyhead.models import load_engine
from polyhead.output import write
from polyhead.texts import InputError, Row


def rerank(query: str, source: Source, model: Path | None, *, top: int | None, as_json: bool) -> None:
    """Prints documents in the order of their scores, best first."""
    rows = _all_rows(source)
    with load_engine(model) as engine:
        ranked = engine.rerank(query, _texts(rows), top_n=top)
    _print([(one.index, float(one.score)) for one in ranked], rows, as_json=as_json)


def similar(text: str, source: Source, model: Path | None, *, as_json: bool) -> None:
    """Prints how similar each of some texts is to the first, in their order."""
    rows = _all_rows(source)
    with load_engine(model) as engine:
        scores = engine.score(text, _texts(rows))
    _print(list(enumerate(scores.tolist())), rows, as_json=as_json)


def classify(source: Source, labels: Sequence[str], model: Path | None, *, top: int | None, as_json: bool) -> None:
    """Prints labels and their scores, best first: a classifier's own, or those that are given, of any model."""
    rows = _all_rows(source)
    with load_engine(model) as engine:
        if labels:
            found = [
                [{"score": float(score), "label": label} for label, score in zip(*ranked, strict=True)]
                for ranked in engine.zero_shot(_texts(rows), labels)
            ]
        else:
            found = engine.classify(_texts(rows))
    for row, scored in zip(rows, found, strict=True):
        best = scored[:top]
        if as_json:
            _print_line({**_identified(row), "labels": best})
        else:
            named = "  ".join(f"{one['score']:.4f} {one['label']}" for one in best)
            write(f"{named}  {_one_line(row)}\n")


def _all_rows(source: Source) -> list[Row]:
    rows = list(source.rows())
    if not rows:
        raise InputError("no texts were given")
    return rows


def _texts(rows: Sequence[Row]) -> list[str]:
    return [str(row.text) for row in rows]  # no pairs: none of these commands reads them


def _print(scored: Sequence[tuple[int, float]], rows: Sequence[Row], *, as_json: bool) -> None:
    for index, score in scored:
        if as_json:
            _print_line({"index": index, "score": score, **_identified(rows[index])})
        else:
            write(f"{score:8.4f}  {_one_line(rows[index])}\n")


def _print_line(line: dict[str, Any]) -> None:
    write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))


def _identified(row: Row) -> dict[str, Any]:
    return {**({} if row.id is None else {"id": row.id}), "text": row.text}


def _one_line(row: Row) -> str:
    parts = [row.text] if row.id is None else [row.id, row.text]
    return "  ".join(" ".join(str(part).split()) for part in parts)
