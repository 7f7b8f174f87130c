"""What the experiment found: as JSON, as a table, and one picture for each claim, of which rows are there."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from export.pruning.picture import Line, Panel, draw_panels, plain
from train.experiments.patterns.memory import EXAMPLES, promised
from train.experiments.patterns.network import WIDTH
from train.experiments.patterns.tasks import OFFSETS, PLACES, TASKS
from train.experiments.patterns.training import GATED_HEADS, Patterns
from train.experiments.trials import Found, estimate, format_interval, write_found

Row = Mapping[str, Any]
"""A row of patterns.json: the fields of `network.Row`, and what was found."""

PLAIN = {"layers": 1, "gated": False, "width": WIDTH, "feed_forward": True}
RIGHT = "right answers"
LOOKED_UP = 2  # the key size from which on a task asks for its places


def write_patterns(folder: Path, patterns: Patterns, found: Sequence[Found]) -> None:
    """Writes patterns.json, patterns.md and the pictures."""
    figures = [{name: trial[name] for name in trial if name not in ("name", "described")} for trial in found]
    rows = [
        {"network": row.name, **asdict(row), "needs": TASKS[row.task].needs, "predicted": round(row.predicted, 4)}
        | {"values" if name == "accuracies" else name: figure for name, figure in own.items()}
        | estimate(own["accuracies"])
        for row, own in zip(patterns.rows, figures, strict=False)
    ]
    memory = [
        {"heads": heads, "examples": EXAMPLES, "promised": promised(heads), **own, **estimate(own["values"])}
        for heads, own in zip(patterns.memorising, figures[len(rows) :], strict=True)
    ]
    counts = {"seeds": patterns.seeds, "steps": patterns.steps}
    record = {"schema_version": 1, **counts, "rows": rows, "memory": memory}
    write_found(folder, "patterns", record, table(record), draw_pictures(rows, memory))


def table(record: Mapping[str, Any]) -> list[str]:
    """The rows as Markdown."""
    return [
        "| task | patterns | network | predicted | right, 95 % | worst seed | steps | open |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['task']} | {row['needs']} | {row['network']} | "
            f"{row['predicted']:.3f} | {format_interval(row)} | {min(row['values']):.4f} | {row['steps']} | "
            f"{', '.join(map(str, row.get('open_heads', [])))} |"
            for row in record["rows"]
        ),
    ]


def draw_pictures(rows: Sequence[Row], memory: Sequence[Row] = ()) -> dict[str, str]:
    """SVG documents by name, of the pictures that have rows: those of patterns.json, and what it holds as `memory`."""
    made = {
        "patterns": ("Right answers against the number of heads at equal parameters", _heads(rows)),
        "patterns-width": ("Right answers and training steps at two widths", _width(rows)),
        "patterns-keys": ("Right answers of one head against the size of its keys", _keys(rows)),
        "patterns-values": ("Right answers of four heads against the size of their values", _values(rows)),
        "patterns-layers": ("Right answers with one layer and with two", _layers(rows)),
        "patterns-gates": ("Heads left open against the patterns that a task needs", _gates(rows)),
        "patterns-steps": ("Training steps against the number of heads", _steps(rows)),
        "patterns-offsets": ("How one head answers two offsets", _offsets(rows)),
        "patterns-memory": ("Memorising random examples", _memory(memory)),
    }
    drawn = {}
    for name, (title, panels) in made.items():
        filled = [panel._replace(lines=[line for line in panel.lines if line.points]) for panel in panels]
        if shown := [panel for panel in filled if panel.lines]:
            drawn[name] = draw_panels(title, shown)
    return drawn


def _select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Rows with these values, and plain in everything else that `PLAIN` names."""
    return [row for row in rows if all(row[name] == value for name, value in (PLAIN | wanted).items())]


