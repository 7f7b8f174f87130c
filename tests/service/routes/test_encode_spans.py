"""Spans over HTTP: the means of the last hidden states that `transformers` gives for the whole text."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.service.routes.conftest import Client, post
from tests.task_artifacts import TaskArtifact

TOLERANCE = 1e-5
TEXTS = ["The cat sat on the mat. It rained all day; nobody minded.", "Über allen Gipfeln ist Ruh."]
SPANS = [[[0, 23], [24, 57], [4, 7]], [[0, 10], [0, 27]]]


@pytest.fixture(scope="module")
def hidden_states(embedder: TaskArtifact) -> Callable[[str], tuple[Any, Any]]:
    """Of a text [n, D] and offsets [n, 2], without the special tokens, by `transformers`."""
    import torch  # noqa: PLC0415 - seconds to import
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - seconds to import

    tokenizer = AutoTokenizer.from_pretrained(embedder.folder)
    network = AutoModel.from_pretrained(embedder.folder).eval()

    def read(text: str) -> tuple[Any, Any]:
        batch = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = batch.pop("offset_mapping")[0].numpy()
        with torch.no_grad():
            return network(**batch).last_hidden_state[0].numpy()[1:-1], offsets[1:-1]

    return read


@pytest.mark.parametrize("prompt", ["", "query: "])
def test_a_span_is_the_mean_of_its_tokens(
    client: Client, embedder: TaskArtifact, hidden_states: Callable[[str], tuple[Any, Any]], prompt: str
) -> None:
    asked = client(embedder.artifact)
    found = post(asked, "/encode", inputs=TEXTS, spans=SPANS, prompt=prompt, normalize=False)
    unit = post(asked, "/encode", inputs=TEXTS, spans=SPANS, prompt=prompt)["embeddings"]
    for text, spans, vectors, units in zip(TEXTS, SPANS, found["embeddings"], unit, strict=True):
        hidden, offsets = hidden_states(prompt + text)
        ends = offsets[:, 1] - len(prompt)
        expected = np.stack([hidden[(start < ends) & (ends <= end)].mean(axis=0) for start, end in spans])
        np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(units, expected / lengths, atol=TOLERANCE, rtol=0)


def test_spans_side_by_side_share_no_token_and_leave_none_out(client: Client, embedder: TaskArtifact) -> None:
    asked, text = client(embedder.artifact), "the cat sat on the mat."
    spans = [[start, end] for start, end in pairwise([0, 5, 11, len(text)])]
    asked_for = {"inputs": text, "normalize": False, "attention": {"layers": "last"}}
    answer = post(asked, "/encode", **asked_for, spans=[[*spans, [0, len(text)]]])
    *parts, whole = np.array(answer["embeddings"][0])
    ends = [end for start, end in answer["attention"][0]["offsets"] if end > start]
    counts = [sum(start < end <= stop for end in ends) for start, stop in spans]
    assert sum(counts) == len(ends)
    np.testing.assert_allclose(np.average(parts, axis=0, weights=counts), whole, atol=TOLERANCE, rtol=0)


def test_spans_of_what_was_kept_of_a_long_text(client: Client, embedder: TaskArtifact) -> None:
    asked, text, fits = client(embedder.artifact), "cat " * 100, "cat " * 31  # of two tokens each
    kept = post(asked, "/encode", inputs=text, spans=[[[0, len(fits)]]], normalize=False)
    assert kept["items"][0]["truncated"]
    shorter = post(asked, "/encode", inputs=fits, spans=[[[0, len(fits)]]], normalize=False)
    np.testing.assert_allclose(kept["embeddings"], shorter["embeddings"], atol=TOLERANCE, rtol=0)
    end = post(asked, "/encode", inputs=text, spans=[[[400 - len(fits), 400]]], truncate="start", normalize=False)
    np.testing.assert_allclose(end["embeddings"], shorter["embeddings"], atol=TOLERANCE, rtol=0)
