"""What attention costs: its forms over HTTP, explaining, and windows in graphs without the service around them."""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
from tokenizers import Tokenizer

from benchmarks.engine import draw, encoder_of
from benchmarks.lib.command import CannotMeasure, parser_of, positive, program, whole
from benchmarks.lib.comparison import ENCODE, fetch_body
from benchmarks.lib.load import Address, Request, post, run_closed_loop
from benchmarks.lib.report import Spread, Table, compare_seconds, emit, in_turns, percentiles, processor_seconds
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import fingerprint, load_texts, load_tokenizer
from export.graph import trace
from export.runtime import Session
from export.texts import graph_inputs
from model.artifact import EXPLAIN_GRAPH, Artifact
from model.attention import LOCAL_ATTENTION_OP
from model.encoder import Encoder
from service.batching.decompositions import source_runs
from service.http.response import SAFETENSORS
from service.inference.backend import Cancellation, WholeText
from service.inference.onnx_backend import OnnxDecomposer

CORPUS_TEXTS = 200  # whose words fill the texts
PLAIN = "embedding alone"
# All layers of a large network at 512 tokens are 151 MB.
ROOM = dict.fromkeys(("POLYHEAD_MAX_ATTENTION_BYTES", "POLYHEAD_MAX_ATTENTION_WORK_BYTES"), str(1 << 30))
WRITTEN: Mapping[str, tuple[str, str]] = {  # encoding_format and Accept
    "JSON": ("float", "*/*"),
    "base64": ("base64", "*/*"),
    "safetensors float32": ("float", SAFETENSORS),
    "safetensors float16": ("float16", SAFETENSORS),
}
REDUCED: Mapping[str, Mapping[str, Any]] = {  # written as JSON
    "last layer, first token's row": {"layers": "last", "queries": "cls"},
    "last layer, top_k 5": {"layers": "last", "top_k": 5},
    "last layer, stats": {"layers": "last", "form": "stats"},
    "last layer, norms": {"layers": "last", "form": "norms"},
    "all layers, mean over heads": {"layers": "all", "reduce": "mean"},
    "all layers, rollout": {"layers": "all", "reduce": "rollout"},
    "all layers, stats": {"layers": "all", "form": "stats"},
}

Key = tuple[int, str]  # tokens and form
Rounds = Mapping[Key, Sequence[Sequence[float]]]


def text_of_tokens(tokenizer: Tokenizer, words: Sequence[str], count: int) -> str:
    """The words that fit, joined: a text of exactly N tokens, special ones included."""
    text = ""
    for word in words:
        longer = f"{text} {word}".lstrip()
        if (tokens := len(tokenizer.encode(longer).ids)) <= count:
            text = longer
        if tokens == count:
            return text
    raise CannotMeasure(f"--lengths: no text of {count} tokens")


