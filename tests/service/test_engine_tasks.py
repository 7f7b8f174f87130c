"""The engine over small artifacts of every task: each result says what it holds."""

import asyncio
from typing import Any

import numpy as np
import pytest

from polyhead import Engine
from service.errors import Invalid, TooLarge, WrongTask
from service.local.calls import PART_TOKENS
from tests.task_artifacts import TaskArtifact

PAIRS = [["a cat", "a dog"], ["a cat sat", "on a mat"], ["one", "two three"]]


def test_pairs_are_scored_alone_as_together(reranker: TaskArtifact) -> None:
    with Engine.load(reranker.artifact) as engine:
        together = engine.encode(pairs=(tuple(pair) for pair in PAIRS))
        alone = [engine.encode(pairs=[pair]).scores[0] for pair in PAIRS]
        assert engine.encode(pairs=[]).scores.shape == (0, 1)
        with pytest.raises(WrongTask, match="drawn is for classification: only the similarity of two embeddings"):
            engine.explain("a cat", "a dog")
        with pytest.raises(AttributeError, match=r"this model returns no embeddings: read .scores"):
            _ = together.embeddings
    assert (together.kind, together.labels, together.scores.shape) == ("scores", ("LABEL_0",), (3, 1))
    np.testing.assert_allclose(together.scores, alone, rtol=1e-5, atol=1e-6)
    assert len({*map(float, together.scores[:, 0])}) == 3


QUERY = "the cat"
DOCUMENTS = ["a dog", "the cat sat on the mat.", "mat", "the dog sat"]
TOLERANCE = 1e-5


def test_a_cross_encoder_orders_documents(reranker: TaskArtifact) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds to import

    original = CrossEncoder(str(reranker.folder))
    expected = original.rank(QUERY, DOCUMENTS)
    with Engine.load(reranker.artifact) as engine:
        found = engine.rerank(QUERY, iter(DOCUMENTS), attention={"layers": "last"})
        best = engine.rerank(QUERY, DOCUMENTS, top_n=2)
        scores = engine.score([QUERY] * len(DOCUMENTS), DOCUMENTS)
        raw = engine.score(QUERY, DOCUMENTS, raw_scores=True)
        cut = engine.rerank(QUERY, DOCUMENTS, max_tokens_per_doc=1, attention={"layers": "last"})
        assert engine.rerank(QUERY, []) == []
    assert [one.index for one in found] == [one["corpus_id"] for one in expected]
    assert [one.document for one in found] == [DOCUMENTS[one.index] for one in found]
    np.testing.assert_allclose([one.score for one in found], [one["score"] for one in expected], atol=TOLERANCE)
    assert [one.index for one in best] == [one.index for one in found[:2]]
    assert found[0].attention is not None
    assert found[0].attention["query_to_document_mass"][0].shape == (4,)
    np.testing.assert_allclose(scores, original.predict([(QUERY, one) for one in DOCUMENTS]), atol=TOLERANCE)
    np.testing.assert_allclose(1 / (1 + np.exp(-raw)), scores, atol=TOLERANCE)
    assert {one.attention["segments"].count(1) for one in cut if one.attention is not None} == {1}


def test_an_embedder_orders_documents_by_their_cosine(embedder: TaskArtifact) -> None:
    with Engine.load(embedder.artifact) as engine:
        vectors = np.asarray(engine.encode([QUERY, *DOCUMENTS]).embeddings)
        done: list[int] = []
        scores = engine.score(QUERY, DOCUMENTS, progress=done.append)
        with pytest.raises(TooLarge, match=r"documents\[300\]: 82 tokens, the model takes 64"):
            engine.rerank(QUERY, [*["a"] * 300, "cat " * 40], truncate=False)
        with pytest.raises(TooLarge, match=r"query: 82 tokens, the model takes 64"):
            engine.rerank("cat " * 40, ["a"], truncate=False)
    np.testing.assert_allclose(scores, vectors[1:] @ vectors[0], atol=TOLERANCE)
    assert sum(done) == len(DOCUMENTS)


LONG = "the cat sat on the mat. " * 9


