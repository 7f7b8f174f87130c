"""Scores of pairs and labels of texts, beside those of other engines and servers."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import spearmanr

from benchmarks.lib.command import TEXTS, CannotMeasure, parser_of, program, whole
from benchmarks.lib.comparison import Way, compare, fetch, over_http, ratios
from benchmarks.lib.load import post
from benchmarks.lib.report import Spread, Table, emit, in_turns
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import load_texts, load_tokenizer
from benchmarks.peers.peers import (
    INFINITY_ENGINES,
    SENTENCE_TRANSFORMERS,
    add_peer_arguments,
    opened,
    start_infinity,
    start_worker,
)
from benchmarks.peers.workers import Task, pull
from model.artifact import Artifact
from polyhead import Engine

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
    """Raises `CannotMeasure` if one question's scores have another order than the first artifact's."""
    rho = float(spearmanr(scores, expected)[0])
    if not rho >= SAME_ORDER:
        raise CannotMeasure(f"the order of documents has a rank correlation of {rho:.3f}, expected {SAME_ORDER}")


@program
def rerank() -> None:
    """How fast are documents scored against a query, beside Infinity's /rerank and CrossEncoder.predict?

    The same cross-encoder for everyone. Over HTTP: `POST /rerank` of this project in each given precision, and of
    Infinity in fp32. Without HTTP: sentence-transformers' `CrossEncoder.predict`, one call a query. A request or call
    holds one query and its documents. Before anything is timed, everyone's order of documents is compared with the
    first artifact's.
    """
    takes = "about five minutes on two cores, and before that, once, to install the peers"
    parser = parser_of(rerank.__doc__, takes=takes, connections=4, seconds=10.0, rounds=3)
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


LABELS = ("politics", "sports", "software", "weather")
PIPELINE = "transformers' pipeline"
CLOSE = 1e-3  # of fp32 scores
BATCH = 32  # texts of a call
Answers = list[list[tuple[Any, float]]]  # of each text: labels, or entities with their places, and scores
Label = Callable[[Sequence[str]], Answers]


def label_of(engine: Engine) -> Label:
    """Labels by an artifact."""
    if engine.manifest.task == "token_classification":
        return lambda texts: _of_entities(engine.entities(list(texts), aggregation="first"))
    return lambda texts: [list(zip(*found, strict=True)) for found in engine.zero_shot(list(texts), list(LABELS))]


def pipeline_of(task: str, folder: Path) -> Label:
    """The same by the pipeline of a checkpoint."""
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    if task == "token_classification":
        entities: Any = pipeline("token-classification", str(folder), device="cpu", aggregation_strategy="first")
        return lambda texts: _of_entities(entities(list(texts), batch_size=len(texts)))
    zero_shot: Any = pipeline("zero-shot-classification", str(folder), device="cpu")
    return lambda texts: [
        list(zip(found["labels"], found["scores"], strict=True))
        for found in zero_shot(list(texts), list(LABELS), batch_size=len(texts))
    ]


def _of_entities(answers: Any) -> Answers:
    return [
        [((one["entity_group"], one["start"], one["end"]), float(one["score"])) for one in answer] for answer in answers
    ]


def require_same(found: Answers, expected: Answers) -> None:
    """Raises `CannotMeasure` if a text has other labels, or other scores."""
    for ours, theirs in zip(found, expected, strict=True):
        is_same = [name for name, _ in ours] == [name for name, _ in theirs]
        if not is_same or any(abs(one[1] - other[1]) > CLOSE for one, other in zip(ours, theirs, strict=True)):
            raise CannotMeasure(f"{ours} where the pipeline answers {theirs}")


@program
def labels() -> None:
    """How fast are texts labelled, compared with the pipelines of `transformers`?

    Without HTTP, in one process and in turns: entities of a model that labels tokens, or zero-shot labels of a model of
    natural language inference. A call holds all texts of a batch, and the pipeline gets them as one batch, too. Before
    anything is timed, the answers of the fp32 artifacts are compared with the pipeline's.
    """
    parser = parser_of(labels.__doc__, takes="a minute", **TEXTS)
    parser.add_argument("folder", type=Path, help="the checkpoint, which the pipeline reads")
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="its exports")
    arguments = parser.parse_args()
    engines = [Engine.load(path) for path in arguments.artifacts]
    texts = load_texts("short", arguments.texts)
    batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
    ways = {PIPELINE: pipeline_of(engines[0].manifest.task, arguments.folder)}
    for engine in engines:
        ways[f"Polyhead {engine.manifest.precision}"] = label = label_of(engine)
        if engine.manifest.precision == "fp32":
            require_same(label(batches[0]), ways[PIPELINE](batches[0]))
    measured = in_turns({name: partial(pull, way, batches, 1) for name, way in ways.items()}, arguments.rounds)
    table = Table("labels", f"labels, {BATCH} texts a call")
    spreads = {
        name: (Spread.of([one.seconds for one in passes]), Spread.of([one.cpu_seconds for one in passes]))
        for name, passes in measured.items()
    }
    of_pipeline, spent_by_pipeline = spreads[PIPELINE]
    for name, (seconds, spent) in spreads.items():
        table.add(
            way=name,
            texts_per_s=len(texts) / seconds.median,
            spread=str(seconds),
            over_pipeline=of_pipeline.median / seconds.median,
            cpu_ms_a_text=1000 * spent.median / len(texts),
            cpu_saved=spent_by_pipeline.median / spent.median,
        )
    emit("peers labels", [table])
