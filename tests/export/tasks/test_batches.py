"""A text's output of every task has the same bits alone, in any batch, and with any padding behind it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from export.runtime import Session
from model.artifact import GRAPH, Artifact, Manifest
from tests.networks import batch_of
from tests.task_artifacts import TaskArtifact

LONGEST = 40
Opened = tuple[Session, Manifest]


@pytest.fixture(scope="module", params=["reranker", "sparse_encoder", "multi_vector_encoder"])
def opened(request: pytest.FixtureRequest) -> Opened:
    made: TaskArtifact = request.getfixturevalue(request.param)
    return Session(made.artifact / GRAPH, threads=1), Artifact.open(made.artifact).manifest


def run(opened: Opened, rows: Sequence[NDArray[np.int64]], padding: int = 0) -> NDArray[np.float32]:
    session, manifest = opened
    return session.run(batch_of(manifest.config, rows, padding))[manifest.task_output]


@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=6),
    padding=st.integers(0, 8),
    place=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_a_text_gives_the_same_bits_alone_and_in_any_batch(
    opened: Opened, lengths: list[int], padding: int, place: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    rows = [generator.integers(0, opened[1].config.vocab_size, length) for length in lengths]
    place %= len(rows)
    alone, together = run(opened, [rows[place]])[0], run(opened, rows, padding)[place]
    real = len(rows[place]) if opened[1].task == "multi_vector" else len(alone)
    assert np.array_equal(together[:real], alone[:real])


def test_chunks_of_the_vocabulary_do_not_depend_on_the_batch(sparse_encoder: TaskArtifact) -> None:
    """More texts than a chunk has tokens: one position of each at a time."""
    opened = Session(sparse_encoder.artifact / GRAPH, threads=1), Artifact.open(sparse_encoder.artifact).manifest
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 400, 5) for _ in range(30)]
    together = run(opened, rows)
    for place, row in enumerate(rows):
        assert np.array_equal(run(opened, [row])[0], together[place])