def test_expanded_queries_score_as_in_the_original(expanding_encoder: TaskArtifact) -> None:
    from sentence_transformers import MultiVectorEncoder  # noqa: PLC0415 - seconds to import

    original = MultiVectorEncoder(str(expanding_encoder.folder))
    queries, documents = ["a", QUERY, LONG], [*DOCUMENTS, LONG]
    expected = np.asarray(original.similarity(original.encode_query(queries), original.encode_document(documents)))
    with Engine.load(expanding_encoder.artifact) as engine:
        for query, scores in zip(queries, expected, strict=True):
            np.testing.assert_allclose(engine.score(query, documents), scores, atol=1e-4)
        together, vectors = engine.encode(queries, role="query"), original.encode_query(queries)
        of_documents = engine.encode(documents, role="document")
        alone = [engine.encode(query, role="query").embeddings[0] for query in queries]
    for found, by_itself, reference in zip(together.embeddings, alone, vectors, strict=True):
        np.testing.assert_allclose(found, reference, atol=TOLERANCE)
        assert np.array_equal(found, by_itself)
    assert [item["tokens"] for item in together.items] == [12, 12, 12]
    assert [item["truncated"] for item in together.items] == [False, False, True]
    assert max(item["tokens"] for item in of_documents.items) == 24


def test_a_classifier_names_each_input_s_labels(classifier: TaskArtifact) -> None:
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    reference: Any = pipeline("text-classification", str(classifier.folder), top_k=None)
    with Engine.load(classifier.artifact) as engine:
        found = engine.classify(["the cat", "a dog"]) + engine.classify(pairs=[("the cat", "a dog")])
        with pytest.raises(Invalid, match="labels are answered here"):
            engine.classify("the cat", output="tokens")  # type: ignore[call-arg]
    expected = reference(["the cat", "a dog", {"text": "the cat", "text_pair": "a dog"}])
    for labels, wanted in zip(found, expected, strict=True):
        assert [entry["label"] for entry in labels] == [entry["label"] for entry in wanted]
        scores = [entry["score"] for entry in wanted]
        np.testing.assert_allclose([entry["score"] for entry in labels], scores, atol=TOLERANCE)


def test_vectors_in_fewer_bits(embedder: TaskArtifact) -> None:
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 - seconds to import

    with Engine.load(embedder.artifact) as engine:
        vectors, ranges = np.asarray(engine.encode(DOCUMENTS).embeddings), engine.manifest.vector_ranges
        assert ranges is not None
        bounds = np.array([ranges.minimum, ranges.maximum], np.float32)
        for name in ("int8", "uint8", "binary", "ubinary"):
            found = np.asarray(engine.encode(DOCUMENTS, encoding_format=name).embeddings)
            expected = np.asarray(quantize_embeddings(vectors, name, ranges=bounds))
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype
        (tokens,) = engine.encode(DOCUMENTS[:1], output="tokens", encoding_format="ubinary").embeddings
        with pytest.raises(Invalid, match="the ranges of int8 are those of whole texts' vectors"):
            engine.encode(DOCUMENTS, output="tokens", encoding_format="int8")
    assert (tokens.dtype, tokens.shape[1]) == (np.uint8, 4)


def test_long_texts_are_read_in_windows_that_the_queue_takes(embedder: TaskArtifact) -> None:
    long = "the cat sat on the mat. a dog " * 3000  # more tokens than one engine may have in the queue
    with Engine.load(embedder.artifact) as engine:
        whole = engine.encode([long, "a dog"], long_texts="mean", normalize=False)
        (text,) = asyncio.run(engine._runner.tokenizer.encode_windows([long]))
        windows = engine.encode([window.input_ids.tolist() for window in text.windows], normalize=False)
        alone = engine.encode("a dog", normalize=False)
    lengths = [len(window.input_ids) for window in text.windows]
    assert sum(lengths) > PART_TOKENS
    assert whole.items[0] == {"tokens": sum(lengths), "truncated": False, "windows": len(lengths)}
    mean = np.average(np.asarray(windows.embeddings, np.float64), axis=0, weights=lengths)
    np.testing.assert_allclose(whole.embeddings, [mean, np.asarray(alone.embeddings)[0]], atol=TOLERANCE)


def test_spans_of_more_texts_than_a_portion(embedder: TaskArtifact) -> None:
    text = "the cat sat on the mat."
    texts = [text[: 7 + 8 * (place % 3)] for place in range(300)]
    spans = [[[0, 3], [4, 7]]] * len(texts)
    with Engine.load(embedder.artifact) as engine:
        found = engine.encode(texts, spans=spans, normalize=False).embeddings
        for place in (0, 1, 2, 299):
            hidden = engine.encode([texts[place]], output="tokens", normalize=False).embeddings[0]
            ends = np.array([end for _, end in engine._runner.tokenizer.encode_now([texts[place]])[0].offsets or ()])
            for vector, (start, end) in zip(found[place], spans[place], strict=True):
                expected = hidden[(ends > start) & (ends <= end)].mean(axis=0)
                np.testing.assert_allclose(vector, expected, atol=TOLERANCE)
        with pytest.raises(Invalid, match=r"spans\[299\]\[0\]: no token ends in it"):
            engine.encode(texts, spans=[*spans[:-1], [[3, 4]]])
