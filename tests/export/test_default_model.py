"""The default weights against sentence-transformers and transformers, in PyTorch and in the exported graph."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, BertModel

from export.checkpoint import Checkpoint
from export.runtime import Session
from export.sources import find_folder
from model.artifact import ATTENTION_LAYERS, GRAPH, INPUT_IDS, LENGTHS, TOKEN_TYPE_IDS
from tests.texts import varied_texts

TOLERANCE = 1e-5
TEXTS = varied_texts()[:: 1 if os.environ.get("CI") else 8]


@pytest.fixture(scope="module")
def embeddings() -> NDArray[np.float32]:
    """What sentence-transformers says, [texts, D]."""
    model = SentenceTransformer(str(find_folder(None).path), device="cpu")
    found: NDArray[np.float32] = model.encode(TEXTS, batch_size=8, convert_to_numpy=True)
    return found


@pytest.fixture(scope="module")
def transformer() -> BertModel:
    found: BertModel = AutoModel.from_pretrained(str(find_folder(None).path), attn_implementation="eager").eval()
    return found


@pytest.fixture(scope="module")
def session(default_artifact: Path) -> Session:
    return Session(default_artifact / GRAPH, threads=2)


def token_ids(checkpoint: Checkpoint) -> list[list[int]]:
    checkpoint.tokenizer.enable_truncation(checkpoint.max_sequence_length)
    try:
        return [encoding.ids for encoding in checkpoint.tokenizer.encode_batch(TEXTS)]
    finally:
        checkpoint.tokenizer.no_truncation()


def normalized(pooled: NDArray[np.float32]) -> NDArray[np.float32]:
    return pooled / np.linalg.norm(pooled)


def test_embeddings_equal_sentence_transformers_in_pytorch(
    default_checkpoint: Checkpoint, embeddings: NDArray[np.float32]
) -> None:
    encoder = default_checkpoint.encoder.use("sdpa")
    for text, (ids, expected) in enumerate(zip(token_ids(default_checkpoint), embeddings, strict=True)):
        with torch.inference_mode():
            pooled = encoder(torch.tensor([ids]), torch.tensor([len(ids)])).pooled[0].numpy()
        np.testing.assert_allclose(normalized(pooled), expected, atol=TOLERANCE, rtol=0, err_msg=f"text {text}")


def test_embeddings_equal_sentence_transformers_in_the_graph(
    default_checkpoint: Checkpoint, session: Session, embeddings: NDArray[np.float32]
) -> None:
    for text, (ids, expected) in enumerate(zip(token_ids(default_checkpoint), embeddings, strict=True)):
        pooled = session.run(_inputs(ids, wanted=False))["pooled"][0]
        np.testing.assert_allclose(normalized(pooled), expected, atol=TOLERANCE, rtol=0, err_msg=f"text {text}")


def test_attention_of_every_layer_and_head_equals_transformers_eager(
    default_checkpoint: Checkpoint, session: Session, transformer: BertModel
) -> None:
    encoder = default_checkpoint.encoder.use("eager")
    for text, ids in enumerate(token_ids(default_checkpoint)):
        with torch.inference_mode():
            expected = transformer(torch.tensor([ids]), output_attentions=True)
            ours = encoder(torch.tensor([ids]), torch.tensor([len(ids)]))
        graph = session.run(_inputs(ids, wanted=True))
        for layer, reference in enumerate(expected.attentions):
            message = f"text {text}, layer {layer}"
            np.testing.assert_allclose(ours.attentions[layer], reference, atol=TOLERANCE, rtol=0, err_msg=message)
            weights = graph[f"attentions.{layer}"]
            np.testing.assert_allclose(weights, reference, atol=TOLERANCE, rtol=0, err_msg=message)


def _inputs(ids: list[int], *, wanted: bool) -> dict[str, NDArray[np.generic]]:
    return {
        INPUT_IDS: np.array([ids]),
        LENGTHS: np.array([len(ids)]),
        ATTENTION_LAYERS: np.full(6, wanted),
        TOKEN_TYPE_IDS: np.zeros((1, len(ids)), np.int64),
    }