def _equal(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Those of them whose heads share the width."""
    found = _select(rows, **wanted)
    return [row for row in found if row["heads"] * row["d_k"] == row["heads"] * row["d_v"] == row["width"]]


def _measured(name: str, rows: Sequence[Row], axis: str, kind: str = "") -> Line:
    return Line(name, sorted(((row[axis], row) for row in rows), key=lambda point: point[0]), kind)


def _predicted(name: str, rows: Sequence[Row], axis: str, kind: str = "") -> Line:
    return Line(name, plain(sorted((row[axis], row["predicted"]) for row in rows)), kind)


def _heads(rows: Sequence[Row]) -> list[Panel]:
    tasks = {task: _equal(rows, task=task) for task in TASKS if TASKS[task].needs}
    lines = [_measured(task, found, "heads") for task, found in tasks.items()]
    lines += [_measured(task, _equal(rows, task=task), "heads", "thin") for task in TASKS if task not in tasks]
    expected = [_predicted(task, found, "heads") for task, found in tasks.items()]
    across = f"heads, d_k = d_v = {WIDTH} / heads"
    return [
        Panel(f"Measured: {RIGHT}", across, lines, logarithmic=True),
        Panel("Predicted: a head serves one pattern", across, expected, logarithmic=True),
    ]


def _width(rows: Sequence[Row]) -> list[Panel]:
    """The tasks that were trained at two widths: what is right, and how long it takes."""
    wider = [row for row in rows if row["width"] == 2 * WIDTH]
    right, steps = [], []
    for task, kind in zip(dict.fromkeys(row["task"] for row in wider), "abc", strict=False):
        heads = {row["heads"] for row in wider if row["task"] == task}
        for width, style in ((WIDTH, kind), (2 * WIDTH, f"{kind} dashed")):
            found = [row for row in _equal(rows, task=task, width=width) if row["heads"] in heads]
            right.append(_measured(f"{task}, {width}", found, "heads", style))
            steps.append(Line(f"{task}, {width}", plain((row["heads"], row["steps"]) for row in found), style))
    return [
        Panel(f"Width {WIDTH} and, dashed, {2 * WIDTH}: {RIGHT}", "heads", right, logarithmic=True),
        Panel("Steps until every seed has 99.5 %, or the limit", "heads", steps, logarithmic=True),
    ]


def _keys(rows: Sequence[Row]) -> list[Panel]:
    lines = []
    for task, kind in zip(("one key", "count of three"), "ab", strict=True):
        found = _select(rows, task=task, heads=1, d_v=WIDTH)
        lines += [_measured(task, found, "d_k", kind), _predicted("predicted", found, "d_k", f"{kind} dashed")]
    return [Panel(f"One head, d_v = {WIDTH}: {RIGHT}", "d_k", lines, logarithmic=True)]


def _values(rows: Sequence[Row]) -> list[Panel]:
    found = _select(rows, task="four keys", heads=4, d_k=WIDTH // 4)
    return [Panel(f"Four keys, four heads, d_k = 8: {RIGHT}", "d_v", [_measured("", found, "d_v")], logarithmic=True)]


def _layers(rows: Sequence[Row]) -> list[Panel]:
    lines = []
    for task, heads in (("one key", 1), ("two offsets", 1), ("four keys", 1), ("four keys", 4), ("four keys", 2)):
        found = [row for layers in (1, 2) for row in _equal(rows, task=task, heads=heads, layers=layers)]
        lines.append(_measured(f"{task}, h = {heads}", found, "layers"))
    return [Panel(f"Heads in each layer: {RIGHT}", "layers", lines)]


def _gates(rows: Sequence[Row]) -> list[Panel]:
    """Heads that learned gates leave open against those that a task needs; bars from the fewest to the most."""
    gated = _select(rows, gated=True)
    kinds = {
        "the same places": [row for row in gated if TASKS[row["task"]].key_size < LOOKED_UP],
        "places asked for": [row for row in gated if TASKS[row["task"]].key_size >= LOOKED_UP],
    }
    needs = sorted({row["needs"] for row in gated})
    lines = [Line(name, [(n, _spread(found, n)) for n in needs if _spread(found, n)]) for name, found in kinds.items()]
    lines.append(Line("as needed", plain((n, n) for n in needs), "e dashed"))
    return [Panel(f"Heads left open, of {GATED_HEADS}", "patterns at once", lines)]


def _spread(rows: Sequence[Row], needs: int) -> dict[str, float]:
    """Mean, fewest and most of the open heads of all seeds of the tasks that need as many; empty if there are none."""
    found = [heads for row in rows if row["needs"] == needs for heads in row["open_heads"]]
    return {"mean": sum(found) / len(found), "low": min(found), "high": max(found)} if found else {}


def _steps(rows: Sequence[Row]) -> list[Panel]:
    shown = [row for row in _equal(rows, task="four keys") if row["heads"] != 16]  # as many as there are colours
    curves = [Line(f"h = {row['heads']}", plain(row["curve"])) for row in shown]
    tasks = ("agreement", "one key", "count of three", "two offsets")
    until = [Line(task, plain((row["heads"], row["steps"]) for row in _equal(rows, task=task))) for task in tasks]
    return [
        Panel("Steps until every seed has 99.5 %, at most 1,000", "heads", until, logarithmic=True),
        Panel(f"Four keys: {RIGHT}, mean of the seeds", "steps", curves),
    ]


def _offsets(rows: Sequence[Row]) -> list[Panel]:
    """What one head looks at that answers two offsets, and what answers are right without a feed-forward network."""
    panels = []
    for row in _equal(rows, task="two offsets", heads=1):
        lines = [
            Line(f"seed {seed}", plain((PLACES - place, weight) for place, weight in enumerate(weights)))
            for seed, weights in enumerate(row["place_weights"])
        ]
        asked = " and ".join(map(str, OFFSETS))
        panels.append(Panel(f"One head: mean weights; asked are {asked}", "places before the last", lines))
    without = _equal(rows, task="two offsets", feed_forward=False)
    both = [row for row in _equal(rows, task="two offsets") if row["heads"] in {row["heads"] for row in without}]
    lines = [
        _measured("with feed-forward", both, "heads"),
        _measured("attention alone", without, "heads"),
        _predicted("predicted", without, "heads", "e dashed"),
    ]
    return [*panels, Panel(f"Two offsets: {RIGHT}", "heads", lines)]


def _memory(memory: Sequence[Row]) -> list[Panel]:
    took = _measured("", memory, "heads")
    expected = Line("", plain((row["heads"], row["promised"]) for row in memory))
    return [
        Panel(f"Steps until {EXAMPLES} examples are memorised", "heads", [took], logarithmic=True),
        Panel("Examples that theory promises", "heads", [expected], logarithmic=True),
    ]
