"""What does each form of attention cost against the embedding alone, in latency and in bytes?

One service, one connection, one text at a time, every form alternately: layers, rows, formats, reductions, statistics,
norms, a head mask, and two texts explained.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.lib.command import CannotMeasure, parser_of, positive, program, whole
from benchmarks.lib.comparison import ENCODE, fetch, fetch_body
from benchmarks.lib.load import Address, Request, post, run_closed_loop
from benchmarks.lib.report import Spread, Table, emit, in_turns, percentiles
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import fingerprint, load_texts, load_tokenizer
from model.artifact import Artifact
from service.http.response import SAFETENSORS

CORPUS_TEXTS = 200  # whose words fill the texts
PLAIN = "embedding alone"
AGAIN = "embedding alone, again"  # the same request at a round's end: its ratio says how far to trust the others
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
    "last layer, words": {"layers": "last", "level": "word"},
    "last layer, top_k 5": {"layers": "last", "top_k": 5},
    "last layer, stats": {"layers": "last", "form": "stats"},
    "last layer, norms": {"layers": "last", "form": "norms"},
    "all layers, mean over heads": {"layers": "all", "reduce": "mean"},
    "all layers, rollout": {"layers": "all", "reduce": "rollout"},
    "all layers, stats": {"layers": "all", "form": "stats"},
    "all layers, norms": {"layers": "all", "form": "norms"},
}

Key = tuple[int, str]  # tokens and form
Rounds = Mapping[Key, Sequence[Sequence[float]]]


def text_of_tokens(tokenizer: Tokenizer, words: Sequence[str], count: int) -> str:
    """The words that fit, joined: a text of exactly N tokens, special ones included.

    Raises:
        CannotMeasure: no text is as short as that.
    """
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
    words = list(chain.from_iterable(text.split() for text in load_texts("short", CORPUS_TEXTS)))
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
        requests[name] = _attention(text, {"layers": layers}, written)
    norms = {"layers": "all", "form": "norms"}
    requests["all layers, norms, safetensors float32"] = _attention(text, norms, "safetensors float32")
    requests |= {name: _attention(text, asked, "JSON") for name, asked in REDUCED.items()}
    return requests | {AGAIN: requests[PLAIN]}


def _attention(text: str, asked: Mapping[str, Any], written: str) -> Request:
    encoding_format, accept = WRITTEN[written]
    return _encode(text, accept=accept, encoding_format=encoding_format, attention=asked)


def _encode(inputs: str | list[str], *, accept: str = "*/*", **asked: Any) -> Request:
    """Without the model's default prompt, whose tokens would count."""
    return post(ENCODE, {"inputs": inputs, "prompt": "", **asked}, accept=accept)


def latencies(address: Address, request: Request, seconds: float) -> list[float]:
    """Seconds of each answer, of as many as start within the given time, at least one.

    The first one does not count: it finds the server's memory and caches as another form left them.

    Raises:
        CannotMeasure: a status other than 200.
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
def main() -> None:
    """Asks for every form once, leaves out what the service refuses, measures the others alternately, prints."""
    parser = parser_of(__doc__, "model", takes="under a minute; longer where an answer takes seconds", rounds=5)
    parser.add_argument("--seconds", type=positive, default=35.0, help="of all measurements; slow forms may exceed it")
    parser.add_argument(
        "--lengths", type=whole, nargs="+", default=[128, 512], help="tokens of the texts, at most the model's longest"
    )
    arguments = parser.parse_args()
    artifact = Artifact.open(arguments.model)
    texts = make_texts(artifact, arguments.lengths)
    requests = {(n, name): one for n, pair in texts.items() for name, one in make_requests(*pair).items()}
    body_bytes, refused = dict[Key, int](), dict[str, str]()
    with polyhead(arguments.model, ROOM) as server:
        for (tokens, name), request in requests.items():
            if name == PLAIN and (counted := fetch(server.address, request)["usage"]["tokens"]) != tokens:
                raise CannotMeasure(f"the service counts {counted} tokens, expected {tokens}")
            try:
                body_bytes[tokens, name] = len(fetch_body(server.address, request))
            except CannotMeasure as error:
                refused[f"{name}, {tokens} tokens"] = str(error)
                print(f"skipping {name}, {tokens} tokens: {error}", flush=True)
        share = arguments.seconds / (len(body_bytes) * (arguments.rounds + 1))
        ways = {key: partial(latencies, server.address, requests[key], share) for key in body_bytes}
        found = in_turns(ways, arguments.rounds)
    described = {"texts": fingerprint(chain.from_iterable(texts.values())), "refused": refused}
    table = latency_table(found, body_bytes)
    emit("attention cost", [table], precision=artifact.manifest.precision, **described)
