"""How fast are documents scored against a query, beside Infinity's /rerank and CrossEncoder.predict?

The same cross-encoder for everyone. Over HTTP: `POST /rerank` of this project in each given precision, and of Infinity
in fp32. Without HTTP: sentence-transformers' `CrossEncoder.predict`, one call a query. A request or call holds one
query and its documents. Before anything is timed, everyone's order of documents is compared with the first artifact's.
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scipy.stats import spearmanr

from benchmarks.lib.command import CannotMeasure, parser_of, program, whole
from benchmarks.lib.comparison import Way, compare, fetch, over_http, ratios, resumed
from benchmarks.lib.engines import checkpoint_folder
from benchmarks.lib.load import Request, post
from benchmarks.lib.report import emit
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, load_tokenizer
from benchmarks.peers.infinity import INFINITY_ENGINES, start_infinity
from benchmarks.peers.peers import SENTENCE_TRANSFORMERS, Peers, add_peer_arguments, start_worker
from benchmarks.peers.worker import Task
from model.artifact import TOKENIZER, Artifact

SAME_ORDER = 0.9  # Spearman's rho of two lists of scores; int8 stays above it, other documents do not
PEERS = ("cross-encoder", *INFINITY_ENGINES)
CROSS_ENCODER = "CrossEncoder.predict"


@dataclass(frozen=True, slots=True)
class Question:
    """A query, its documents, and the tokens of all pairs."""

    query: str
    documents: Sequence[str]
    tokens: int

    def request(self) -> Request:
        """`POST /rerank` in Infinity's form, which both servers take."""
        body = {"query": self.query, "documents": list(self.documents)}
        return post("/rerank", body, texts=len(self.documents), tokens=self.tokens)


def make_questions(artifact: Artifact, texts: Sequence[str], documents: int) -> list[Question]:
    """A question for every `documents + 1` texts, the first of them its query."""
    tokenizer = load_tokenizer(artifact.path(TOKENIZER), artifact.manifest.max_sequence_length)
    questions = []
    for start in range(0, len(texts) - documents, documents + 1):
        query, *found = texts[start : start + documents + 1]
        encodings = tokenizer.encode_batch([(query, document) for document in found])
        questions.append(Question(query, found, sum(len(encoding.ids) for encoding in encodings)))
    return questions


def require_same_order(scores: Sequence[float], expected: Sequence[float]) -> None:
    """Compares one question's scores with the first artifact's.

    Raises:
        CannotMeasure: another number of scores, or another order.
    """
    if len(scores) != len(expected):
        raise CannotMeasure(f"{len(scores)} scores, expected {len(expected)}")
    rho = float(spearmanr(scores, expected)[0])
    if not rho >= SAME_ORDER:
        raise CannotMeasure(f"the order of documents has a rank correlation of {rho:.3f}, expected {SAME_ORDER}")


@dataclass
class Rerankers:
    """Everyone who scores the same questions; `expected` is set by the first."""

    arguments: argparse.Namespace
    peers: Peers
    weights: Path
    questions: list[Question]
    expected: list[float] | None = None

    def check(self, scores: list[float]) -> None:
        """Keeps the first scores and compares all others with them."""
        self.expected = self.expected or scores
        require_same_order(scores, self.expected)

    def service_ways(self, directory: Path, precision: str) -> dict[str, Way]:
        """This project's service."""
        server = self.peers.stack.enter_context(polyhead(directory, {}))
        return self._http_ways(f"Polyhead {precision}", server)

    def infinity_ways(self, engine: str) -> dict[str, Way]:
        """Infinity's server with one of its engines."""
        server = start_infinity(self.peers, self.weights, engine, "text-classification")
        return self._http_ways(f"Infinity {engine}", server)

    def cross_encoder_ways(self) -> dict[str, Way]:
        """sentence-transformers without HTTP."""
        documents = [document for one in self.questions for document in one.documents]
        queries = [one.query for one in self.questions for _ in one.documents]
        size = len(self.questions[0].documents)
        plan = [list(range(start, start + size)) for start in range(0, len(documents), size)]
        tokens = [[0] * one.tokens for one in self.questions]  # only counted
        cores = len(os.sched_getaffinity(0))
        task = Task(str(self.weights), cores, documents, tokens, {"predict": plan}, queries=queries)
        worker = start_worker(self.peers.prepare(SENTENCE_TRANSFORMERS), "cross_encoder", task)
        peer = self.peers.stack.enter_context(worker)
        self.check(peer.vectors(range(size))[:, 0].tolist())
        return peer.ways("CrossEncoder")

    def _http_ways(self, name: str, server: Server) -> dict[str, Way]:
        requests = [question.request() for question in self.questions]
        results = sorted(fetch(server, requests[0])["results"], key=lambda item: int(item["index"]))
        self.check([item["relevance_score"] for item in results])
        way = over_http(server, requests, self.arguments.connections, self.arguments.seconds)
        server.pause()
        return {f"{name}, HTTP": partial(resumed, server, way)}


@program
def main() -> None:
    """Prepares everyone, measures alternately, prints rates and ratios."""
    takes = "about five minutes on two cores, and before that, once, to install the peers"
    parser = parser_of(__doc__, takes=takes, connections=4, seconds=10.0, rounds=3)
    add_peer_arguments(parser)
    parser.add_argument("--peers", choices=PEERS, nargs="+", default=PEERS, help="who is measured, Infinity by engine")
    parser.add_argument("--documents", type=whole, default=100, help="of each query")
    parser.add_argument("--queries", type=whole, default=16, help="different ones")
    arguments = parser.parse_args()
    artifacts = [Artifact.open(directory) for directory in arguments.model]
    folders = [checkpoint_folder(arguments.weights, artifact) for artifact in artifacts]
    texts = load_texts("short", arguments.queries * (arguments.documents + 1))
    precisions = [artifact.manifest.precision for artifact in artifacts]
    with ExitStack() as stack:
        peers = Peers(stack)
        questions = make_questions(artifacts[0], texts, arguments.documents)
        rerankers = Rerankers(arguments, peers, folders[0].path, questions)
        ways: dict[str, Way] = {}
        for directory, precision in zip(arguments.model, precisions, strict=True):
            ways |= rerankers.service_ways(directory, precision)
        if "cross-encoder" in arguments.peers:
            ways |= peers.attempt(CROSS_ENCODER, rerankers.cross_encoder_ways)
        for engine in (name for name in INFINITY_ENGINES if name in arguments.peers):
            ways |= peers.attempt(f"Infinity {engine}", partial(rerankers.infinity_ways, engine))
        title = f"{arguments.documents} documents a query; a request is a query, texts are documents"
        table = compare(title, ways, arguments.rounds)
    others = [("CrossEncoder",), *((f"Infinity {engine}",) for engine in INFINITY_ENGINES)]
    pairs = [((f"Polyhead {precision}",), other) for precision in precisions for other in others]
    ratio = ratios("ratios", "tokens/s over tokens/s", pairs, table)
    emit("peers rerank", [table, ratio], peers=peers.versions, skipped=peers.skipped, texts=fingerprint(texts))
