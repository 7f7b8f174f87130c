"""How fast are texts labelled, compared with the pipelines of `transformers`?

Without HTTP, in one process and in turns: entities of a model that labels tokens, or zero-shot labels of a model of
natural language inference. A call holds all texts of a batch, and the pipeline gets them as one batch, too. Before
anything is timed, the answers of the fp32 artifacts are compared with the pipeline's.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib.command import TEXTS, CannotMeasure, parser_of, program, whole
from benchmarks.lib.report import Spread, Table, emit, in_turns, processor_seconds
from benchmarks.lib.texts import load_texts
from polyhead import Engine

LABELS = ("politics", "sports", "software", "weather")
COLUMNS = ("way", "texts_per_s", "spread", "over_pipeline", "cpu_ms_a_text", "cpu_saved")
PIPELINE = "transformers' pipeline"
CLOSE = 1e-3  # of fp32 scores
Label = Callable[[Sequence[str]], list[Any]]


def pipeline_of(task: str, folder: Path) -> Label:
    """The pipeline of a checkpoint."""
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    if task == "token_classification":
        entities: Any = pipeline("token-classification", str(folder), device="cpu", aggregation_strategy="first")
        return lambda texts: entities(list(texts), batch_size=len(texts))
    zero_shot: Any = pipeline("zero-shot-classification", str(folder), device="cpu")
    return lambda texts: [
        list(zip(found["labels"], found["scores"], strict=True))
        for found in zero_shot(list(texts), list(LABELS), batch_size=len(texts))
    ]


def label_of(engine: Engine) -> Label:
    """The same from an artifact."""
    if engine.manifest.task == "token_classification":
        return lambda texts: engine.entities(list(texts), aggregation="first")
    return lambda texts: [list(zip(*found, strict=True)) for found in engine.zero_shot(list(texts), list(LABELS))]


def require_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compares labels and scores.

    Raises:
        CannotMeasure: a text has other labels, or other scores.
    """
    for one, other in zip(found, expected, strict=True):
        (labels, scores), (their_labels, their_scores) = _parts(one), _parts(other)
        if labels != their_labels or any(abs(a - b) > CLOSE for a, b in zip(scores, their_scores, strict=True)):
            raise CannotMeasure(f"{one} where the pipeline answers {other}")


def _parts(answer: Sequence[Any]) -> tuple[list[Any], list[float]]:
    entries = [
        ((one["entity_group"], one["start"], one["end"]), float(one["score"])) if isinstance(one, dict) else one
        for one in answer
    ]
    return [name for name, _ in entries], [score for _, score in entries]


def measure(label: Label, batches: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of all batches."""
    started = time.monotonic()
    spent = processor_seconds(lambda: [label(batch) for batch in batches])
    return time.monotonic() - started, spent


@program
def main() -> None:
    """Measures alternately, prints rates and ratios."""
    parser = parser_of(__doc__, takes="a minute", **TEXTS)
    parser.add_argument("folder", type=Path, help="the checkpoint, which the pipeline reads")
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="its exports")
    parser.add_argument("--batch", type=whole, default=32, help="texts of a call")
    arguments = parser.parse_args()
    engines = {f"Polyhead {(engine := Engine.load(path)).manifest.precision}": engine for path in arguments.artifacts}
    texts = load_texts("short", arguments.texts)
    if len(texts) < arguments.batch:
        raise CannotMeasure(f"{len(texts)} texts make no batch of {arguments.batch}: raise --texts")
    batches = [texts[at : at + arguments.batch] for at in range(0, len(texts) - arguments.batch + 1, arguments.batch)]
    pipeline = pipeline_of(next(iter(engines.values())).manifest.task, arguments.folder)
    ways = {PIPELINE: pipeline, **{name: label_of(engine) for name, engine in engines.items()}}
    for name, engine in engines.items():
        if engine.manifest.precision == "fp32":
            require_same(ways[name](batches[0]), pipeline(batches[0]))
    measured = in_turns({name: partial(measure, way, batches) for name, way in ways.items()}, arguments.rounds)
    table, count = Table("labels", f"labels, {arguments.batch} texts a call", COLUMNS), len(batches) * arguments.batch
    theirs = [Spread.of(column).median for column in zip(*measured[PIPELINE], strict=True)]
    for name, samples in measured.items():
        seconds, spent = (Spread.of(column) for column in zip(*samples, strict=True))
        table.add(
            way=name,
            texts_per_s=count / seconds.median,
            spread=str(seconds),
            over_pipeline=theirs[0] / seconds.median,
            cpu_ms_a_text=1000 * spent.median / count,
            cpu_saved=theirs[1] / spent.median,
        )
    emit("peers labels", [table])
