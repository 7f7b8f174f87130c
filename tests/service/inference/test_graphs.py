"""Graphs that are not the encoder's: explain.onnx against PyTorch, and one that reads files outside of its artifact."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from export.checkpoint import read_checkpoint
from export.sources import Folder
from model.artifact import EXPLAIN_GRAPH, GRAPH, PLAIN_GRAPH, Artifact, ArtifactError, write_manifest
from model.decomposition.decompose import decompose
from polyhead import Engine
from service.errors import InferenceFailed, Invalid, NotFound, WrongTask
from service.inference.backend import Cancellation, WholeText
from service.inference.onnx_backend import OnnxBackend, OnnxDecomposer
from tests.service.conftest import EngineOf
from tests.service.inference.test_onnx_backend import changed
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


def test_the_engine_explains_what_it_encodes(engine_of: EngineOf, embedder: TaskArtifact) -> None:
    encoder = read_checkpoint(Folder(embedder.folder, "drawn")).encoder.double().use("eager")
    engine = engine_of(embedder.artifact)
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


def test_a_rerankers_logit_is_explained_by_the_tokens_of_the_pair(engine_of: EngineOf, reranker: TaskArtifact) -> None:
    engine = engine_of(reranker.artifact)
    explained = engine.explain_score(A, B)
    logits = engine.encode(pairs=[[A, B]], raw_scores=True).values
    assert explained.logits == pytest.approx(logits[0], abs=1e-5)
    assert explained.contributions.sum(axis=1) == pytest.approx(explained.logits, abs=1e-5)
    with pytest.raises(WrongTask, match="call explain_score"):
        engine.explain(A, B, through="network")
    with pytest.raises(
        Invalid, match="its task is classification.; POST /explain or `Engine.explain_score` decomposes"
    ):
        engine.encode(pairs=[[A, B]], attention={"form": "decomposition"})


def test_what_is_not_explained_is_sent_to_no_other_call(
    engine_of: EngineOf, multi_vector_encoder: TaskArtifact
) -> None:
    engine = engine_of(multi_vector_encoder.artifact)
    with pytest.raises(WrongTask, match="only the similarity of two embeddings can be explained$"):
        engine.explain(A, B, through="network")
    with pytest.raises(WrongTask, match="only a classifier's scores can be explained$"):
        engine.explain_score(A)


def test_an_older_artifact_serves_on_and_says_how_to_get_the_graph(embedder: TaskArtifact, tmp_path: Path) -> None:
    old, manifest = shutil.copytree(embedder.artifact, tmp_path / "old"), Artifact.open(embedder.artifact).manifest
    (old / EXPLAIN_GRAPH).unlink()
    files = {name: entry for name, entry in manifest.files.items() if name != EXPLAIN_GRAPH}
    write_manifest(old, replace(manifest, files=files))
    with Engine.load(old) as engine:
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


def external(location: str) -> onnx.TensorProto:
    """A tensor that keeps its values elsewhere."""
    tensor = onnx.TensorProto(name="far", data_type=onnx.TensorProto.FLOAT, dims=[2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize("place", ["initializer", "constant"])
@pytest.mark.parametrize("location", ["../secret.bin", "ABSOLUTE", "*/_ORT_MEM_ADDR_/*", ""])
def test_onnx_runtime_opens_no_file_outside_of_the_artifact(
    embedder: TaskArtifact, tmp_path: Path, location: str, place: str
) -> None:
    """The graph computes with what it names, and the manifest fits it: hashes are no help."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(8))
    tensor = external(str(secret) if location == "ABSOLUTE" else location)
    artifact = Artifact.open(embedder.artifact)
    model = onnx.load_model(artifact.path(GRAPH))
    if place == "initializer":
        model.graph.initializer.append(tensor)
    else:
        model.graph.node.append(helper.make_node("Constant", [], ["far"], value=tensor))
    model.graph.node.append(helper.make_node("Neg", ["far"], ["farther"]))
    model.graph.output.append(helper.make_tensor_value_info("farther", onnx.TensorProto.FLOAT, [2]))
    wrong = changed(artifact, tmp_path / "artifact", graph=model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"model\.onnx does not load in onnxruntime"):
        OnnxBackend(wrong)


def test_openvino_opens_no_file_outside_of_the_artifact(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    added = helper.make_node("Add", ["x", "far"], ["y"])
    graph = helper.make_graph([added], "g", [x], [y], [external("../secret.bin")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "artifact" / PLAIN_GRAPH
    path.parent.mkdir()
    path.write_bytes(model.SerializeToString())
    with pytest.raises(RuntimeError, match="outside the base directory"):
        openvino.Core().read_model(path)
