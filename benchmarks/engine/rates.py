"""How fast is the engine alone, and how close is that to what the machine can do?

Three tables: the rate of the machine's matrix product on the model's own shapes (the ceiling); tokens/s over a grid of
batch shapes; tokens/s on real texts under different ways to batch them and to use the cores. No HTTP, no tokenizing.
Give an fp32 and an int8 artifact to compare them in one run.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import NamedTuple, get_args

from benchmarks.lib.ceiling import Product, limit_tokens_per_s, mean_length, measure_product_rate, work_per_token
from benchmarks.lib.command import parser_of, program, seed, whole
from benchmarks.lib.engines import Engine, Layout, all_layouts
from benchmarks.lib.report import Table, emit
from benchmarks.lib.texts import Corpus, fingerprint, load_texts
from benchmarks.lib.timing import Spread, in_turns, percentiles
from benchmarks.lib.tokens import TokenIds, in_arrival_order, make_batches, of_shape, standard_plans, tokenize
from model.config import EncoderConfig
from service.inference.backend import Batch

SHAPES = ((1, 16), (1, 32), (1, 64), (1, 128), (8, 16), (8, 32), (8, 128), (1, 512))
PRODUCT_ROWS = (32, 128, 1024)
ARRIVAL_BATCH = 32  # texts; what Infinity and sentence-transformers take at a time
COLUMNS = ("engine", "work", "layout", "tokens_per_s", "spread", "texts_per_s", "p50_ms", "p95_ms", "p99_ms", "real_%")


class Case(NamedTuple):
    """What one row of a table measures."""

    engine: str
    work: str
    layout: Layout


Cases = dict[Case, tuple[Engine, list[Batch]]]


def shape_cases(engine: Engine, stream: Callable[[], Iterator[int]], tokens: int) -> Cases:
    """About `tokens` tokens in full batches of each shape that the model can take."""
    cases: Cases = {}
    for size, length in SHAPES:
        if length > engine.artifact.manifest.config.max_positions:
            continue
        batch = of_shape(stream(), size, length)
        for layout in engine.backends:
            count = max(2 * layout.workers, tokens // (size * length))
            cases[Case(engine.name, f"{size} x {length}", layout)] = engine, [batch] * count
    return cases


def text_cases(engine: Engine, corpus: Corpus, rows: Sequence[TokenIds]) -> Cases:
    """The same texts one at a time, in batches as they come, and in batches of similar lengths."""
    ways = {**standard_plans(rows), f"{ARRIVAL_BATCH} as they come": in_arrival_order(rows, ARRIVAL_BATCH)}
    return {
        Case(engine.name, f"{corpus}, {way}", layout): (engine, make_batches(rows, plan))
        for way, plan in ways.items()
        for layout in engine.backends
    }


def measure(name: str, title: str, cases: Cases, limits: Callable[[Engine, list[Batch]], float], rounds: int) -> Table:
    """Runs all cases in turns; `limit_%` is the share of the rate that the products alone would allow."""
    table = Table(name, title, (*COLUMNS, "limit_%"))
    runs = {case: engine.runner(batches, case.layout) for case, (engine, batches) in cases.items()}
    for case, passes in in_turns(runs, rounds).items():
        engine, batches = cases[case]
        rate = Spread.of([one.tokens_per_s for one in passes])
        table.add(
            engine=case.engine,
            work=case.work,
            layout=str(case.layout),
            tokens_per_s=rate.median,
            spread=str(rate),
            texts_per_s=Spread.of([one.texts_per_s for one in passes]).median,
            **percentiles([latency for one in passes for latency in one.latencies]),
            **{"real_%": 100 * real_share(batches), "limit_%": 100 * rate.median / limits(engine, batches)},
        )
    return table


def real_share(batches: Sequence[Batch]) -> float:
    """Share of the padded tokens that are real."""
    return float(sum(batch.lengths.sum() for batch in batches) / sum(batch.input_ids.size for batch in batches))


def measure_products(
    config: EncoderConfig, products: Sequence[Product], rounds: int
) -> tuple[Table, dict[Product, float]]:
    """The ceiling: operations a second of each product by rows and layout, and the best of each product."""
    table = Table("products", "matrix products of the model's shapes", ("product", "rows", "layout", "gops", "spread"))
    cases = {
        (product, rows, layout): partial(
            measure_product_rate, config, product, rows, workers=layout.workers, threads=layout.threads
        )
        for product in products
        for rows in PRODUCT_ROWS
        for layout in all_layouts()
    }
    best: dict[Product, float] = {}
    for (product, rows, layout), rates in in_turns(cases, rounds, warmup=0).items():
        rate = Spread.of(rates)
        best[product] = max(best.get(product, 0.0), rate.highest)  # a bound from above
        table.add(product=product, rows=rows, layout=str(layout), gops=rate.median / 1e9, spread=str(rate))
    return table, best


def limit(best: Mapping[Product, float], engine: Engine, batches: Sequence[Batch]) -> float:
    """Tokens a second if the products ran at their best rate and all else were free. Attention is always fp32."""
    manifest = engine.artifact.manifest
    work = work_per_token(manifest.config, mean_length([int(length) for batch in batches for length in batch.lengths]))
    product: Product = "int8" if manifest.precision == "int8" else "fp32"
    return limit_tokens_per_s(work, product_rate=best[product], attention_rate=best["fp32"])


@program
def main() -> None:
    """Runs the three measurements and prints them."""
    arguments = _parse()
    engines = Engine.open_all(arguments.model, all_layouts())
    print(f"measuring {len(engines)} artifacts, {arguments.rounds} rounds", flush=True)
    has_int8 = any(engine.artifact.manifest.precision == "int8" for engine in engines)
    products: tuple[Product, ...] = ("fp32", "int8") if has_int8 else ("fp32",)
    ceiling, best = measure_products(engines[0].artifact.manifest.config, products, arguments.rounds)
    corpora = {corpus: load_texts(corpus, arguments.texts, arguments.seed) for corpus in get_args(Corpus)}
    by_shape: Cases = {}
    by_text: Cases = {}
    for engine in engines:
        rows = {corpus: tokenize(engine.artifact, texts) for corpus, texts in corpora.items()}
        stream = chain.from_iterable(rows["mixed"])
        by_shape |= shape_cases(engine, partial(cycle, list(stream)), arguments.tokens)
        for corpus, tokens in rows.items():
            by_text |= text_cases(engine, corpus, tokens)
    limits = partial(limit, best)
    tables = [
        ceiling,
        measure("shapes", "full batches, texts x tokens", by_shape, limits, arguments.rounds),
        measure("texts", f"real texts, {arguments.texts} a pass", by_text, limits, arguments.rounds),
    ]
    prints = {corpus: fingerprint(texts) for corpus, texts in corpora.items()}
    emit("engine rates", tables, best_ops_per_s=best, fingerprints=prints)


def _parse() -> argparse.Namespace:
    parser = parser_of(
        __doc__, takes="about six minutes on two cores with all-MiniLM-L6-v2 in fp32, half of that in int8"
    )
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts of one network, any precision")
    parser.add_argument("--rounds", type=whole, default=5, help="measured rounds; one more warms up")
    parser.add_argument("--texts", type=whole, default=600, help="real texts in one pass")
    parser.add_argument("--tokens", type=whole, default=8192, help="tokens in one pass over a shape")
    parser.add_argument("--seed", type=seed, default=0, help="of the sample of texts")
    return parser.parse_args()
