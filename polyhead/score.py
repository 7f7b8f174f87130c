"""`polyhead rerank`, `similar` and `classify`: a score a text, as a table for people or as JSON lines."""

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
import typer

from polyhead.models import ModelFlag, load_engine
from polyhead.output import JsonFlag, write
from polyhead.texts import FieldFlag, Fields, FormatFlag, IdFlag, InputError, Row, Source, SourceFlag, Texts
from service.errors import WrongTask

TopFlag = Annotated[int | None, typer.Option(min=1, help="only the best N [default: all]")]


def rerank(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="what documents are compared with")],
    documents: Texts = None,
    *,
    model: ModelFlag = None,
    source: SourceFlag = None,
    field: FieldFlag = "text",
    id_field: IdFlag = None,
    kind: FormatFlag = None,
    top: TopFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Order documents by how well they fit a query, best first, as `POST /rerank` does.

    Examples:
      polyhead rerank "Where did the cat sit?" "It rained all day." "The cat sat on the mat."
      polyhead rerank "Where did the cat sit?" --input docs.csv --field body --id key --top 10 --json
    """
    rows = _all_rows(Source.given(context, documents, source, kind, Fields(field, None, id_field)))
    with load_engine(model) as engine:
        ranked = engine.rerank(query, _texts(rows), top_n=top)
    _print([(one.index, float(one.score)) for one in ranked], rows, as_json=as_json)


def similar(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="a text")],
    others: Annotated[list[str] | None, typer.Argument(metavar="OTHER", help="others; - is standard input")] = None,
    *,
    model: ModelFlag = None,
    source: SourceFlag = None,
    field: FieldFlag = "text",
    id_field: IdFlag = None,
    kind: FormatFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Score a text with each of others, in their order: cosines of an embedder, a reranker's own scores.

    Examples:
      polyhead similar "A cat sat down." "The kitten rests." "It rained."
      cat lines.txt | polyhead similar "A cat sat down." -
    """
    rows = _all_rows(Source.given(context, others, source, kind, Fields(field, None, id_field)))
    with load_engine(model) as engine:
        scores = engine.score(text, _texts(rows))
    _print(list(enumerate(scores.tolist())), rows, as_json=as_json)


def classify(
    context: typer.Context,
    texts: Texts = None,
    *,
    model: ModelFlag = None,
    source: SourceFlag = None,
    field: FieldFlag = "text",
    id_field: IdFlag = None,
    kind: FormatFlag = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", help="a label to choose from, any number of times, as POST /zero-shot"),
    ] = None,
    top: TopFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Name the labels of texts and their scores, best first: a classifier's own, or yours by --label.

    Examples:
      polyhead classify --model artifacts/sentiment "I like it."
      polyhead classify "The cat sat on the mat." --label animals --label weather    labels of your own

    Labels of your own need an embedder, or a classifier of natural language inference.
    """
    rows = _all_rows(Source.given(context, texts, source, kind, Fields(field, None, id_field)))
    with load_engine(model) as engine:
        if labels:
            found = [
                [{"score": float(score), "label": label} for label, score in zip(*ranked, strict=True)]
                for ranked in engine.zero_shot(_texts(rows), labels)
            ]
        else:
            try:
                found = engine.classify(_texts(rows))
            except WrongTask as error:
                yours = "; labels of your own are given by --label" if engine.manifest.task == "embedding" else ""
                raise WrongTask(f"{error}{yours}") from error
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
