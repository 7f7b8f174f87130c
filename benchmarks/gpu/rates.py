"""What does a GPU give: is the answer right there, how much of the card is used, by which kernels, in which batches?

`parity`: each artifact on the device against the fp32 artifact of the same weights on the CPU. `peak`: the rate of ONNX
Runtime's own large matrix product in each precision (int8: float32), on the device, on random data. `rates`: full
batches of real tokens, from few to many, with one worker and with two (the second prepares while the first computes).
`busy`: the smallest batch that comes near the best. `nodes`: what runs where, and which attention kernel.
`--provider cpu` runs the same on the CPU, to try it.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu.nodes import inspect_nodes
from benchmarks.gpu.peak import measure_peak
from benchmarks.lib.ceiling import work_per_token
from benchmarks.lib.command import parser_of, program, seed, whole
from benchmarks.lib.engines import Engine, Layout
from benchmarks.lib.report import Table, emit
from benchmarks.lib.texts import load_texts
from benchmarks.lib.timing import Spread, in_turns, percentiles
from benchmarks.lib.tokens import TokenIds, make_batch, of_shape, tokenize
from export.similarity import row_cosines
from service.inference.backend import BatchOutput

LAYOUTS = (Layout(1, 1), Layout(2, 1))
PARITY_TEXTS = 16
RUNS = 4  # of each worker in one measurement
BUSY = 0.9  # share of the best rate from which a batch is said to keep the card busy


class Case(NamedTuple):
    """What one row of `rates` measures."""

    length: int
    texts: int
    layout: Layout


def compare_with_reference(engines: Sequence[Engine], references: Sequence[Engine], texts: Sequence[str]) -> Table:
    """Vectors and all layers' weights of one ragged batch, where an fp32 artifact of the same weights was given."""
    columns = ("engine", "reference", "cosine_min", "pooled_max_diff", "attention_max_diff")
    table = Table("parity", f"{len(texts)} texts in one batch", columns)
    by_weights = {engine.artifact.manifest.source.sha256: engine for engine in references}
    for engine in engines:
        reference = by_weights.get(engine.artifact.manifest.source.sha256)
        if reference is None:
            table.add(engine=engine.name, reference="none given: --reference")
            continue
        rows = tokenize(engine.artifact, texts)
        found, expected = (_run(one, rows) for one in (engine, reference))
        table.add(
            engine=engine.name,
            reference=reference.name,
            cosine_min=float(row_cosines(np.stack(list(found.output)), np.stack(list(expected.output))).min()),
            pooled_max_diff=float(np.abs(np.stack(list(found.output)) - np.stack(list(expected.output))).max()),
            attention_max_diff=_attention_difference(found, expected, [len(row) for row in rows]),
        )
    return table


