"""The encoder as a Python object, over a fake backend: any number of texts, from any thread, until it is closed."""

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from operator import methodcaller
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from polyhead import Engine
from service.batching.jobs import JobResult
from service.errors import InferenceFailed, Invalid, NotReady, TooLarge, WrongTask
from service.local.calls import PART_TOKENS, PARTS_AT_ONCE, PORTION_TEXTS
from service.local.options import AttentionOptions
from service.settings import Settings
from tests.service.conftest import Served
from tests.service.fake_engine import CLS, HIDDEN_SIZE, MAX_LENGTH, SEP, VOCABULARY, FakeBackend, load_fake_engine
from tests.service.process import wait_until
from tests.service.routes.test_encode import expected_vector, ids_of

QUEUED_TOKENS = PARTS_AT_ONCE * PART_TOKENS
ROOT = Path(__file__).parents[2]
TEXT = "the cat sat"


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def engine(settings: Settings, backend: FakeBackend) -> Iterator[Engine]:
    with load_fake_engine(settings, backend) as loaded:
        yield loaded


def random_texts(count: int) -> list[str]:
    words = np.random.default_rng(0).choice(VOCABULARY[4:11], (count, 6))
    return [" ".join(row[: 1 + index % 6]) for index, row in enumerate(words)]


TEXTS = random_texts(600)


def test_it_answers_as_http_does(engine: Engine, served: Served) -> None:
    attention: AttentionOptions = {"layers": [1, 0], "heads": [1], "level": "word"}
    encoded = engine.encode([TEXT, ""], attention=attention, dimensions=5)
    answer = served.encode({"inputs": [TEXT, ""], "attention": attention, "dimensions": 5}).json()
    assert isinstance(encoded.embeddings, np.ndarray)
    np.testing.assert_array_equal(encoded.embeddings, np.array(answer["embeddings"], np.float32))
    assert (encoded.kind, encoded.labels, encoded.items) == ("embeddings", (), answer["items"])
    assert encoded.attention is not None
    for found, expected in zip(encoded.attention, answer["attention"], strict=True):
        assert found["words"] == expected["words"]
        for maps, wanted in zip(found["weights"], expected["weights"], strict=True):
            np.testing.assert_array_equal(maps, np.array(wanted, np.float32))


def test_more_texts_than_a_request_may_have(engine: Engine, backend: FakeBackend) -> None:
    texts = random_texts(2 * PORTION_TEXTS + 7)
    done: list[int] = []
    encoded = engine.encode(texts, progress=done.append)
    expected = np.array([expected_vector(ids_of(text)) for text in texts])
    np.testing.assert_allclose(encoded.embeddings, expected, rtol=1e-5, atol=1e-6)
    assert sum(done) == len(texts)
    assert len(done) == 3


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
    with load_fake_engine(settings) as engine:
        together, alone = engine.encode(texts, **options), [engine.encode(text, **options) for text in few]
    for index in range(len(texts)):
        expected = alone[index % len(few)]
        np.testing.assert_allclose(together.embeddings[index], expected.embeddings[0], rtol=1e-5, atol=1e-6)
        assert together.items[index] == expected.items[0]
        assert together.attention is not None
        assert expected.attention is not None
        np.testing.assert_equal(together.attention[index], expected.attention[0])
    assert together.prompt == alone[0].prompt == "a "


def test_no_texts(engine: Engine) -> None:
    encoded = engine.encode([], attention={})
    assert isinstance(encoded.embeddings, np.ndarray)
    assert (encoded.embeddings.shape, encoded.items, encoded.attention) == ((0, HIDDEN_SIZE), [], [])
    assert engine.encode([], output="tokens").embeddings == []


def test_inputs_come_in_what_python_holds_them_in(engine: Engine) -> None:
    of_texts, of_ids = [expected_vector(ids_of(text)) for text in (TEXT, "cat")], [expected_vector([CLS, 5, SEP])]
    texts = (np.array([TEXT, "cat"]), iter((TEXT, "cat")), [np.str_(TEXT), "cat"])
    columns = (Series([TEXT, "cat"]), ArrowArray([TEXT, "cat"]))
    ids = ([(CLS, 5, SEP)], np.array([[CLS, 5, SEP]]), [np.array([CLS, 5, SEP])])
    pairs: list[tuple[Any, Any]] = [*((one, of_texts) for one in (*texts, *columns)), *((one, of_ids) for one in ids)]
    for inputs, expected in pairs:
        found = engine.encode(inputs).embeddings
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=str(type(inputs)))


