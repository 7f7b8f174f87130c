"""Graphs that reach for files, made with onnx, which the service does not have."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.external_data_helper import convert_model_to_external_data

from model.artifact import GRAPH, ArtifactError
from service.inference.graph_files import MAX_DEPTH, external_locations
from service.inference.onnx_backend import OnnxBackend
from tests.service.inference.test_onnx_backend import assert_matches_reference, make_batch
from tests.service.tiny_graph import write_tiny_artifact

SECRET = "../secret.bin"  # noqa: S105 - a file name


def external(location: str) -> onnx.TensorProto:
    """A tensor that keeps its values elsewhere."""
    tensor = onnx.TensorProto(name="far", data_type=onnx.TensorProto.FLOAT, dims=[2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def constant(location: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=external(location))


def branch(location: str) -> onnx.NodeProto:
    """A tensor inside an If inside an If."""
    inner = helper.make_graph([constant(location)], "inner", [], [])
    outer = helper.make_graph([helper.make_node("If", ["x"], ["c"], then_branch=inner)], "outer", [], [])
    return helper.make_node("If", ["x"], ["c"], else_branch=outer)


def sparse(location: str) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=external(location), dims=[4])


def field(number: int, content: bytes) -> bytes:
    """A message in a message, as protobuf writes it."""
    size = len(content)
    return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7]) + content


def node(attribute: onnx.AttributeProto) -> onnx.NodeProto:
    return onnx.NodeProto(op_type="X", attribute=[attribute])


PLACES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "initializer": lambda model: model.graph.initializer.append(external(SECRET)),
    "sparse initializer": lambda model: model.graph.sparse_initializer.append(sparse(SECRET)),
    "constant": lambda model: model.graph.node.append(constant(SECRET)),
    "branch of a branch": lambda model: model.graph.node.append(branch(SECRET)),
    "list of tensors": lambda model: model.graph.node.append(
        node(onnx.AttributeProto(tensors=[external("a"), external(SECRET)]))
    ),
    "sparse attribute": lambda model: model.graph.node.append(node(onnx.AttributeProto(sparse_tensor=sparse(SECRET)))),
    "list of graphs": lambda model: model.graph.node.append(
        node(onnx.AttributeProto(graphs=[helper.make_graph([constant(SECRET)], "g", [], [])]))
    ),
    "function": lambda model: model.functions.append(onnx.FunctionProto(name="f", node=[constant(SECRET)])),
    "function's default": lambda model: model.functions.append(
        onnx.FunctionProto(name="f", attribute_proto=[onnx.AttributeProto(name="a", t=external(SECRET))])
    ),
    "training": lambda model: model.training_info.add().initialization.initializer.append(external(SECRET)),
}


@pytest.fixture
def tiny(tmp_path: Path) -> onnx.ModelProto:
    """The graph of a whole artifact that loads."""
    return onnx.load_model(write_tiny_artifact(tmp_path).path(GRAPH))


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("place", PLACES)
def test_a_file_that_is_not_listed_is_refused_wherever_it_is_named(
    tiny: onnx.ModelProto, tmp_path: Path, place: str
) -> None:
    PLACES[place](tiny)
    artifact = write_tiny_artifact(tmp_path, graph=tiny.SerializeToString())  # the manifest fits: hashes are no help
    assert SECRET in external_locations(artifact.path(GRAPH))
    with pytest.raises(ArtifactError, match=r"model\.onnx keeps weights in '.*', which its manifest does not list"):
        OnnxBackend(artifact)


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize(
    "location", ["/etc/hostname", "a/../../b", "./tokenizer.json", "manifest.json", "*/_ORT_MEM_ADDR_/*", "", "\0"]
)
def test_only_names_as_they_are_listed_are_taken(tiny: onnx.ModelProto, tmp_path: Path, location: str) -> None:
    tiny.graph.initializer.append(external(location))
    with pytest.raises(ArtifactError, match="which its manifest does not list"):
        OnnxBackend(write_tiny_artifact(tmp_path, graph=tiny.SerializeToString()))


def test_listed_weights_are_used(tiny: onnx.ModelProto, tmp_path: Path) -> None:
    convert_model_to_external_data(tiny, location="model.onnx.data", size_threshold=0)
    onnx.save_model(tiny, str(tmp_path / GRAPH))
    artifact = write_tiny_artifact(tmp_path, graph=(tmp_path / GRAPH).read_bytes())
    assert external_locations(artifact.path(GRAPH)) == {"model.onnx.data"} <= set(artifact.manifest.files)
    batch = make_batch([3, 5], layers=(0, 1), wants_tokens=True)
    assert_matches_reference(batch, OnnxBackend(artifact).run(batch))


def test_the_last_of_a_repeated_field_counts_as_in_protobuf(tmp_path: Path) -> None:
    entry = b"\x0a\x01x\x12\x01a\x0a\x08location\x12\x01b"  # key x, value a, key location, value b
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    model = b"\x3a" + bytes([len(graph)]) + graph
    (tmp_path / GRAPH).write_bytes(model)
    assert onnx.ModelProto.FromString(model).graph.initializer[0].external_data[0].value == "b"
    assert external_locations(tmp_path / GRAPH) == {"b"}


def test_graphs_nested_without_end_are_refused(tmp_path: Path) -> None:
    message = b""
    for number in (6, 5, 1) * (MAX_DEPTH // 3 + 1):  # from the inside: an attribute's graph, a node's attribute, ...
        message = field(number, message)
    (tmp_path / GRAPH).write_bytes(field(7, message))
    with pytest.raises(ArtifactError, match="nest deeper than 100"):
        external_locations(tmp_path / GRAPH)


def test_broken_bytes_are_refused_or_read_never_more(tiny: onnx.ModelProto, tmp_path: Path) -> None:
    whole = np.frombuffer(tiny.SerializeToString(), np.uint8)
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        broken = whole[: random.integers(len(whole) + 1)].copy()
        broken[random.integers(0, max(len(broken), 1), min(3, len(broken)))] = random.integers(0, 256)
        (tmp_path / GRAPH).write_bytes(broken.tobytes())
        try:
            external_locations(tmp_path / GRAPH)
        except ArtifactError:  # anything else fails
            refused += 1
    assert refused > 100
