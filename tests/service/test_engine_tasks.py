"""The engine over small artifacts of every task: each result says what it holds."""

import numpy as np
import pytest

from polyhead import Engine
from service.errors import WrongTask
from tests.task_artifacts import TaskArtifact

PAIRS = [["a cat", "a dog"], ["a cat sat", "on a mat"], ["one", "two three"]]


def test_pairs_are_scored_alone_as_together(reranker: TaskArtifact) -> None:
    with Engine.load(reranker.artifact) as engine:
        together = engine.encode(pairs=(tuple(pair) for pair in PAIRS))
        alone = [engine.encode(pairs=[pair]).scores[0] for pair in PAIRS]
        assert engine.encode(pairs=[]).scores.shape == (0, 1)
        with pytest.raises(WrongTask, match="drawn is for classification: only the similarity of two embeddings"):
            engine.explain("a cat", "a dog")
        with pytest.raises(AttributeError, match=r"this model gives no embeddings: read .scores"):
            _ = together.embeddings
    assert (together.kind, together.labels, together.scores.shape) == ("scores", ("LABEL_0",), (3, 1))
    np.testing.assert_allclose(together.scores, alone, rtol=1e-5, atol=1e-6)
    assert len({*map(float, together.scores[:, 0])}) == 3


def test_a_classifier_names_its_labels(classifier: TaskArtifact) -> None:
    with Engine.load(classifier.artifact) as engine:
        encoded = engine.encode(["a cat", "a dog"])
        tokens = engine.encode("a cat", output="tokens")
    assert encoded.labels == ("contradiction", "entailment", "neutral")
    np.testing.assert_allclose(encoded.scores.sum(axis=1), 1, rtol=1e-5)
    assert (tokens.kind, tokens.embeddings[0].shape[1]) == ("embeddings", 32)


def test_a_sparse_model_gives_words(sparse_encoder: TaskArtifact) -> None:
    with Engine.load(sparse_encoder.artifact) as engine:
        encoded = engine.encode(["a cat", "a dog sat"])
    assert encoded.kind == "sparse"
    for words in encoded.sparse:
        assert len(words["indices"]) == len(words["values"]) > 0


def test_a_multi_vector_model_gives_vectors_of_tokens(multi_vector_encoder: TaskArtifact) -> None:
    with Engine.load(multi_vector_encoder.artifact) as engine:
        encoded = engine.encode(["a cat", "a dog sat"])
    assert [vectors.shape for vectors in encoded.embeddings] == [(item["tokens"], 16) for item in encoded.items]
