"""What the experiment found, as JSON, as a table and as pictures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model.artifact import write_whole
from train.experiments.patterns.memory import EXAMPLES, promised
from train.experiments.patterns.pictures import draw_pictures
from train.experiments.patterns.tasks import TASKS
from train.experiments.patterns.training import Patterns
from train.experiments.trials import Found, estimate, format_interval

FIGURES = (
    *("steps", "attention_parameters", "cpu_seconds", "open_heads", "curve", "served_seed"),
    *("place_weights", "weight_difference", "right_if_equal", "right_if_mean"),
)


def write_patterns(folder: Path, patterns: Patterns, found: Sequence[Found]) -> Mapping[str, Any]:
    """Writes patterns.json, patterns.md and the pictures, and returns the first."""
    memorised = found[len(patterns.rows) :]
    record: dict[str, Any] = {"schema_version": 1, "seeds": patterns.seeds, "steps": patterns.steps, "rows": []}
    for row, trial in zip(patterns.rows, found, strict=False):
        figures = {name: trial[name] for name in FIGURES if name in trial}
        accuracy = {"values": trial["accuracies"], **estimate(trial["accuracies"])}
        record["rows"].append(
            {
                "network": row.name,
                **asdict(row),
                "needs": TASKS[row.task].needs,
                "predicted": round(row.predicted, 4),
                **figures,
                **accuracy,
            }
        )
    record["memory"] = [
        {
            "heads": heads,
            "examples": EXAMPLES,
            "promised": promised(heads),
            **{name: trial[name] for name in ("values", "errors", "cpu_seconds")},
            **estimate(trial["values"]),
        }
        for heads, trial in zip(patterns.memorising, memorised, strict=True)
    ]
    write_whole(folder / "patterns.json", json.dumps(record, indent=1).encode() + b"\n")
    write_whole(folder / "patterns.md", ("\n".join(table(record)) + "\n").encode())
    for name, picture in draw_pictures(record["rows"], record["memory"]).items():
        write_whole(folder / f"{name}.svg", picture.encode())
    return record


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
