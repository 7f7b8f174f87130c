"""What is said about multi-head attention, and what is true: the tables behind each claim of docs/attention.md.

No model is needed: networks, scores and value streams are randomly initialised, small graphs are exported and run.
Memory is measured in processes of their own, so other work on the machine does not change it.
"""

import argparse
from collections.abc import Callable, Mapping

import torch
from tqdm import tqdm

from benchmarks.attention.claim_tables import (
    every_head_count,
    exports,
    fewer_heads,
    identities,
    one_head_or_many,
    rank_of_scores,
    scale_not_splitting,
)
from benchmarks.attention.memory import LENGTHS, LONGEST, memory
from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.report import Table, emit

SECTIONS = ("shapes", "softmax", "values", "memory")


@program
def main() -> None:
    """Measures the sections asked for and prints their tables."""
    arguments = _parse()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # the networks are small: threads cost more than they bring
    makers = [make for name, makers in sections(arguments).items() if name in arguments.only for make in makers]
    tables = [make() for make in tqdm(makers, desc="measuring", unit="table", leave=False, disable=None)]
    emit("attention claims", tables, runs=arguments.runs)


def sections(arguments: argparse.Namespace) -> Mapping[str, list[Callable[[], Table]]]:
    """What measures each section's tables."""
    return {
        "shapes": [every_head_count, exports, fewer_heads],
        "softmax": [
            lambda: one_head_or_many(arguments.runs, tuple(arguments.tokens)),
            scale_not_splitting,
            rank_of_scores,
        ],
        "values": [identities],
        "memory": [lambda: memory(arguments.lengths)],
    }


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="a few minutes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections to measure")
    parser.add_argument("--runs", type=whole, default=100, help="random texts a row of one head beside many")
    parser.add_argument("--tokens", type=whole, nargs="+", default=[2, 10, 20, 32], help="their lengths")
    parser.add_argument(
        "--lengths", type=whole, nargs="+", default=LENGTHS, help="tokens of the memory table, ascending"
    )
    arguments = parser.parse_args()
    lengths = arguments.lengths
    if len(lengths) < 2 or lengths != sorted(set(lengths)) or lengths[-1] > LONGEST:
        parser.error(f"--lengths: at least two, ascending, up to {LONGEST}")
    return arguments
