"""What a comparison of orders found: JSON, a table in Markdown, and a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from export.heads.install import write_whole
from train.experiments.comparison import compare, format_interval
from train.experiments.orders import WAYS, Orders
from train.experiments.picture import Line, draw_lines
from train.experiments.trials import Found

STAGES = ("not_healed", "fitted", "healed")
BASELINE = "random"


def write_orders(folder: Path, orders: Orders, found: Sequence[Found]) -> Mapping[str, Any]:
    """Writes orders.json, orders.md and orders.svg, and returns the first."""
    record = summarise(orders, found)
    write_whole(folder / "orders.json", json.dumps(record, indent=1).encode() + b"\n")
    write_whole(folder / "orders.md", table(record).encode())
    lines = [
        Line(way.replace("_", " "), [(row["share"], row["healed"]) for row in record["rows"] if row["way"] == way])
        for way in WAYS
    ]
    picture = draw_lines("Cosine to the whole network, healed", "heads removed", lines, percent=True)
    write_whole(folder / "orders.svg", picture.encode())
    return record


def summarise(orders: Orders, found: Sequence[Found]) -> dict[str, Any]:
    """For each share and way the cosines before and after healing, and the difference from chance."""
    rows = []
    for share in sorted(orders.settings.shares):
        of_share = [trial for trial in found if trial["described"]["share"] == share]
        figures = {
            stage: compare(
                {way: [t[stage] for t in of_share if t["described"]["way"] == way] for way in WAYS}, BASELINE
            )
            for stage in STAGES
        }
        rows += [{"share": share, "way": way, **{stage: figures[stage][way] for stage in STAGES}} for way in WAYS]
    first = found[0]["described"]
    return {
        "schema_version": 1,
        "score": "cosine_mean",
        "source": orders.whole.source.id,
        "settings": {key: first[key] for key in first if key not in ("way", "share")},
        "seeds": orders.settings.seeds,
        "rows": rows,
    }


def table(record: Mapping[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| heads removed | chosen by | not healed | fitted | healed, 95 % of seeds | against chance | beyond seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        healed, compared, is_apart = row["healed"], "", ""
        if "difference" in healed:
            compared = format_interval(healed["difference"], sign=True)
            is_apart = "yes" if healed["larger_than_seeds"] else "no"
        lines.append(
            f"| {100 * row['share']:.0f} % | {row['way'].replace('_', ' ')} | {row['not_healed']['mean']:.4f} | "
            f"{row['fitted']['mean']:.4f} | {format_interval(healed)} | {compared} | {is_apart} |"
        )
    return "\n".join(lines) + "\n"