def make_texts(artifact: Artifact, lengths: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Two texts of exactly each length in tokens, at most the longest that the model takes."""
    longest = artifact.manifest.max_sequence_length
    tokenizer = load_tokenizer(artifact, longest + 1)
    words = " ".join(load_texts("short", CORPUS_TEXTS)).split()
    halves = words[: len(words) // 2], words[len(words) // 2 :]
    counts = sorted({min(length, longest) for length in lengths})
    return {n: (text_of_tokens(tokenizer, halves[0], n), text_of_tokens(tokenizer, halves[1], n)) for n in counts}


def make_requests(text: str, other: str) -> dict[str, Request]:
    """A request a form."""
    requests = {
        PLAIN: _encode(text),
        "embeddings of two texts": _encode([text, other]),
        "one head masked": _encode(text, head_mask=[[0, 0, 0]]),
        "explain, two texts": post("/explain", {"a": text, "b": other}),
    }
    for layers, written in product(("last", "all"), WRITTEN):
        name = f"{layers} layer{'s' if layers == 'all' else ''}, {written}"
        requests[name] = _encode(text, written, attention={"layers": layers})
    written, norms = "safetensors float32", {"layers": "all", "form": "norms"}
    requests[f"all layers, norms, {written}"] = _encode(text, written, attention=norms)
    return requests | {name: _encode(text, attention=asked) for name, asked in REDUCED.items()}


def _encode(inputs: str | list[str], written: str = "JSON", **asked: Any) -> Request:
    """Without the model's default prompt, whose tokens would count."""
    encoding_format, accept = WRITTEN[written]
    return post(ENCODE, {"inputs": inputs, "prompt": "", "encoding_format": encoding_format, **asked}, accept=accept)


def latencies(address: Address, request: Request, seconds: float) -> list[float]:
    """Seconds of each answer, of as many as start within the given time, at least one.

    The first one does not count: it finds the server's memory and caches as another form left them.
    """
    tally = run_closed_loop(address, [request], connections=1, seconds=seconds, warmup=0.0)
    if set(tally.statuses) != {200}:
        statuses = ", ".join(map(str, tally.statuses))
        raise CannotMeasure(f"status {statuses} where the same request got 200 before; see the server's log")
    return tally.latencies[1:] or tally.latencies


def latency_table(found: Rounds, body_bytes: Mapping[Key, int]) -> Table:
    """Percentiles over all rounds; ratio and its spread from each round's medians over the embedding's."""
    title = "one connection, one text at a time; ratio to the embedding alone of as many tokens, in the same round"
    table = Table("attention_cost", title)
    for (tokens, name), rounds in found.items():
        pairs = zip(rounds, found[tokens, PLAIN], strict=True)
        ratio = Spread.of([float(np.median(own) / np.median(plain)) for own, plain in pairs])
        every = list(chain.from_iterable(rounds))
        cells = {"body_bytes": body_bytes[tokens, name], "requests": len(every)}
        table.add(tokens=tokens, form=name, **percentiles(every), ratio=ratio.median, spread=str(ratio), **cells)
    return table


@program
def cost() -> None:
    """What does each form of attention cost against the embedding alone, in latency and in bytes?

    One service, one connection, one text at a time, every form alternately: layers, rows, formats, reductions,
    statistics, norms, a head mask, and two texts explained. Texts have at most the model's longest length.
    """
    takes = "under a minute; longer where an answer takes seconds"
    parser = parser_of(cost.__doc__, "model", takes=takes, rounds=5, lengths=[128, 512])
    parser.add_argument("--seconds", type=positive, default=35.0, help="of all measurements; slow forms may exceed it")
    arguments = parser.parse_args()
    artifact = Artifact.open(arguments.model)
    texts = make_texts(artifact, arguments.lengths)
    requests = {(n, name): one for n, pair in texts.items() for name, one in make_requests(*pair).items()}
    body_bytes, refused = dict[Key, int](), dict[str, str]()
    with polyhead(arguments.model, ROOM) as server:
        for (tokens, name), request in requests.items():
            try:
                body_bytes[tokens, name] = len(fetch_body(server.address, request))
            except CannotMeasure as error:
                refused[f"{name}, {tokens} tokens"] = str(error)
                print(f"skipping {name}, {tokens} tokens: {error}", flush=True)
        share = arguments.seconds / (len(body_bytes) * (arguments.rounds + 1))
        ways = {key: partial(latencies, server.address, requests[key], share) for key in body_bytes}
        found = in_turns(ways, arguments.rounds)
    described = {"texts": fingerprint(chain.from_iterable(texts.values())), "refused": refused}
    emit("attention cost", [latency_table(found, body_bytes)], precision=artifact.manifest.precision, **described)


@program
def explaining() -> None:
    """What does explaining through the network cost? Processor time of a text, by its tokens, on one thread.

    Random token ids, in the runs that the service cuts a text into. Two texts are explained side by side where there
    are two cores. Several artifacts are measured alternately, such as two versions' of the exporter.
    """
    parser = parser_of(explaining.__doc__, takes="a minute an artifact", rounds=5)
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="artifacts in fp32")
    parser.add_argument("--tokens", type=whole, nargs="+", default=[20, 64, 128], help="lengths of the texts")
    arguments = parser.parse_args()
    artifacts = {str(path): Artifact.open(path) for path in arguments.artifacts}
    for path, artifact in artifacts.items():
        if EXPLAIN_GRAPH not in artifact.manifest.files:
            raise CannotMeasure(f"{path} has no {EXPLAIN_GRAPH}: export it in fp32, without --no-explain")
    decomposers = {path: OnnxDecomposer(artifact) for path, artifact in artifacts.items()}
    smallest = min(artifact.manifest.config.vocab_size for artifact in artifacts.values())
    table = Table("explaining", "explaining a text")
    for tokens in arguments.tokens:
        text = WholeText(np.random.default_rng(tokens).integers(0, smallest, tokens))
        ways = {path: partial(processor_seconds, partial(_explain, found, text)) for path, found in decomposers.items()}
        table.rows += [{"tokens": tokens, **row} for row in compare_seconds(ways, arguments.rounds)]
    emit("attention explaining", [table])


def _explain(decomposer: OnnxDecomposer, text: WholeText) -> None:
    for sources in source_runs(text):
        decomposer.run(text, sources, Cancellation())


@program
def windows() -> None:
    """What do blocks of queries save where layers see a window, by the length of a text?

    Layers of ModernBERT-base's shape with randomly initialised weights, one in three of them seeing the whole text. The
    same graph is run as it is, and with its local layers dense at any length.
    """
    takes = "two minutes; 8,192 tokens want 5 GB of memory"
    parser = parser_of(windows.__doc__, takes=takes, rounds=5, lengths=[512, 1024, 2048, 4096])
    parser.add_argument("--layers", type=whole, default=3, help="of the network")
    arguments = parser.parse_args()
    encoder = encoder_of(draw("modernbert-base", arguments.layers, max(2048, *arguments.lengths)))
    config, graphs = encoder.config, dict(zip(("blocks", "dense"), sessions(encoder), strict=True))
    table = Table("windows", "one text: local layers in blocks, and dense")
    for length in arguments.lengths:
        ids = np.random.default_rng(length).integers(0, config.vocab_size, (1, length))
        inputs = graph_inputs(config, ids, np.array([length]))
        ways = {name: partial(processor_seconds, partial(graph.run, inputs)) for name, graph in graphs.items()}
        table.rows += [{"tokens": length, **row} for row in compare_seconds(ways, arguments.rounds)]
    emit("attention windows", [table], layers=arguments.layers, rounds=arguments.rounds)


def sessions(encoder: Encoder) -> tuple[Session, Session]:
    """The graph as it is exported, and the same one with dense layers; one thread each."""
    model = trace(encoder)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx_ir.save(model, path)
        blocks = Session(path, threads=1)
        for node in model.graph:
            if node.op_type == LOCAL_ATTENTION_OP:
                node.attributes["longest_dense"] = onnx_ir.AttrInt64("longest_dense", 1 << 40)  # tokens
        onnx_ir.save(model, path)
        return blocks, Session(path, threads=1)
