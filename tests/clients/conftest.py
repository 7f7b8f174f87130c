"""One real server on the default model for all clients, and what `POST /encode` answers to the same texts.

Clients report on their users unless they are told not to; they are, before one is imported.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.process import ServerProcess
from tests.task_artifacts import TaskArtifact

os.environ |= {
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LANGSMITH_TRACING": "false",
}

TEXTS = ["The cat sat on the mat.", "Ein Hund läuft über die Straße.", "x", "猫 " * 30]
QUERY = "Where did the cat sit?"
DOCUMENTS = ["It rained all day.", "The cat sat on the mat.", "A dog ran across the street.", "Cats like to sit."]


@dataclass(frozen=True)
class Ranking:
    """A query, documents, and what they must be ranked by.

    Attributes:
        scores: the cosine of the query with each document.
        order: indices of the documents, best first.
    """

    query: str
    documents: list[str]
    scores: list[float]
    order: list[int]

    def check(self, found: Any, top_n: int | None = None) -> None:
        """Compares pairs of index and score, best first."""
        indices, scores = zip(*found, strict=True)
        assert list(indices) == self.order[:top_n]
        np.testing.assert_allclose(scores, [self.scores[index] for index in indices], atol=1e-6)


@pytest.fixture(scope="session")
def url(server: ServerProcess) -> str:
    return "http://{}:{}".format(*server.address)


@pytest.fixture(scope="session")
def encode(url: str) -> Any:
    """What `POST /encode` answers, as an array [n, D]."""

    def call(inputs: Any, **options: Any) -> Any:
        answer = httpx.post(f"{url}/encode", json={"inputs": inputs, **options}, timeout=60)
        return np.array(answer.raise_for_status().json()["embeddings"])

    return call


@pytest.fixture(scope="session")
def model(url: str) -> str:
    name: str = httpx.get(f"{url}/info").json()["model"]
    return name


@pytest.fixture(scope="session")
def same(encode: Any) -> Any:
    """Compares a client's vectors of `TEXTS` with `POST /encode`."""
    expected = encode(TEXTS)

    def check(got: Any) -> None:
        found = np.asarray(got, dtype=np.float64)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)

    return check


@pytest.fixture(scope="session")
def ranking(encode: Any) -> Ranking:
    """Documents ranked by vectors that `POST /encode` answers."""
    scores = encode(DOCUMENTS) @ encode(QUERY)[0]
    return Ranking(QUERY, DOCUMENTS, scores.tolist(), np.argsort(-scores).tolist())


@pytest.fixture(scope="session")
def classifier_url(classifier: TaskArtifact) -> Iterator[str]:
    """A server on a randomly initialised classifier."""
    yield from _served(classifier)


@pytest.fixture(scope="session")
def token_classifier_url(token_classifier: TaskArtifact) -> Iterator[str]:
    """A server on a random network that labels tokens."""
    yield from _served(token_classifier)


def _served(made: TaskArtifact) -> Iterator[str]:
    with ServerProcess("service", "--model", str(made.artifact)) as process:
        yield "http://{}:{}".format(*process.wait_until_ready().address)
        assert process.stop() == 0
