"""The graph of an artifact of each task against sentence-transformers on the folder that it was made from."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from tokenizers import Tokenizer

from export.runtime import Session
from model.artifact import ATTENTION_LAYERS, GRAPH, INPUT_IDS, LENGTHS, TOKEN_TYPE_IDS, TOKENIZER, Artifact, Manifest
from model.config_parts import MultiVectorSettings
from tests.task_artifacts import TaskArtifact

TOLERANCE = 1e-5
TEXTS = ["The cats sat on the mats.", "lower newest wider: abc123 naïve café!", "a", "日 word 语"]
PAIRS = [("the cats sat", "on the mats."), ("lower", "the newest, widest cat of all"), ("", "a"), ("a", "")]


def run(made: TaskArtifact, text: str, pair: str | None = None) -> NDArray[np.float32]:
    """The task's output for one text or pair, as the service computes it."""
    manifest = Artifact.open(made.artifact).manifest
    encoding = Tokenizer.from_file(str(made.artifact / TOKENIZER)).encode(text, pair)
    inputs = {
        INPUT_IDS: np.array([encoding.ids]),
        LENGTHS: np.array([len(encoding.ids)]),
        ATTENTION_LAYERS: np.zeros(manifest.config.num_layers, np.bool_),
        TOKEN_TYPE_IDS: np.array([encoding.type_ids]),
    }
    found: NDArray[np.float32] = Session(made.artifact / GRAPH, threads=1).run(inputs)[manifest.task_output][0]
    return found


def manifest_of(made: TaskArtifact) -> Manifest:
    return Artifact.open(made.artifact).manifest


def test_a_reranker_equals_cross_encoder(reranker: TaskArtifact) -> None:
    theirs = CrossEncoder(str(reranker.folder), device="cpu")
    expected = theirs.predict(PAIRS, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose([run(reranker, *pair)[0] for pair in PAIRS], expected, atol=TOLERANCE, rtol=0)
    manifest = manifest_of(reranker)
    assert (manifest.task, manifest.task_output, manifest.labels) == ("classification", "logits", ("LABEL_0",))
    assert isinstance(theirs.activation_fn, torch.nn.Sigmoid)
    assert (manifest.activation, manifest.pairs, manifest.defaults.pooling) == ("sigmoid", True, "cls")
    assert manifest.outputs[:2] == ("logits", "last_hidden_state")


def test_a_classifier_equals_cross_encoder(classifier: TaskArtifact) -> None:
    expected = CrossEncoder(str(classifier.folder), device="cpu").predict(PAIRS)
    np.testing.assert_allclose([run(classifier, *pair) for pair in PAIRS], expected, atol=TOLERANCE, rtol=0)
    manifest = manifest_of(classifier)
    assert manifest.labels == ("contradiction", "entailment", "neutral")
    assert (manifest.activation, manifest.config.output_size) == ("softmax", 3)


def test_sparse_weights_equal_sparse_encoder(sparse_encoder: TaskArtifact) -> None:
    expected = SparseEncoder(str(sparse_encoder.folder), device="cpu").encode(TEXTS, convert_to_sparse_tensor=False)
    np.testing.assert_allclose([run(sparse_encoder, text) for text in TEXTS], expected, atol=TOLERANCE, rtol=0)
    manifest = manifest_of(sparse_encoder)
    assert (manifest.task, manifest.config.output_size, manifest.pairs) == ("sparse", 400, False)


@pytest.mark.parametrize("kind", ["query", "document"])
def test_token_vectors_equal_multi_vector_encoder(multi_vector_encoder: TaskArtifact, kind: str) -> None:
    theirs: Any = MultiVectorEncoder(str(multi_vector_encoder.folder), device="cpu")
    expected = theirs.encode_query(TEXTS) if kind == "query" else theirs.encode_document(TEXTS)
    manifest = manifest_of(multi_vector_encoder)
    settings = manifest.config.task_settings
    assert isinstance(settings, MultiVectorSettings)
    tokenizer = Tokenizer.from_file(str(multi_vector_encoder.artifact / TOKENIZER))
    for text, reference in zip(TEXTS, expected, strict=True):
        found = run(multi_vector_encoder, text)
        if kind in settings.skipped_in:
            found = found[~np.isin(tokenizer.encode(text).ids, settings.skipped_ids)]
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        np.testing.assert_allclose(found, reference, atol=TOLERANCE, rtol=0)
    assert (manifest.task, manifest.defaults.normalize, settings.size) == ("multi_vector", True, 16)
    assert settings.skipped_ids == (tokenizer.token_to_id("."),)
