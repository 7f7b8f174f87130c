"""What does each form of attention cost against the embedding alone, in latency and in bytes?

One service, one connection, one text at a time, every form alternately: layers, rows, formats, reductions, statistics,
norms, a head mask, and two texts explained.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np
import uvloop

from benchmarks.lib.command import CannotMeasure, parser_of, positive, program, whole
from benchmarks.lib.comparison import ENCODE, fetch, fetch_body
from benchmarks.lib.load import Connection, Request, post
from benchmarks.lib.report import Spread, Table, emit, in_turns, percentiles
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, load_tokenizer, text_of_tokens
from model.artifact import TOKENIZER, Artifact
from service.http.response import SAFETENSORS

CORPUS_TEXTS = 200  # whose words fill the texts
PLAIN = "embedding alone"
AGAIN = "embedding alone, again"  # the same request at a round's end: its ratio says how far to trust the others
# All layers of a large network at 512 tokens are 151 MB.
ROOM = dict.fromkeys(("POLYHEAD_MAX_ATTENTION_BYTES", "POLYHEAD_MAX_ATTENTION_WORK_BYTES"), str(1 << 30))
WRITTEN: Mapping[str, tuple[str, str | None]] = {  # encoding_format and Accept
    "JSON": ("float", None),
    "base64": ("base64", None),
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


async def latencies(connection: Connection, request: Request, seconds: float) -> list[float]:
    """Seconds of each answer on a connection, of as many as start within the given time, at least one.

    One more goes before them: it finds the server's memory and caches as another form left them.

    Raises:
        CannotMeasure: a status other than 200.
    """

    async def ask() -> float:
        sent = time.perf_counter()
        response = await connection.send(request.data)
        if response.status != 200:
            raise CannotMeasure(f"status {response.status} where the same request got 200 before; see the server's log")
        return time.perf_counter() - sent

    found: list[float] = []
    await ask()
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        found.append(await ask())
    return found


@dataclass
class Forms:
    """The requests by tokens and form, and the result of sending each once.

    Attributes:
        requests: that the service answers.
        body_bytes: of each one's answer.
        refused: why the others are not measured.
    """

    requests: dict[Key, Request]
    body_bytes: dict[Key, int]
    refused: dict[str, str]


def make_texts(artifact: Artifact, lengths: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Two texts of exactly each length in tokens, at most the longest that the model takes.

    Raises:
        CannotMeasure: no text is as short as that.
    """
    longest = artifact.manifest.max_sequence_length
    tokenizer = load_tokenizer(artifact.path(TOKENIZER), longest + 1)
    words = list(chain.from_iterable(text.split() for text in load_texts("short", CORPUS_TEXTS)))
    halves = words[: len(words) // 2], words[len(words) // 2 :]
    counts = sorted({min(length, longest) for length in lengths})
    try:
        return {n: (text_of_tokens(tokenizer, halves[0], n), text_of_tokens(tokenizer, halves[1], n)) for n in counts}
    except ValueError as error:
        raise CannotMeasure(f"--lengths: {error}") from error


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


def ask_once(server: Server, texts: Mapping[int, tuple[str, str]]) -> Forms:
    """Sends every request once; a form that the service or its artifact refuses is left out, with a word.

    Raises:
        CannotMeasure: no embedding, or not of as many tokens as the text should have.
    """
    forms = Forms({}, {}, {})
    for tokens, pair in texts.items():
        requests = make_requests(*pair)
        if (counted := fetch(server, requests[PLAIN])["usage"]["tokens"]) != tokens:
            raise CannotMeasure(f"the service counts {counted} tokens, expected {tokens}: is it of the same artifact?")
        for name, request in requests.items():
            try:
                forms.body_bytes[tokens, name] = len(fetch_body(server, request))
                forms.requests[tokens, name] = request
            except CannotMeasure as error:
                forms.refused[f"{name}, {tokens} tokens"] = str(error)
                print(f"skipping {name}, {tokens} tokens: {error}", flush=True)
    return forms


def measure(server: Server, forms: Forms, rounds: int, seconds: float) -> dict[Key, list[list[float]]]:
    """Latencies of every form, by round, one request at a time."""
    share = seconds / (len(forms.requests) * (rounds + 1))
    connection = Connection(server.address)

    def way(request: Request) -> list[float]:
        return runner.run(latencies(connection, request, share))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = in_turns({key: partial(way, request) for key, request in forms.requests.items()}, rounds)
        connection.close()
    return found


def latency_table(found: Mapping[Key, Sequence[Sequence[float]]], body_bytes: Mapping[Key, int]) -> Table:
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
    """Asks for every form once, measures them alternately, prints."""
    parser = parser_of(__doc__, "model", "set", takes="under a minute; longer where an answer takes seconds", rounds=5)
    parser.add_argument("--seconds", type=positive, default=35.0, help="of all measurements; slow forms may exceed it")
    parser.add_argument(
        "--lengths", type=whole, nargs="+", default=[128, 512], help="tokens of the texts, at most the model's longest"
    )
    arguments = parser.parse_args()
    settings = {**ROOM, **dict(arguments.set)}
    artifact = Artifact.open(arguments.model)
    texts = make_texts(artifact, arguments.lengths)
    with polyhead(arguments.model, settings) as server:
        forms = ask_once(server, texts)
        print(f"{len(forms.requests)} forms, {arguments.rounds} rounds and one of warm-up", flush=True)
        found = measure(server, forms, arguments.rounds, arguments.seconds)
    described = {"server_settings": settings, "precision": artifact.manifest.precision, "refused": forms.refused}
    of_texts = fingerprint(chain.from_iterable(texts.values()))
    emit("attention cost", [latency_table(found, forms.body_bytes)], texts=of_texts, **described)


def _attention(text: str, asked: Mapping[str, Any], written: str) -> Request:
    encoding_format, accept = WRITTEN[written]
    return _encode(text, accept=accept, encoding_format=encoding_format, attention=asked)


def _encode(inputs: str | list[str], *, accept: str | None = None, **asked: Any) -> Request:
    """Without the model's default prompt, whose tokens would count."""
    return post(ENCODE, {"inputs": inputs, "prompt": "", **asked}, accept=accept)