def cases(engine: Engine, lengths: Sequence[int], tokens: Sequence[int]) -> Iterator[Case]:
    """Every length that there are positions for, in batches of about so many tokens, for each layout."""
    longest = engine.artifact.manifest.config.max_positions
    for length in (length for length in lengths if length <= longest):
        for texts in dict.fromkeys(max(1, count // length) for count in tokens):
            yield from (Case(length, texts, layout) for layout in LAYOUTS)


def measure(
    engines: Sequence[Engine], texts: Sequence[str], peaks: Mapping[str, float], arguments: argparse.Namespace
) -> Table:
    """Tokens a second and the share of the peak, by length and batch."""
    columns = ("engine", "length", "texts", "workers", "tokens_per_s", "spread", "p50_ms", "tflops", "peak_%")
    table = Table("rates", "full batches, real tokens", columns)
    for engine in engines:
        ids = list(chain.from_iterable(tokenize(engine.artifact, texts)))
        config, precision = engine.artifact.manifest.config, engine.artifact.manifest.precision
        runs = {}
        for case in cases(engine, arguments.lengths, arguments.tokens):
            batch = of_shape(cycle(ids), case.texts, case.length)
            runs[case] = engine.runner([batch] * RUNS * case.layout.workers, case.layout)
        for case, passes in in_turns(runs, arguments.rounds).items():
            rate = Spread.of([one.tokens_per_s for one in passes])
            work = work_per_token(config, case.length)
            flops = rate.median * (work.linear + work.attention)
            table.add(
                engine=engine.name,
                length=case.length,
                texts=case.texts,
                workers=case.layout.workers,
                tokens_per_s=rate.median,
                spread=str(rate),
                p50_ms=percentiles([latency for one in passes for latency in one.latencies])["p50_ms"],
                tflops=flops / 1e12,
                **{"peak_%": 100 * flops / peaks[precision]},
            )
    return table


def busy_batches(rates: Table) -> Table:
    """The best of each length, and the smallest batch that comes near it."""
    table = Table("busy", f"smallest batch with {BUSY:.0%} of the best rate", ("engine", "length", "best", "batch"))
    for engine, length in dict.fromkeys((row["engine"], row["length"]) for row in rates.rows):
        rows = [row for row in rates.rows if (row["engine"], row["length"]) == (engine, length)]
        best = max(row["tokens_per_s"] for row in rows)
        enough = min(row["texts"] for row in rows if row["tokens_per_s"] >= BUSY * best)
        table.add(engine=engine, length=length, best=best, batch=f"{enough} x {length}")
    return table


@program
def main() -> None:
    """Opens the artifacts on the device, measures, and prints."""
    arguments = _parse()
    provider = arguments.provider
    engines = Engine.open_all(arguments.model, LAYOUTS, provider=provider)
    references = Engine.open_all(arguments.reference, LAYOUTS[:1])
    texts = load_texts("mixed", arguments.texts, arguments.seed)
    precisions = dict.fromkeys(engine.artifact.manifest.precision for engine in engines)
    peak = Table("peak", f"product of {arguments.product} x {arguments.product}", ("precision", "tflops"))
    peaks = {precision: measure_peak(precision, provider, arguments.product) for precision in precisions}
    for precision, rate in peaks.items():
        peak.add(precision=precision, tflops=rate / 1e12)
    parity = compare_with_reference(engines, references, texts[:PARITY_TEXTS])
    rates = measure(engines, texts, peaks, arguments)
    nodes = Table("nodes", "what runs where", ("engine", "provider", "nodes", "operators", "attention_kernels"))
    for directory, engine in zip(arguments.model, engines, strict=True):
        for row in inspect_nodes(directory, provider):
            nodes.add(engine=engine.name, **row)
    emit("gpu rates", [parity, peak, rates, busy_batches(rates), nodes], provider=provider)


def _run(engine: Engine, rows: Sequence[TokenIds]) -> BatchOutput:
    layers = tuple(range(engine.artifact.manifest.config.num_layers))
    return next(iter(engine.backends.values())).run(make_batch(rows, layers))


def _attention_difference(found: BatchOutput, expected: BatchOutput, lengths: Sequence[int]) -> float:
    """The largest between weights of real tokens; 0 without heads."""
    return max(
        (
            float(np.abs(weights[row, :, :length] - expected.attentions[layer][row, :, :length]).max(initial=0.0))
            for layer, weights in found.attentions.items()
            for row, length in enumerate(lengths)
        ),
        default=0.0,
    )


def _parse() -> argparse.Namespace:
    parser = parser_of(
        __doc__, takes="minutes on a GPU; on a CPU hours, unless --lengths, --tokens and --product are small"
    )
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts, of any precision")
    parser.add_argument(
        "--reference", type=Path, nargs="+", default=[], metavar="DIR", help="fp32 artifacts of the same weights"
    )
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda", help="what computes")
    parser.add_argument("--lengths", type=whole, nargs="+", default=[32, 128, 512], metavar="TOKENS", help="of a text")
    parser.add_argument(
        "--tokens", type=whole, nargs="+", default=[512, 2048, 8192, 32768, 131072], metavar="TOKENS", help="of a batch"
    )
    parser.add_argument("--product", type=whole, default=8192, metavar="N", help="the peak is that of N x N by N x N")
    parser.add_argument("--rounds", type=whole, default=5, help="measured rounds; one more warms up")
    parser.add_argument("--texts", type=whole, default=600, help="real texts that tokens come from")
    parser.add_argument("--seed", type=seed, default=0, help="of the sample of texts")
    return parser.parse_args()
