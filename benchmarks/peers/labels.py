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

from benchmarks.lib.command import TEXTS, CannotMeasure, parser_of, program
from benchmarks.lib.report import Spread, Table, emit, in_turns, processor_seconds
from benchmarks.lib.texts import load_texts
from polyhead import Engine

LABELS = ("politics", "sports", "software", "weather")
PIPELINE = "transformers' pipeline"
CLOSE = 1e-3  # of fp32 scores
BATCH = 32  # texts of a call
Answers = list[list[tuple[Any, float]]]  # of each text: labels, or entities with their places, and scores
Label = Callable[[Sequence[str]], Answers]


def label_of(engine: Engine) -> Label:
    """Labels by an artifact."""
    if engine.manifest.task == "token_classification":
        return lambda texts: _of_entities(engine.entities(list(texts), aggregation="first"))
    return lambda texts: [list(zip(*found, strict=True)) for found in engine.zero_shot(list(texts), list(LABELS))]


def pipeline_of(task: str, folder: Path) -> Label:
    """The same by the pipeline of a checkpoint."""
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    if task == "token_classification":
        entities: Any = pipeline("token-classification", str(folder), device="cpu", aggregation_strategy="first")
        return lambda texts: _of_entities(entities(list(texts), batch_size=len(texts)))
    zero_shot: Any = pipeline("zero-shot-classification", str(folder), device="cpu")
    return lambda texts: [
        list(zip(found["labels"], found["scores"], strict=True))
        for found in zero_shot(list(texts), list(LABELS), batch_size=len(texts))
    ]


def _of_entities(answers: Any) -> Answers:
    return [
        [((one["entity_group"], one["start"], one["end"]), float(one["score"])) for one in answer] for answer in answers
    ]


def require_same(found: Answers, expected: Answers) -> None:
    """Compares labels and scores.

    Raises:
        CannotMeasure: a text has other labels, or other scores.
    """
    for ours, theirs in zip(found, expected, strict=True):
        is_same = [name for name, _ in ours] == [name for name, _ in theirs]
        if not is_same or any(abs(one[1] - other[1]) > CLOSE for one, other in zip(ours, theirs, strict=True)):
            raise CannotMeasure(f"{ours} where the pipeline answers {theirs}")


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
    arguments = parser.parse_args()
    engines = [Engine.load(path) for path in arguments.artifacts]
    texts = load_texts("short", arguments.texts)
    batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
    ways = {PIPELINE: pipeline_of(engines[0].manifest.task, arguments.folder)}
    for engine in engines:
        ways[f"Polyhead {engine.manifest.precision}"] = label = label_of(engine)
        if engine.manifest.precision == "fp32":
            require_same(label(batches[0]), ways[PIPELINE](batches[0]))
    measured = in_turns({name: partial(measure, way, batches) for name, way in ways.items()}, arguments.rounds)
    table = Table("labels", f"labels, {BATCH} texts a call")
    theirs = [Spread.of(column).median for column in zip(*measured[PIPELINE], strict=True)]
    for name, samples in measured.items():
        seconds, spent = (Spread.of(column) for column in zip(*samples, strict=True))
        table.add(
            way=name,
            texts_per_s=len(texts) / seconds.median,
            spread=str(seconds),
            over_pipeline=theirs[0] / seconds.median,
            cpu_ms_a_text=1000 * spent.median / len(texts),
            cpu_saved=theirs[1] / spent.median,
        )
    emit("peers labels", [table])
