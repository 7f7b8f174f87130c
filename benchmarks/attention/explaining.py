"""What does explaining through the network cost? Processor time of a text, by its tokens, on one thread.

Random token ids, in the runs that the service cuts a text into. Two texts are explained side by side where there are
two cores. Several artifacts are measured in turns, such as those of two versions of the exporter.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.report import Table, emit
from benchmarks.lib.timing import Spread, in_turns
from model.artifact import Artifact
from service.batching.decompositions import WholeText
from service.inference.backend import Cancellation
from service.inference.decomposer import OnnxDecomposer


@program
def main() -> None:
    """Prints a row an artifact and length, then JSON."""
    arguments = _parse()
    artifacts = {path: Artifact.open(path) for path in arguments.artifacts}
    decomposers = {path: OnnxDecomposer(artifact) for path, artifact in artifacts.items()}
    table = Table("explaining", "explaining a text", ("artifact", "tokens", "runs", "processor_ms", "spread"))
    for tokens in arguments.tokens:
        smallest = min(artifact.manifest.config.vocab_size for artifact in artifacts.values())
        text = WholeText(np.random.default_rng(tokens).integers(0, smallest, tokens))
        candidates = {path: partial(processor_seconds, found, text) for path, found in decomposers.items()}
        measured = in_turns(candidates, arguments.rounds)
        for path, seconds in measured.items():
            spread, runs = Spread.of(seconds), len(list(text.runs()))
            table.add(
                artifact=str(path), tokens=tokens, runs=runs, processor_ms=1000 * spread.median, spread=str(spread)
            )
    emit("attention explaining", [table])


def processor_seconds(decomposer: OnnxDecomposer, text: WholeText) -> float:
    """Of this thread, for all runs of a text."""
    started = time.thread_time()
    for sources in text.runs():
        decomposer.run(text.input_ids, text.type_ids, sources, Cancellation())
    return time.thread_time() - started


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="a minute an artifact")
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="artifacts in fp32")
    parser.add_argument("--tokens", type=whole, nargs="+", default=[20, 64, 128], help="lengths (default: 20 64 128)")
    parser.add_argument("--rounds", type=whole, default=5, help="measured rounds (default: %(default)s)")
    return parser.parse_args()
