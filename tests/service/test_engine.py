"""The encoder as a Python object, over a fake backend: any number of texts, from any thread, until it is closed."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from polyhead import Engine
from polyhead.engine import ENDING
from service.errors import Invalid, NotReady, TooLarge, WrongTask
from service.local.calls import PART_TOKENS
from service.local.options import AttentionOptions
from service.settings import Settings
from tests.service.conftest import EngineOf, Served
from tests.service.fake_engine import CLS, HIDDEN_SIZE, MAX_LENGTH, SEP, VOCABULARY, FakeBackend, load_fake_engine
from tests.service.routes.conftest import quantized
from tests.service.routes.test_encode import expected_vector, ids_of
from tests.task_artifacts import TaskArtifact

ROOT = Path(__file__).parents[2]
TEXT = "the cat sat"


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


def test_no_texts(engine: Engine) -> None:
    encoded = engine.encode([], attention={})
    assert isinstance(encoded.embeddings, np.ndarray)
    assert (encoded.embeddings.shape, encoded.items, encoded.attention) == ((0, HIDDEN_SIZE), [], [])
    assert engine.encode([], output="tokens").embeddings == []
    assert engine.score(TEXT, []).dtype == np.float32


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
    ([(TEXT, "cat")], r"inputs\[0\]: texts in a list of their own: pairs of texts are given as `pairs`"),
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
    (lambda engine: engine.entities(TEXT), WrongTask, "tests/fake is for embedding: only a model that labels tokens"),
    (lambda engine: engine.score([TEXT] * 2, [TEXT] * 3), Invalid, "queries: 2 queries and 3 documents"),
    (lambda engine: engine.score([TEXT, 3], [TEXT] * 2), Invalid, r"queries\[1\]: expected a text, got int"),
    (lambda engine: engine.score(TEXT, {"cat": 1}), Invalid, "documents: got a dict, which has columns or keys"),
    (lambda engine: engine.rerank(TEXT, [TEXT], top_n=0), Invalid, "top_n: "),
    (lambda engine: engine.rerank([TEXT], [TEXT]), Invalid, "query: "),
    (lambda engine: engine.rerank(TEXT, ["cat", None]), Invalid, r"documents\[1\]: expected a text, got NoneType"),
    (lambda engine: engine.rerank(TEXT, [[CLS, SEP]]), Invalid, r"documents\[0\]: expected a text, got list"),
    (lambda engine: engine.score(TEXT, None), Invalid, "documents: expected a text or a list of texts, got NoneType$"),
    (lambda engine: engine.tokenize([CLS, SEP]), Invalid, r"texts\[0\]: expected a text, got int"),
    (lambda engine: engine.tokenize(None), Invalid, "texts: expected a text or a list of texts, got NoneType"),
    (lambda engine: engine.tokenize([TEXT, "\ud800"]), Invalid, r"texts\[1\]: character 0 is half of a surrogate"),
    (lambda engine: engine.zero_shot(TEXT, []), Invalid, "labels: List should have at least 1 item"),
    (lambda engine: engine.zero_shot(TEXT, ", "), Invalid, "labels: Field required: give at least one label"),
    (lambda engine: engine.zero_shot(TEXT, ["cat", 1]), Invalid, r"labels\[1\]: expected a text, got int"),
    (lambda engine: engine.zero_shot(TEXT, ["cat", "\ud800"]), Invalid, r"labels\[1\]: character 0 is half of a"),
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


def test_a_closed_engine_says_so(settings: Settings, backend: FakeBackend) -> None:
    engine = load_fake_engine(settings, backend)
    engine.encode(TEXT)
    engine.close()
    engine.close()
    assert backend.is_closed
    with pytest.raises(NotReady, match="closed"):
        engine.encode(TEXT)


def test_an_engine_that_nothing_refers_to_is_closed(settings: Settings, backend: FakeBackend) -> None:
    engine = load_fake_engine(settings, backend)
    engine.encode(TEXT)
    del engine
    for thread in threading.enumerate():
        if thread.name == ENDING:
            thread.join(10)
    assert backend.is_closed


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


def test_it_explains_as_http_does(engine: Engine, served: Served) -> None:
    options: dict[str, Any] = {"dimensions": 5, "prompt": "a "}
    explained = engine.explain(TEXT, "dog", **options)
    answer = served.client.post("/explain", json={"a": TEXT, "b": "dog", **options}).json()
    assert (explained.similarity, explained.prompt) == (np.float32(answer["similarity"]), "a ")
    np.testing.assert_array_equal(explained.contributions, np.array(answer["contributions"], np.float32))
    assert (explained.a.tokens, [*map(list, explained.a.offsets)]) == (answer["a"]["tokens"], answer["a"]["offsets"])
    np.testing.assert_array_equal(explained.b.saliency, np.array(answer["b"]["saliency"], np.float32))


WRONG_CALLS = """
engine.encode(["x"], normalise=True)
engine.encode(["x"], attention={"layer": "all"})
engine.rerank("x", ["y"], nonsense=3)
awaited = engine.aencode(["x"], dimension=3)
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
    assert lines == set(range(wrong, wrong + 4)), run.stdout + run.stderr


