"""`polyhead explain A [B]`: which tokens make two texts similar, or give a classifier's logit."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import orjson
import typer

from polyhead.models import ModelFlag, load_engine
from polyhead.output import say, write
from polyhead.texts import InputError

if TYPE_CHECKING:
    from model.analysis.arrays import Float32Array
    from service.answers.explained import Explained, ExplainedScore

BIASES = "biases"
Term = tuple[float, str, str]


def explain(
    a: Annotated[str, typer.Argument(metavar="A", help="a text")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="another; of a model that reads pairs, the second of the pair")
    ] = None,
    *,
    model: ModelFlag = None,
    through: Annotated[
        Literal["pooling", "network"],
        typer.Option(help="what terms are of: the last layer's token vectors, or the input tokens"),
    ] = "pooling",
    at: Annotated[
        int | None,
        typer.Option(min=0, help="of a model that labels tokens: a character of A, whose token is explained"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="terms to print")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="every term, as JSON")] = False,
) -> None:
    """Show which tokens make two texts similar, or give a classifier's logit.

    The similarity is a sum over pairs of tokens, one of each text, special tokens included. The table shows the largest
    terms, as numbers and as shares of the sum; all others stand together in its last line. With --through network a
    classifier's largest logit is a sum over the input tokens, and the table shows its terms of the largest size.

    Examples:
      polyhead explain "A cat sat down." "The kitten is resting."
      polyhead explain --json "A cat sat down." "The kitten is resting."    all of it, as `POST /explain` answers
      polyhead explain --model artifacts/sentiment --through network "I like it."    a classifier's logit
    """
    given: dict[str, Any] = {} if at is None else {"at": at}
    explained: Explained | ExplainedScore
    with load_engine(model) as engine:
        has_labels = bool(engine.manifest.labels)
        if through == "network" and has_labels:
            explained = engine.explain_score(a, b, **given)
            texts, lines = [explained.text], score_table(explained, top)
        elif has_labels:
            raise InputError(f"{engine.manifest.model} compares no vectors of two texts: ask for --through network")
        elif b is None:
            raise InputError(f"{engine.manifest.model} compares two texts: give the second one too")
        else:
            explained = engine.explain(a, b, through=through, **given)
            texts, lines = [explained.a, explained.b], table(explained, top)
        longest = engine.manifest.max_sequence_length
    if as_json:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        write(orjson.dumps(explained.document(), option=options))
    else:
        write("\n".join(lines) + "\n")
    if cut := sum(text.truncated for text in texts):
        say(f"polyhead explain: {cut} of {len(texts)} texts were cut to the {longest} tokens that the model reads")


def table(explained: "Explained", top: int) -> Iterator[str]:
    """The lines to print of a similarity, the largest terms first."""
    similarity, cells = float(explained.similarity), explained.contributions
    rows, columns = np.unravel_index(np.argsort(-cells, axis=None, kind="stable")[:top], cells.shape)
    left, right = [*explained.a.tokens, BIASES], [*explained.b.tokens, BIASES]  # the biases only through the network
    pairs = len(explained.a.tokens) * len(explained.b.tokens)
    biases = f" and the {BIASES}" if cells.size > pairs else ""
    yield f"similarity {similarity:.4f} = sum over {pairs} pairs of tokens{biases}, the largest:"
    places = zip(rows, columns, strict=True)
    terms = [(float(cells[row, column]), left[row], right[column]) for row, column in places]
    yield from _terms(similarity, terms, cells)


def score_table(explained: "ExplainedScore", top: int) -> Iterator[str]:
    """The lines to print of the largest logit, the terms of the largest size first."""
    label = int(explained.logits.argmax())
    logit, values = float(explained.logits[label]), explained.contributions[label]
    names = [*explained.text.tokens, BIASES]
    places = np.argsort(-np.abs(values), kind="stable")[:top]
    yield f"logit of {explained.labels[label]} {logit:.4f} = sum over {values.size - 1} tokens and the biases:"
    terms = [(float(values[place]), names[place], "") for place in places]
    yield from _terms(logit, terms, values)


def _terms(whole: float, terms: Sequence[Term], every: "Float32Array") -> Iterator[str]:
    """A line a term, and one for all others of `every` term, if there are any."""
    for value, left, right in terms:
        yield f"{value:+.4f}  {_share(value, whole)}  {left:>16}  {right}".rstrip()
    if len(terms) == every.size:
        return
    rest = float(every.sum(dtype=np.float64)) - sum(value for value, _, _ in terms)
    yield f"{rest:+.4f}  {_share(rest, whole)}  {'all others':>16}"


def _share(value: float, whole: float) -> str:
    return f"{value / whole:6.1%}" if whole else f"{'':6}"
