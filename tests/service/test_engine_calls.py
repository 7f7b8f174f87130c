"""Calls of any size from any thread: cut in parts, given up, and what closing an engine leaves of them."""

import gc
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from polyhead import Engine
from service.batching.jobs import JobResult
from service.errors import InferenceFailed, NotReady
from service.local.calls import PART_TOKENS, PARTS_AT_ONCE, PORTION_TEXTS
from service.settings import Settings
from tests.service.fake_engine import MAX_LENGTH, FakeBackend, load_fake_engine
from tests.service.process import wait_until
from tests.service.routes.test_encode import expected_vector, ids_of
from tests.service.test_engine import TEXT, random_texts

QUEUED_TOKENS = PARTS_AT_ONCE * PART_TOKENS


def test_what_the_model_returned_is_let_go_of_run_by_run(engine: Engine) -> None:
    held: list[int] = []

    def count(_: int) -> None:
        held.append(sum(isinstance(found, JobResult) for found in gc.get_objects()))

    engine.encode(random_texts(4 * PORTION_TEXTS), progress=count, attention={})
    assert held[-1] <= 2 * PORTION_TEXTS  # its own, and what a worker just ran


@pytest.mark.parametrize("output", ["pooled", "tokens"])
def test_parts_of_a_call_come_in_the_order_of_its_inputs(
    settings: Settings, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = random_texts(37)  # of which no portion is a multiple
    texts = (few * PORTION_TEXTS)[: 3 * PORTION_TEXTS]
    options: dict[str, Any] = {"attention": {"level": "word"}, "prompt": "a ", "output": output}
    monkeypatch.setattr("service.local.calls.PART_TOKENS", 10 * MAX_LENGTH)
    done: list[int] = []
    with load_fake_engine(settings) as engine:
        together = engine.encode(texts, progress=done.append, **options)
        alone = [engine.encode(text, **options) for text in few]
    assert (sum(done), len(done) > 3) == (len(texts), True)
    for index in range(len(texts)):
        expected = alone[index % len(few)]
        np.testing.assert_allclose(together.embeddings[index], expected.embeddings[0], rtol=1e-5, atol=1e-6)
        assert together.items[index] == expected.items[0]
        assert together.attention is not None
        assert expected.attention is not None
        np.testing.assert_equal(together.attention[index], expected.attention[0])
    assert together.prompt == alone[0].prompt == "a "


def test_the_queue_never_holds_more_than_its_share(engine: Engine, backend: FakeBackend) -> None:
    backend.gate.clear()
    most: list[int] = []
    texts = ["cat " * MAX_LENGTH] * (2 * QUEUED_TOKENS // MAX_LENGTH)
    thread = threading.Thread(target=lambda: engine.encode(texts))
    thread.start()
    wait_until(lambda: engine._runner.batcher.queued_tokens >= QUEUED_TOKENS // 2)
    for _ in range(50):
        most.append(engine._runner.batcher.queued_tokens)
        threading.Event().wait(0.002)
    backend.gate.set()
    thread.join(30)
    assert not thread.is_alive()
    assert max(most) <= QUEUED_TOKENS


def test_a_call_that_fails_runs_nothing_more(engine: Engine, backend: FakeBackend) -> None:
    backend.fails, backend.seconds = True, 0.001
    done: list[int] = []
    with pytest.raises(InferenceFailed) as caught:
        engine.encode(["slow", *["cat " * (MAX_LENGTH - 2)] * (4 * QUEUED_TOKENS // MAX_LENGTH)], progress=done.append)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert sum(done) <= QUEUED_TOKENS // MAX_LENGTH
    assert engine.encode(TEXT).items == [{"tokens": 5, "truncated": False}]


def test_a_failing_callback_fails_the_call(engine: Engine) -> None:
    done: list[int] = []
    with pytest.raises(ZeroDivisionError):
        engine.encode(random_texts(3 * PORTION_TEXTS), progress=lambda count: done.append(count // 0))


def test_a_callback_that_closes_the_engine_ends_its_call(settings: Settings, backend: FakeBackend) -> None:
    engine = load_fake_engine(settings, backend)
    with pytest.raises(NotReady, match="^the engine was closed$"):
        engine.encode(random_texts(20 * PORTION_TEXTS), progress=lambda _: engine.close())
    assert backend.is_closed


def test_a_callback_that_calls_the_engine_is_refused(engine: Engine) -> None:
    refused: list[str] = []

    def call() -> None:
        with pytest.raises(NotReady) as caught:
            engine.encode(TEXT, progress=lambda _: engine.encode(TEXT))
        refused.append(str(caught.value))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    assert refused == ["`progress` is called on the engine's own thread: call the engine from another one"]


def test_a_call_for_which_the_system_has_no_thread_fails_and_the_next_one_runs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refused:
        refused.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            engine.encode(TEXT)
    items: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: items.extend(engine.encode(TEXT).items), daemon=True)
    thread.start()
    thread.join(10)
    assert items == [{"tokens": 5, "truncated": False}]


@pytest.mark.parametrize(
    ("texts", "is_held"),  # those that wait, and those that are still tokenised
    [(random_texts(3000), True), (["the cat sat on the mat " * 8] * (2 * QUEUED_TOKENS // MAX_LENGTH), False)],
    ids=["waits", "tokenises"],
)
def test_closing_ends_a_call(settings: Settings, backend: FakeBackend, texts: list[str], is_held: bool) -> None:
    engine = load_fake_engine(settings, backend)
    backend.seconds = 0.0 if is_held else 0.01
    if is_held:
        backend.gate.clear()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(engine.encode, texts)
        wait_until(lambda: bool(backend.batches))
        assert engine.close(timeout=0.1 if is_held else 30) != is_held
        backend.gate.set()
        with pytest.raises(NotReady, match="^the engine was closed$"):
            call.result(30)


def test_closing_answers_every_call_that_was_queued_and_takes_no_more(settings: Settings, backend: FakeBackend) -> None:
    engine = load_fake_engine(settings, backend)
    backend.gate.clear()
    with ThreadPoolExecutor(5) as threads:
        calls = [
            threads.submit(lambda count=count: engine.encode([TEXT] * count, attention={}))  # type: ignore[misc]
            for count in (1, 20, 50)
        ]
        batcher = engine._runner.batcher
        wait_until(lambda: sum(len(batch.lengths) for batch in backend.batches) + batcher.queued_texts >= 71)
        closing = [threads.submit(engine.close) for _ in range(2)]  # the second does not cut the first short
        wait_until(lambda: not engine._runner.is_alive())
        with pytest.raises(NotReady, match="the engine is closed"):
            engine.encode(TEXT)
        backend.gate.set()
        assert all(close.result(30) for close in closing)
        assert [len(call.result(30).items) for call in calls] == [1, 20, 50]


def test_a_callback_that_never_returns_keeps_no_engine_open(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.local.call_loop.STOP_SECONDS", 0.05)
    stuck, free = threading.Event(), threading.Event()

    def block(_: int) -> None:
        stuck.set()
        assert free.wait(30)

    call = threading.Thread(target=lambda: engine.encode(TEXT, progress=block))
    call.start()
    assert stuck.wait(30)
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(5)
    is_open = closing.is_alive()
    free.set()
    for thread in (call, closing):
        thread.join(30)
    assert not is_open


def test_an_interrupted_call_leaves_nothing_in_the_queue(
    engine: Engine, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.gate.clear()
    caller, result = threading.get_ident(), Future.result

    def interrupted(future: Future[Any], timeout: float | None = None) -> Any:
        """Does what Ctrl-C does while the caller waits; a real signal would reach the tests' own process."""
        if threading.get_ident() != caller:
            return result(future, timeout)
        wait_until(lambda: bool(backend.batches))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.encode(random_texts(3 * PORTION_TEXTS))
    wait_until(lambda: not engine._runner.batcher.queued_texts)
    backend.gate.set()


def test_threads_share_one_engine(engine: Engine, backend: FakeBackend) -> None:
    backend.seconds = 0.001
    texts = random_texts(40)
    expected = np.array([expected_vector(ids_of(text)) for text in texts])
    with ThreadPoolExecutor(8) as threads:
        for encoded in threads.map(lambda _: engine.encode(texts), range(24)):
            np.testing.assert_allclose(encoded.embeddings, expected, rtol=1e-5, atol=1e-6)