QUERY = "the cat"
DOCUMENTS = ["a dog", "the cat sat on the mat.", "mat", "the dog sat"]
LONG = "the cat sat on the mat. " * 9
TOLERANCE = 1e-5


def test_pairs_are_scored_alone_as_together(engine_of: EngineOf, reranker: TaskArtifact) -> None:
    engine, pairs = engine_of(reranker.artifact), [(QUERY, document) for document in DOCUMENTS]
    together = engine.encode(pairs=iter(pairs))
    alone = [engine.encode(pairs=[pair]).scores[0] for pair in pairs]
    assert engine.encode(pairs=[]).scores.shape == (0, 1)
    with pytest.raises(WrongTask, match=r"drawn is for classification: .* two embeddings .*; call explain_score$"):
        engine.explain("a cat", "a dog")
    with pytest.raises(AttributeError, match=r"this model returns no embeddings: read .scores"):
        _ = together.embeddings
    assert (together.kind, together.labels, together.scores.shape) == ("scores", ("LABEL_0",), (len(pairs), 1))
    np.testing.assert_allclose(together.scores, alone, rtol=1e-5, atol=1e-6)
    assert len({*map(float, together.scores[:, 0])}) == len(pairs)


def test_tokens_of_a_sparse_model_are_vectors(engine_of: EngineOf, sparse_encoder: TaskArtifact) -> None:
    engine = engine_of(sparse_encoder.artifact)
    for explain in (engine.explain, engine.explain_score):  # neither advises the other
        with pytest.raises(WrongTask, match="is for sparse: only .* can be explained$"):
            explain(QUERY, DOCUMENTS[0])
    with pytest.raises(WrongTask, match="or `Engine.encode` gives its vectors"):
        engine.score(QUERY, DOCUMENTS)
    found = engine.encode([QUERY, *DOCUMENTS], output="tokens")
    assert [len(vectors) for vectors in found.embeddings] == [item["tokens"] for item in found.items]


def test_long_texts_are_read_in_windows_that_the_queue_takes(engine_of: EngineOf, embedder: TaskArtifact) -> None:
    engine = engine_of(embedder.artifact)
    long = "the cat sat on the mat. a dog " * 3000  # more tokens than one engine may have in the queue
    whole = engine.encode([long, "a dog"], long_texts="mean", normalize=False)
    (text,) = asyncio.run(engine._runner.tokenizer.encode_windows([long]))
    windows = engine.encode([window.input_ids.tolist() for window in text.windows], normalize=False)
    alone = engine.encode("a dog", normalize=False)
    lengths = [len(window.input_ids) for window in text.windows]
    assert sum(lengths) > PART_TOKENS
    assert whole.items[0] == {"tokens": sum(lengths), "truncated": False, "windows": len(lengths)}
    mean = np.average(np.asarray(windows.embeddings, np.float64), axis=0, weights=lengths)
    np.testing.assert_allclose(whole.embeddings, [mean, np.asarray(alone.embeddings)[0]], atol=TOLERANCE)


