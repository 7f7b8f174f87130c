"""How fast are documents scored against a query, beside Infinity's /rerank and CrossEncoder.predict?

The same cross-encoder for everyone. Over HTTP: `POST /rerank` of this project in each given precision, and of Infinity
in fp32. Without HTTP: sentence-transformers' `CrossEncoder.predict`, one call a query. A request or call holds one
query and its documents. Before anything is timed, everyone's order of documents is compared with the first artifact's.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scipy.stats import spearmanr

from benchmarks.lib.command import CannotMeasure, parser_of, program, whole
from benchmarks.lib.comparison import Way, compare, fetch, over_http, ratios
from benchmarks.lib.load import post
from benchmarks.lib.report import emit
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import load_texts, load_tokenizer
from benchmarks.peers.infinity import INFINITY_ENGINES, start_infinity
from benchmarks.peers.peers import SENTENCE_TRANSFORMERS, add_peer_arguments, opened, start_worker
from benchmarks.peers.worker import Task
from model.artifact import Artifact

SAME_ORDER = 0.9  # Spearman's rho of two lists of scores; int8 stays above it, other documents do not
CROSS_ENCODER = "cross-encoder"


class Question(NamedTuple):
    """A query, its documents, and the tokens of all pairs."""

    query: str
    documents: Sequence[str]
    tokens: int


def make_questions(directory: Path, texts: Sequence[str], documents: int) -> list[Question]:
    """A question for every `documents + 1` texts, the first of them its query."""
    tokenizer = load_tokenizer(Artifact.open(directory))
    questions = []
    for start in range(0, len(texts), documents + 1):
        query, *found = texts[start : start + documents + 1]
        encodings = tokenizer.encode_batch([(query, document) for document in found])
        questions.append(Question(query, found, sum(len(encoding.ids) for encoding in encodings)))
    return questions


def require_same_order(scores: Sequence[float], expected: Sequence[float]) -> None:
    """Compares one question's scores with the first artifact's.

    Raises:
        CannotMeasure: another order.
    """
    rho = float(spearmanr(scores, expected)[0])
    if not rho >= SAME_ORDER:
        raise CannotMeasure(f"the order of documents has a rank correlation of {rho:.3f}, expected {SAME_ORDER}")


@program
def main() -> None:
    """Prepares everyone, measures alternately, prints rates and ratios."""
    takes = "about five minutes on two cores, and before that, once, to install the peers"
    parser = parser_of(__doc__, takes=takes, connections=4, seconds=10.0, rounds=3)
    everyone = (CROSS_ENCODER, *INFINITY_ENGINES)
    add_peer_arguments(parser, everyone, everyone)
    parser.add_argument("--documents", type=whole, default=100, help="of each query")
    parser.add_argument("--queries", type=whole, default=16, help="different ones")
    arguments = parser.parse_args()
    size, ways = arguments.documents, dict[str, Way]()
    with opened(arguments, load_texts("short", arguments.queries * (size + 1))) as run:
        questions = make_questions(arguments.model[0], run.texts, size)
        requests = [
            post("/rerank", {"query": query, "documents": documents}, texts=size, tokens=tokens)  # as both take it
            for query, documents, tokens in questions
        ]
        expected: list[float] = []

        def served(name: str, server: Server) -> dict[str, Way]:
            results = sorted(fetch(server.address, requests[0])["results"], key=lambda item: int(item["index"]))
            scores = [item["relevance_score"] for item in results]
            require_same_order(scores, expected or scores)
            expected[:] = expected or scores
            return {f"{name}, HTTP": over_http(server, requests, arguments.connections, arguments.seconds)}

        def peer_ways(name: str) -> dict[str, Way]:
            if name != CROSS_ENCODER:
                return served(f"Infinity {name}", start_infinity(run, name, "text-classification"))
            documents = [document for one in questions for document in one.documents]
            queries = [one.query for one in questions for _ in one.documents]
            plan = [list(range(start, start + size)) for start in range(0, len(documents), size)]
            tokens = [[0] * one.tokens for one in questions]  # only counted
            cores = len(os.sched_getaffinity(0))
            task = Task(str(run.weights), cores, documents, tokens, {"predict": plan}, queries=queries)
            worker = start_worker(run.prepare(SENTENCE_TRANSFORMERS), "cross_encoder", task)
            peer = run.stack.enter_context(worker)
            require_same_order(peer.vectors(range(size))[:, 0].tolist(), expected)
            return peer.ways("CrossEncoder")

        for precision, directory in run.artifacts.items():
            ways |= served(f"Polyhead {precision}", run.stack.enter_context(polyhead(directory, {})))
        for name in arguments.peers:
            ways |= run.attempt(name, partial(peer_ways, name))
        table = compare(f"{size} documents a query; a request is a query, texts are documents", ways, arguments.rounds)
    others = [("CrossEncoder",), *((f"Infinity {engine}",) for engine in INFINITY_ENGINES)]
    pairs = [((f"Polyhead {precision}",), other) for precision in run.artifacts for other in others]
    emit("peers rerank", [table, ratios("tokens/s over tokens/s", pairs, table)], **run.described())
