"""The exporter's options for pruning."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.command import number

if TYPE_CHECKING:  # torch takes seconds to import: --help and a wrong command line answer without it
    from export.checkpoint import Checkpoint
    from export.exporter import PruningRecord


def add_options(made: argparse.ArgumentParser) -> None:
    """Adds the options to the exporter's command line."""
    group = made.add_argument_group("pruning")
    how_much = group.add_mutually_exclusive_group()
    how_much.add_argument(
        "--prune-heads",
        type=number(float, lambda value: 0 < value <= 1, "a share above 0 and at most 1"),
        metavar="SHARE",
        help="remove this share of the heads, the least important ones",
    )
    how_much.add_argument(
        "--prune-to-quality",
        type=number(float, lambda value: 0 <= value <= 100, "points from 0 to 100"),
        metavar="POINTS",
        help="remove as many heads as lose at most POINTS: Spearman x 100 with --pairs, else cosine x 100",
    )
    group.add_argument("--pairs", type=Path, metavar="CSV", help="text,text,rating without a header, to prune by")
    group.add_argument(
        "--prune-by",
        choices=("leave_one_out", "jacobian", "output_norm", "loss_gradient"),
        help="importance of a head (default: loss_gradient with --pairs, else jacobian)",
    )
    group.add_argument("--no-curve", action="store_true", help="prune without measuring the whole curve, in less time")


def check_options(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where options do not go together."""
    if options.prune_heads is None and options.prune_to_quality is None:
        for name in ("pairs", "prune_by", "no_curve"):
            if getattr(options, name):
                made.error(f"--{name.replace('_', '-')} goes with --prune-heads or --prune-to-quality")
    if options.prune_by == "loss_gradient" and not options.pairs:
        made.error("--prune-by loss_gradient needs --pairs: the loss needs rated pairs")


def prune_as_asked(options: argparse.Namespace, checkpoint: "Checkpoint") -> "tuple[Checkpoint, PruningRecord | None]":
    """The checkpoint without the heads that the options remove, and the record for the artifact."""
    if options.prune_heads is None and options.prune_to_quality is None:
        return checkpoint, None
    from export.exporter import PruningRecord  # noqa: PLC0415 - as above
    from export.pruning.driver import PruningRequest, prune  # noqa: PLC0415
    from export.pruning.picture import draw_pruning  # noqa: PLC0415
    from model.artifact import PRUNING, PRUNING_PICTURE  # noqa: PLC0415

    request = PruningRequest(
        share=options.prune_heads,
        lose=options.prune_to_quality,
        definition=options.prune_by,
        pairs=options.pairs,
        calibration=options.calibration,
        with_curve=not options.no_curve,
    )
    pruned = prune(checkpoint, request, options.precision)
    sys.stderr.write(_summary(pruned.record))
    files = {}
    if pruned.curve is not None:
        files = {
            PRUNING: json.dumps(pruned.curve, indent=1).encode() + b"\n",
            PRUNING_PICTURE: draw_pruning(pruned.curve).encode(),
        }
    return pruned.checkpoint, PruningRecord(pruned.record, files)


def _summary(record: dict[str, Any]) -> str:
    before, after = record["before"], record["after"]
    removed, heads = record["removed"], record["num_heads_before"]
    return (
        f"removed {len(removed)} of {sum(heads)} heads by {record['definition']}: {record['measure']} x 100 "
        f"{before['points']:.2f} before, {after['points']:.2f} after; cosine to the whole network's embedding "
        f"{after['cosine_mean']:.4f} on average, {after['cosine_worst']:.4f} at worst\n"
    )
