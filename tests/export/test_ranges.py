"""The ranges of 8-bit vectors, against sentence-transformers on the same texts."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import quantize_embeddings

from export.checkpoint import read_checkpoint
from export.errors import SourceError
from export.int8.calibration import TEXTS, read_texts
from export.ranges import measure_ranges
from export.sources import Folder
from model.artifact import GRAPH, Artifact, read_manifest
from tests.task_artifacts import TaskArtifact


def test_the_ranges_are_those_of_sentence_transformers(embedder: TaskArtifact) -> None:
    manifest = Artifact.open(embedder.artifact).manifest
    assert manifest.vector_ranges is not None
    model = SentenceTransformer(str(embedder.folder), device="cpu")
    vectors = model.encode(read_texts(TEXTS), convert_to_numpy=True, normalize_embeddings=True)
    found = np.array([manifest.vector_ranges.minimum, manifest.vector_ranges.maximum], np.float32)
    np.testing.assert_allclose(found, [vectors.min(axis=0), vectors.max(axis=0)], atol=1e-5, rtol=0)
    quantized = np.asarray(quantize_embeddings(vectors, "uint8", ranges=found))
    assert quantized.min() == 0
    assert quantized.max() >= 254


def test_other_text_gives_other_ranges(embedder: TaskArtifact, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(Folder(embedder.folder, "drawn"))
    (tmp_path / "texts").write_text("the cats sat on the mats\n" * 16)
    found = measure_ranges(embedder.artifact / GRAPH, checkpoint, tmp_path / "texts")
    assert found is not None
    np.testing.assert_allclose(found.minimum, found.maximum, atol=1e-6)
    (tmp_path / "texts").write_text("too few\n")
    with pytest.raises(SourceError, match="holds 1 texts"):
        measure_ranges(embedder.artifact / GRAPH, checkpoint, tmp_path / "texts")


def test_other_tasks_have_none(reranker: TaskArtifact) -> None:
    assert read_manifest(reranker.artifact).vector_ranges is None