def test_options_take_numpy_s_numbers_and_arrays(engine: Engine) -> None:
    expected = engine.encode(TEXT, dimensions=3, attention={"layers": [0, 1], "heads": [1]}, normalize=False)
    attention: Any = {"layers": np.arange(2), "heads": (np.int64(1),)}
    found = engine.encode(
        TEXT, dimensions=cast("int", np.int64(3)), attention=attention, normalize=cast("bool", np.False_)
    )
    np.testing.assert_array_equal(found.embeddings, expected.embeddings)
    np.testing.assert_equal(found.attention, expected.attention)
    engine.encode(TEXT, head_mask=np.array([[0, 0, 0.5]]))  # whole places, as floats


def test_threads_share_one_engine(engine: Engine, backend: FakeBackend) -> None:
    backend.seconds = 0.001
    texts = random_texts(40)
    expected = np.array([expected_vector(ids_of(text)) for text in texts])
    with ThreadPoolExecutor(8) as threads:
        for encoded in threads.map(lambda _: engine.encode(texts), range(24)):
            np.testing.assert_allclose(encoded.embeddings, expected, rtol=1e-5, atol=1e-6)


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


class Column(list[Any]):
    """As pandas, polars (`to_list`) and pyarrow (`to_pylist`) hold one; counted through it gives their own scalars."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("it is asked for a list")


class Series(Column):
    def to_list(self) -> list[Any]:
        return self[:]


class ArrowArray(Column):
    def to_pylist(self) -> list[Any]:
        return self[:]


WRONG_INPUTS: list[tuple[Any, str]] = [
    (None, "inputs: give either inputs or pairs"),
    (bytes([CLS, 5, SEP]), "inputs: "),  # no token ids
    ([[]], r"inputs\[0\]: "),
    ([None], r"inputs\[0\]: expected a text, got NoneType"),
    ([TEXT, None], r"inputs\[1\]: expected a text, got NoneType"),
    ([[CLS, SEP], "cat"], r"inputs\[1\]: expected a list, got str"),
    (Series([TEXT, "cat", float("nan")]), r"inputs\[2\]: expected a text, got float"),
    (SimpleNamespace(columns=()), "inputs: got a SimpleNamespace, which has columns or keys; give one of them"),
    ({"text": TEXT}, "inputs: got a dict, which has columns or keys; give one of them"),
    ({TEXT, "cat"}, "inputs: got a set, which has no order; give a list"),
    ({TEXT: 1}.keys(), "inputs: got a dict_keys, which has no order; give a list"),
    ([*TEXTS, "cat \ud800"], r"inputs\[600\]: character 4 is half of a surrogate pair"),
]
REFUSED: list[tuple[Callable[[Any], object], Any, str]] = [
    (lambda engine: engine.encode(TEXT, dimensions=HIDDEN_SIZE + 1), Invalid, "dimensions: "),
    (lambda engine: engine.encode(TEXT, colour="red"), Invalid, "colour: no such field"),
    (lambda engine: engine.encode(TEXT, encoding_format="base64"), Invalid, "encoding_format: .* no base64"),
    (lambda engine: engine.encode(TEXT, encoding_format="float16"), Invalid, "encoding_format: .* no float16"),
    (lambda engine: engine.encode(TEXT, head_mask=np.array([[0.5, 0, 0.5]])), Invalid, "head_mask.0.0: .* integer"),
    (lambda engine: engine.classify(TEXT), WrongTask, "tests/fake is for embedding"),
    (lambda engine: engine.score([TEXT] * 2, [TEXT] * 3), Invalid, "queries: 2 queries and 3 documents"),
    (lambda engine: engine.score([TEXT, 3], [TEXT] * 2), Invalid, r"queries\[1\]: expected a text, got int"),
    (lambda engine: engine.score(TEXT, {"cat": 1}), Invalid, "documents: got a dict, which has columns or keys"),
    (lambda engine: engine.rerank(TEXT, [TEXT], top_n=0), Invalid, "top_n: "),
    (lambda engine: engine.rerank([TEXT], [TEXT]), Invalid, "query: "),
    (lambda engine: engine.rerank(TEXT, ["cat", None]), Invalid, r"documents\[1\]: expected a text, got NoneType"),
    (lambda engine: engine.explain(TEXT, "\ud800"), Invalid, "b: character 0 is half of a surrogate pair"),
    (lambda engine: engine.encode("cat " * 40, truncate=False), TooLarge, r"inputs\[0\]: 42 tokens"),
    (lambda engine: engine.encode([*TEXTS, "cat " * 40], truncate=False), TooLarge, r"inputs\[600\]: 42 tokens"),
    (lambda engine: engine.encode([[CLS] * (MAX_LENGTH + 1)]), TooLarge, r"inputs\[0\]: 17 token ids"),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [*REFUSED, *((methodcaller("encode", inputs), Invalid, message) for inputs, message in WRONG_INPUTS)],
)
def test_what_cannot_be_encoded_is_refused_by_its_place(
    engine: Engine, call: Callable[[Engine], object], error: Any, message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call(engine)
    assert engine.encode(TEXT).items == [{"tokens": 5, "truncated": False}]


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


def test_a_closed_engine_says_so(settings: Settings, backend: FakeBackend) -> None:
    engine = load_fake_engine(settings, backend)
    engine.encode(TEXT)
    engine.close()
    engine.close()
    assert backend.is_closed
    with pytest.raises(NotReady, match="closed"):
        engine.encode(TEXT)


def test_a_forked_process_is_told_to_load_its_own_and_closes_nothing_of_its_parent_s(
    engine: Engine, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)  # as after a fork, which leaves the threads behind
        with pytest.raises(NotReady, match="load it here"):
            engine.encode(TEXT)
        assert engine.close()
    assert not backend.is_closed
    assert engine.encode(TEXT).items == [{"tokens": 5, "truncated": False}]


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
        with pytest.raises(NotReady):
            call.result(30)


def test_nothing_is_begun_while_the_engine_closes(settings: Settings, backend: FakeBackend) -> None:
    engine = load_fake_engine(settings, backend)
    backend.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        call = threads.submit(engine.encode, TEXT)
        wait_until(lambda: bool(backend.batches))
        closing = threads.submit(engine.close)
        wait_until(lambda: not engine._runner.is_alive())
        with pytest.raises(NotReady, match="the engine is closed"):
            engine.encode(TEXT)
        backend.gate.set()
        assert closing.result(30)
        assert call.exception(30) is None


def test_closing_answers_every_call_that_was_queued(settings: Settings, backend: FakeBackend) -> None:
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


def test_it_explains_as_http_does(engine: Engine, served: Served) -> None:
    options: dict[str, Any] = {"dimensions": 5, "prompt": "a "}
    explained = engine.explain(TEXT, "dog", **options)
    answer = served.client.post("/explain", json={"a": TEXT, "b": "dog", **options}).json()
    assert explained.similarity == np.float32(answer["similarity"])
    assert explained.prompt == answer["prompt"] == "a "
    np.testing.assert_array_equal(explained.contributions, np.array(answer["contributions"], np.float32))
    for side, expected in ((explained.a, answer["a"]), (explained.b, answer["b"])):
        assert (side.tokens, side.truncated) == (expected["tokens"], expected["truncated"])
        assert [list(offset) for offset in side.offsets] == expected["offsets"]
        np.testing.assert_array_equal(side.saliency, np.array(expected["saliency"], np.float32))


WRONG_CALLS = """
engine.encode(["x"], normalise=True)
engine.encode(["x"], attention={"layer": "all"})
engine.rerank("x", ["y"], nonsense=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_type_checkers_accept_the_documented_calls_and_no_wrong_ones(tmp_path: Path, checker: str) -> None:
    pytest.importorskip(checker)
    pages = "\n".join((ROOT / document).read_text() for document in ("README.md", "docs/python.md"))
    programs = [one for one in re.findall(r"```python\n(.*?)```", pages, re.DOTALL) if "engine." in one]
    assert len(programs) == 3
    documented = "\n".join(["queries = ['cats']", "documents = ['the cat sat', 'it rained']", *programs])
    (tmp_path / "calls.py").write_text(documented + WRONG_CALLS)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.mypy]\nstrict = true\n"
        # as pyright checks by itself; a line of documentation that only names a value is right
        "[tool.basedpyright]\ntypeCheckingMode = 'standard'\nreportUnusedExpression = false\n"
        f"extraPaths = ['{ROOT}']\n"
    )
    python = {"mypy": "--python-executable", "basedpyright": "--pythonpath"}[checker]
    command = [sys.executable, "-m", checker, python, sys.executable, "calls.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    lines = {int(line) for line in re.findall(r"calls\.py:(\d+):.*error:", run.stdout)}
    wrong = documented.count("\n") + 2
    assert lines == {wrong, wrong + 1, wrong + 2}, run.stdout + run.stderr