def test_spans_of_more_texts_than_a_portion(engine_of: EngineOf, embedder: TaskArtifact) -> None:
    engine, text = engine_of(embedder.artifact), "the cat sat on the mat."
    texts = [text[: 7 + 8 * (place % 3)] for place in range(300)]
    spans = [[[0, 3], [4, 7]]] * len(texts)
    found = engine.encode(texts, spans=spans, normalize=False).embeddings
    for place in (0, 1, 2, 299):
        hidden = engine.encode([texts[place]], output="tokens", normalize=False).embeddings[0]
        ends = np.array([end for _, end in engine.tokenize(texts[place])[0].offsets])
        expected = [hidden[(ends > start) & (ends <= end)].mean(axis=0) for start, end in spans[place]]
        np.testing.assert_allclose(found[place], expected, atol=TOLERANCE)
    with pytest.raises(Invalid, match=r"spans\[299\]\[0\]: no token ends in it"):
        engine.encode(texts, spans=[*spans[:-1], [[3, 4]]])


def test_an_embedder_orders_documents_by_their_cosine(engine_of: EngineOf, embedder: TaskArtifact) -> None:
    engine = engine_of(embedder.artifact)
    vectors = np.asarray(engine.encode([QUERY, *DOCUMENTS]).embeddings)
    done: list[int] = []
    scores = engine.score(QUERY, DOCUMENTS, progress=done.append)
    np.testing.assert_allclose(scores, vectors[1:] @ vectors[0], atol=TOLERANCE)
    assert sum(done) == len(DOCUMENTS)
    with pytest.raises(TooLarge, match=r"documents\[300\]: 82 tokens, the model takes 64"):
        engine.rerank(QUERY, [*["a"] * 300, "cat " * 40], truncate=False)
    with pytest.raises(TooLarge, match=r"query: 82 tokens, the model takes 64"):
        engine.rerank("cat " * 40, ["a"], truncate=False)


def test_expanded_queries_score_as_in_the_original(engine_of: EngineOf, expanding_encoder: TaskArtifact) -> None:
    from sentence_transformers import MultiVectorEncoder  # noqa: PLC0415 - seconds to import

    engine, original = engine_of(expanding_encoder.artifact), MultiVectorEncoder(str(expanding_encoder.folder))
    queries, documents = ["a", QUERY, LONG], [*DOCUMENTS, LONG]
    vectors = original.encode_query(queries)
    together = engine.encode(queries, role="query")
    for query, found, reference in zip(queries, together.embeddings, vectors, strict=True):
        np.testing.assert_allclose(found, reference, atol=TOLERANCE)
        expected = original.similarity([reference], original.encode_document(documents))[0]
        np.testing.assert_allclose(engine.score(query, documents), expected, atol=1e-4)
    assert [(item["tokens"], item["truncated"]) for item in together.items] == [(12, False), (12, False), (12, True)]
    assert max(item["tokens"] for item in engine.encode(documents, role="document").items) == 24
    longer = engine.score(QUERY, documents, max_tokens_per_doc=4096)  # than documents of this model are
    np.testing.assert_allclose(longer, engine.score(QUERY, documents), atol=TOLERANCE)


def test_vectors_in_fewer_bits(engine_of: EngineOf, embedder: TaskArtifact) -> None:
    encode: Any = engine_of(embedder.artifact).encode
    vectors = encode(DOCUMENTS).embeddings
    for form in ("int8", "uint8", "binary", "ubinary"):
        expected = quantized(embedder.artifact, vectors, form)
        np.testing.assert_array_equal(encode(DOCUMENTS, encoding_format=form).embeddings, expected, strict=True)
    (tokens,) = encode(DOCUMENTS[:1], output="tokens", encoding_format="ubinary").embeddings
    assert (tokens.dtype, tokens.shape[1]) == (np.uint8, 4)
    with pytest.raises(Invalid, match="the ranges of int8 are those of whole texts' vectors"):
        encode(DOCUMENTS, output="tokens", encoding_format="int8")
