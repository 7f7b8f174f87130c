"""Graphs that reach for files outside of their artifact, made with onnx, which the service does not have."""

from pathlib import Path

import onnx
import pytest
from onnx import helper
from onnx.external_data_helper import convert_model_to_external_data

from model.artifact import GRAPH, PLAIN_GRAPH, Artifact, ArtifactError
from service.inference.onnx_backend import OnnxBackend
from tests.service.inference.test_onnx_backend import assert_matches_original, changed, make_batch
from tests.task_artifacts import TaskArtifact


def external(location: str) -> onnx.TensorProto:
    """A tensor that keeps its values elsewhere."""
    tensor = onnx.TensorProto(name="far", data_type=onnx.TensorProto.FLOAT, dims=[2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.fixture
def artifact(embedder: TaskArtifact) -> Artifact:
    return Artifact.open(embedder.artifact)


@pytest.mark.parametrize("place", ["initializer", "constant"])
@pytest.mark.parametrize("location", ["../secret.bin", "ABSOLUTE", "*/_ORT_MEM_ADDR_/*", ""])
def test_onnx_runtime_opens_no_file_outside_of_the_artifact(
    artifact: Artifact, tmp_path: Path, location: str, place: str
) -> None:
    """The graph computes with what it names, and the manifest fits it: hashes are no help."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(8))
    tensor = external(str(secret) if location == "ABSOLUTE" else location)
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


def test_weights_in_the_artifact_are_used(embedder: TaskArtifact, artifact: Artifact, tmp_path: Path) -> None:
    model = onnx.load_model(artifact.path(GRAPH))
    convert_model_to_external_data(model, location="model.onnx.data", size_threshold=1024)
    onnx.save_model(model, str(tmp_path / GRAPH))
    moved = changed(artifact, tmp_path, graph=(tmp_path / GRAPH).read_bytes())
    batch = make_batch([3, 5], layers=(0, 1), wants_tokens=True)
    assert_matches_original(embedder, batch, OnnxBackend(moved).run(batch))
