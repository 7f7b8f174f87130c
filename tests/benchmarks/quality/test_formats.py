"""The measures of vectors in fewer bits, against counting and sorting."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib.command import CannotMeasure
from benchmarks.quality.formats import DEPTH, inner_product, nearness, read_definitions, recall


def test_recall_is_that_of_sorting(generator: np.random.Generator) -> None:
    documents = generator.normal(size=(300, 4))
    queries = documents[:260] + generator.normal(size=(260, 4))  # more than are compared at once
    for scores, near in (
        (inner_product, queries @ documents.T),
        (nearness, -np.linalg.norm(queries[:, np.newaxis] - documents, axis=2)),
    ):
        best = np.argsort(-near, axis=1)[:, :DEPTH]
        expected = 100 * np.mean([place in row for place, row in enumerate(best)])
        assert 0 < expected < 100
        assert recall(queries, documents, scores) == pytest.approx(expected)


def test_of_bits_the_nearness_is_how_many_differ(generator: np.random.Generator) -> None:
    bits = generator.integers(0, 2, size=(8, 24)).astype(float)
    differ = (bits[:3, np.newaxis] != bits[3:]).sum(axis=2)
    np.testing.assert_array_equal(nearness(bits[:3], bits[3:]), -differ)


def test_documents_that_all_are_the_same_find_nothing() -> None:
    same = np.ones((DEPTH + 1, 2))
    assert recall(same, same, inner_product) == 0


def test_definitions_are_drawn_by_their_hashes_a_word_once(tmp_path: Path) -> None:
    path = tmp_path / "definitions.csv"
    lines = [f'word {index % 40},"meaning {index}, of it"\n' for index in range(60)]
    path.write_text("".join(lines))
    drawn = read_definitions(path, 20)
    assert len({word for word, _ in drawn}) == 20
    path.write_text("".join(reversed(lines)))
    assert read_definitions(path, 20) == drawn == read_definitions(path, 40)[:20]
    with pytest.raises(CannotMeasure, match="defines 40 words, 41 are wanted: lower --documents"):
        read_definitions(path, 41)
    path.write_text("alone\n")
    with pytest.raises(CannotMeasure, match="is no CSV of word,definition"):
        read_definitions(path, 1)
