"""`explain.onnx` of a small artifact through the service's session, against PyTorch and the encoder's own graph."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from export.checkpoint import read_checkpoint
from export.sources import Folder
from model.artifact import EXPLAIN_GRAPH, GRAPH, Artifact, ArtifactError, write_manifest
from model.decomposition.decompose import decompose
from polyhead import Engine
from service.errors import InferenceFailed, Invalid, NotFound, WrongTask
from service.inference.backend import Cancellation, WholeText
from service.inference.onnx_backend import OnnxDecomposer
from tests.task_artifacts import TaskArtifact

A, B = "the cat sat on the mat", "a dog ran"


def test_parts_are_those_of_the_checkpoints_network(embedder: TaskArtifact) -> None:
    ids, sources = np.array([2, 7, 9, 8, 3]), np.array([1, 4])
    found = OnnxDecomposer(Artifact.open(embedder.artifact)).run(WholeText(ids), sources, Cancellation())
    encoder = read_checkpoint(Folder(embedder.folder, "drawn")).encoder.double().use("eager")
    with torch.no_grad():
        expected = decompose(encoder, torch.from_numpy(ids)[None], tokens=torch.from_numpy(sources))
    np.testing.assert_allclose(found.parts, expected.output, atol=1e-5)
    np.testing.assert_allclose(found.own_shares, expected.own_shares, atol=1e-5)


def test_the_engine_explains_what_it_encodes(embedder: TaskArtifact) -> None:
    encoder = read_checkpoint(Folder(embedder.folder, "drawn")).encoder.double().use("eager")
    with Engine.load(embedder.artifact) as engine:
        explained = engine.explain(A, B, through="network")
        encoded = engine.encode([A, B], attention={"form": "decomposition"})
        assert explained.similarity == pytest.approx(encoded.embeddings[0] @ encoded.embeddings[1], abs=1e-5)
        assert explained.contributions.sum() == pytest.approx(explained.similarity, abs=1e-5)
        assert explained.contributions.shape == (len(explained.a.tokens) + 1, len(explained.b.tokens) + 1)
        assert explained.a.own_shares is not None
        with pytest.raises(WrongTask, match="call explain"):
            engine.explain_score(A)
        with pytest.raises(Invalid, match="top_pairs"):
            engine.explain(A, B, through="network", top_pairs=3)  # type: ignore[call-arg]
        assert encoded.attention is not None
        for text, entry, vector in zip((A, B), encoded.attention, encoded.embeddings, strict=True):
            ids = torch.from_numpy(engine._runner.tokenizer.encode_now([text])[0].input_ids)
            with torch.no_grad():
                parts, whole = decompose(encoder, ids[None])[1:3]
            parts = torch.cat((parts, (whole - parts.sum(dim=0))[None]))  # what is left is the biases'
            np.testing.assert_allclose(entry["norms"], parts.norm(dim=1) / whole.norm(), atol=1e-5)
            np.testing.assert_allclose(entry["cosines"], torch.cosine_similarity(parts, whole[None]), atol=1e-5)
            assert entry["norms"] @ entry["cosines"] == pytest.approx(np.linalg.norm(vector), abs=1e-5)


def test_a_rerankers_logit_is_explained_by_the_tokens_of_the_pair(reranker: TaskArtifact) -> None:
    with Engine.load(reranker.artifact) as engine:
        explained = engine.explain_score(A, B)
        logits = engine.encode(pairs=[[A, B]], raw_scores=True).values
        assert explained.logits == pytest.approx(logits[0], abs=1e-5)
        assert explained.contributions.sum(axis=1) == pytest.approx(explained.logits, abs=1e-5)
        with pytest.raises(WrongTask, match="call explain_score"):
            engine.explain(A, B, through="network")
        with pytest.raises(Invalid, match="its task is classification.; POST /explain decomposes"):
            engine.encode(pairs=[[A, B]], attention={"form": "decomposition"})


def without_graph(artifact: Path, directory: Path) -> Path:
    """The artifact as an exporter before this graph wrote it."""
    shutil.copytree(artifact, directory)
    (directory / EXPLAIN_GRAPH).unlink()
    manifest = Artifact.open(artifact).manifest
    del manifest.files[EXPLAIN_GRAPH]  # type: ignore[attr-defined]  # a dict when read
    write_manifest(directory, manifest)
    return directory


def test_an_older_artifact_serves_on_and_says_how_to_get_the_graph(embedder: TaskArtifact, tmp_path: Path) -> None:
    with Engine.load(without_graph(embedder.artifact, tmp_path / "old")) as engine:
        assert engine.explain(A, B).contributions.size
        with pytest.raises(NotFound, match="no explain.onnx"):
            engine.explain(A, B, through="network")
        with pytest.raises(ValueError, match="has no explain.onnx"):
            asyncio.run(engine._runner.decompose([]))


def test_a_graph_that_uses_a_file_of_nobodys_is_refused(embedder: TaskArtifact, tmp_path: Path) -> None:
    artifact = Artifact.open(embedder.artifact)
    shutil.copytree(embedder.artifact, tmp_path / "made")
    moved = Artifact(tmp_path / "made", artifact.manifest)
    content = moved.path(EXPLAIN_GRAPH).read_bytes()
    moved.path(EXPLAIN_GRAPH).write_bytes(content.replace(b"model.onnx", b"other.onnx"))
    with pytest.raises(ArtifactError, match=r"(?s)does not load in onnxruntime .*other\.onnx"):
        OnnxDecomposer(moved)


def test_a_folder_that_has_come_to_hold_another_model_is_not_explained(embedder: TaskArtifact, tmp_path: Path) -> None:
    served, other = tmp_path / "served", tmp_path / "other"
    for folder in (served, other):
        shutil.copytree(embedder.artifact, folder)
    graph = bytearray((other / GRAPH).read_bytes())
    graph[len(graph) // 2] ^= 1
    (other / GRAPH).write_bytes(graph)
    with Engine.load(served) as engine:
        served.rename(tmp_path / "before")
        other.rename(served)
        with pytest.raises(InferenceFailed) as caught:
            engine.explain(A, B, through="network")
        assert f"{GRAPH} has SHA-256" in str(caught.value.__cause__)
        served.rename(other)
        (tmp_path / "before").rename(served)
        assert engine.explain(A, B, through="network").similarity == pytest.approx(engine.explain(A, B).similarity)
