"""What a service promises of runs that are given up, wait or end, with each engine's real graph behind it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model.artifact import ONNX_RUNTIME, OPENVINO, Artifact
from service.batching.batcher import Batcher
from service.batching.jobs import Job
from service.errors import NotReady
from service.inference.backend import Backend, Batch, BatchOutput, Cancellation
from service.inference.openvino_backend import load_backend
from tests.service.batching.test_batcher import begin, worker_threads
from tests.service.fake_backend import PATIENCE
from tests.task_artifacts import LONGEST, TaskArtifact, for_openvino

TEXTS = [[5, 6, 7], [8, 9], [10] * 9, [11]]
LARGE = [[index % 90] * LONGEST for index in range(1000)]  # one run, of a tenth of a second or more
TOLERANCE = 1e-5


class HeldBackend:
    """An engine whose runs begin when a test lets them."""

    def __init__(self, backend: Backend) -> None:
        self.begun = threading.Semaphore(0)
        self.may_run = threading.Event()
        self.is_closed = False
        self._backend = backend

    def run(self, batch: Batch) -> BatchOutput:
        self.begun.release()
        assert self.may_run.wait(PATIENCE)
        return self._backend.run(batch)

    def close(self) -> None:
        self._backend.close()
        self.is_closed = True


@pytest.fixture(scope="module", params=[ONNX_RUNTIME, OPENVINO])
def artifact(
    request: pytest.FixtureRequest, embedder: TaskArtifact, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    if request.param == ONNX_RUNTIME:
        return Artifact.open(embedder.artifact)
    pytest.importorskip("openvino")
    return for_openvino(embedder.artifact, tmp_path_factory.mktemp("engines") / "embedder")


@pytest.fixture
def backend(artifact: Artifact) -> HeldBackend:
    return HeldBackend(load_backend(artifact, workers=2, intra_op_threads=1, provider="cpu"))


@pytest.fixture(scope="module")
def expected(embedder: TaskArtifact) -> list[Any]:
    """The vectors of `TEXTS`, each computed alone by ONNX Runtime."""
    reference = load_backend(Artifact.open(embedder.artifact), workers=1, intra_op_threads=1, provider="cpu")
    return [reference.run(Batch(np.array([ids]), np.array([len(ids)]))).output[0] for ids in TEXTS]


@contextmanager
def running(backend: HeldBackend, **settings: Any) -> Iterator[Batcher]:
    batcher = Batcher(backend, **{"workers": 1, "max_batch_tokens": 10**6, "max_queue_tokens": 10**6, **settings})
    batcher.start()
    try:
        yield batcher
    finally:
        backend.may_run.set()
        batcher.close(PATIENCE)
    assert backend.is_closed


def jobs(texts: list[list[int]]) -> list[Job]:
    return [Job(np.array(ids)) for ids in texts]


async def assert_answers(batcher: Batcher, expected: list[Any]) -> None:
    for result, vector in zip(await batcher.submit(jobs(TEXTS)), expected, strict=True):
        np.testing.assert_allclose(result.output, vector, atol=TOLERANCE)


def test_a_run_is_ended_in_the_middle_and_the_next_one_is_whole(artifact: Artifact) -> None:
    backend = load_backend(artifact, workers=1, intra_op_threads=1, provider="cpu")
    large = Batch(np.array(LARGE), np.full(len(LARGE), LONGEST))

    def run_until_one_is_cancelled() -> None:
        for _ in range(20):  # a busy machine may let a run end before the timer
            cancellation = Cancellation()
            threading.Timer(0.02, cancellation.cancel).start()
            backend.run(replace(large, cancellation=cancellation))

    whole = backend.run(replace(large, cancellation=Cancellation())).output
    with pytest.raises(Exception, match=r"(?i)cancel|terminate"):
        run_until_one_is_cancelled()
    np.testing.assert_allclose(backend.run(large).output, whole, atol=TOLERANCE)


async def test_workers_run_side_by_side(artifact: Artifact, embedder: TaskArtifact) -> None:
    """Some for attention too, which OpenVINO leaves to the other graph."""
    reference = load_backend(Artifact.open(embedder.artifact), workers=1, intra_op_threads=1, provider="cpu")
    texts = [[place % 90] * (1 + place % 9) for place in range(100)]
    backend = HeldBackend(load_backend(artifact, workers=2, intra_op_threads=1, provider="cpu"))
    backend.may_run.set()
    with running(backend, workers=2, max_batch_tokens=64, max_padding=0.4) as batcher:
        asked = [Job(np.array(ids), (0,) if place % 10 == 0 else ()) for place, ids in enumerate(texts)]
        answers = await asyncio.gather(*(batcher.submit([job]) for job in asked))
    for ids, (found,) in zip(texts, answers, strict=True):
        alone = reference.run(Batch(np.array([ids]), np.array([len(ids)]), tuple(found.attentions)))
        np.testing.assert_allclose(found.output, alone.output[0], atol=TOLERANCE)
        for layer, weights in found.attentions.items():
            own = alone.attentions[layer][0, :, : len(ids), : len(ids)]  # a processor may want it longer
            np.testing.assert_allclose(weights, own, atol=TOLERANCE)


async def test_a_request_that_is_given_up_ends_its_run_and_no_other(backend: HeldBackend, expected: list[Any]) -> None:
    with running(backend, workers=2) as batcher:
        given_up = await begin(batcher, *jobs(LARGE))
        assert await asyncio.to_thread(backend.begun.acquire, timeout=PATIENCE)
        other = asyncio.create_task(assert_answers(batcher, expected))
        backend.may_run.set()
        given_up.cancel()
        await other
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await assert_answers(batcher, expected)
        assert batcher.is_alive()


async def test_an_end_that_cannot_wait_ends_the_engines_run(backend: HeldBackend) -> None:
    before = worker_threads()
    with running(backend) as batcher:
        given_up = await begin(batcher, *jobs(LARGE * 4))
        assert await asyncio.to_thread(backend.begun.acquire, timeout=PATIENCE)
        backend.may_run.set()
        await asyncio.to_thread(batcher.close, 0.0)
        with pytest.raises(NotReady):
            await given_up
    assert worker_threads() <= before
