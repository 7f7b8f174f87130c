"""Graphs that reach for files outside of their artifact, made with onnx, which the service does not have."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper
from onnx.external_data_helper import convert_model_to_external_data

from model.artifact import GRAPH, PLAIN_GRAPH, ArtifactError
from service.inference.onnx_backend import OnnxBackend
from tests.service.inference.test_onnx_backend import assert_matches_reference, make_batch
from tests.service.tiny_graph import write_tiny_artifact


def external(location: str) -> onnx.TensorProto:
    """A tensor that keeps its values elsewhere."""
    tensor = onnx.TensorProto(name="far", data_type=onnx.TensorProto.FLOAT, dims=[2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def add(nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto]) -> Callable[[onnx.ModelProto], None]:
    """Adds to a graph what computes with a tensor called `far`, so that its values are needed."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.node.extend([*nodes, helper.make_node("Neg", ["far"], ["farther"])])
        model.graph.initializer.extend(tensors)
        model.graph.output.append(helper.make_tensor_value_info("farther", onnx.TensorProto.FLOAT, [2]))

    return change


def in_initializer(location: str) -> Callable[[onnx.ModelProto], None]:
    return add([], [external(location)])


def in_constant(location: str) -> Callable[[onnx.ModelProto], None]:
    return add([helper.make_node("Constant", [], ["far"], value=external(location))], [])


@pytest.fixture
def tiny(tmp_path: Path) -> onnx.ModelProto:
    """The graph of a whole artifact that loads."""
    return onnx.load_model(write_tiny_artifact(tmp_path).path(GRAPH))


@pytest.mark.parametrize("place", [in_initializer, in_constant])
@pytest.mark.parametrize("location", ["../secret.bin", "ABSOLUTE", "*/_ORT_MEM_ADDR_/*", ""])
def test_onnx_runtime_opens_no_file_outside_of_the_artifact(
    tiny: onnx.ModelProto, tmp_path: Path, location: str, place: Callable[[str], Callable[[onnx.ModelProto], None]]
) -> None:
    secret, folder = tmp_path / "secret.bin", tmp_path / "artifact"
    folder.mkdir()
    secret.write_bytes(bytes(8))
    place(str(secret) if location == "ABSOLUTE" else location)(tiny)
    artifact = write_tiny_artifact(folder, graph=tiny.SerializeToString())  # the manifest fits: hashes are no help
    with pytest.raises(ArtifactError, match=r"model\.onnx does not load in onnxruntime"):
        OnnxBackend(artifact)


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


def test_weights_in_the_artifact_are_used(tiny: onnx.ModelProto, tmp_path: Path) -> None:
    convert_model_to_external_data(tiny, location="model.onnx.data", size_threshold=0)
    onnx.save_model(tiny, str(tmp_path / GRAPH))
    artifact = write_tiny_artifact(tmp_path, graph=(tmp_path / GRAPH).read_bytes())
    batch = make_batch([3, 5], layers=(0, 1), wants_tokens=True)
    assert_matches_reference(batch, OnnxBackend(artifact).run(batch))
