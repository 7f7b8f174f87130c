"""Which other files an ONNX graph makes ONNX Runtime open. They are checked before a session opens the graph.

A tensor may keep its values in another file, whose name stands in the graph; a graph from elsewhere may name any file.
The service has no onnx package, so this reads protobuf's wire format itself, along the fields of onnx.proto that lead
to tensors. A graph that it cannot follow is refused.
"""

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from model.artifact import GRAPH, Artifact, ArtifactError

MAX_DEPTH = 100  # of messages in messages; protobuf's own limit

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = MappingProxyType({_FIXED64: 8, _FIXED32: 4})
_EXTERNAL_DATA = "StringStringEntryProto"
_KEY, _VALUE = 1, 2
# onnx.proto of ONNX 1.23: by message, the fields through which a tensor's external data can be reached.
_FIELDS: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
        "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
        "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
        "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
        "NodeProto": {5: "AttributeProto"},
        "AttributeProto": {
            5: "TensorProto",
            6: "GraphProto",
            10: "TensorProto",
            11: "GraphProto",
            22: "SparseTensorProto",
            23: "SparseTensorProto",
        },
        "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
        "TensorProto": {13: _EXTERNAL_DATA},
    }
)

Span = tuple[int, int]


def check_graph_files(artifact: Artifact, graph: str = GRAPH) -> None:
    """Refuses a graph that uses a file which its artifact's manifest does not list: its hash is unchecked.

    Raises:
        ArtifactError: it does, or is no ONNX model; the message names the graph and the file.
    """
    path = artifact.path(graph)
    for location in external_locations(path):
        if location not in artifact.manifest.files:
            raise ArtifactError(
                f"{path} keeps weights in {location!r}, which its manifest does not list: a graph may only use files "
                "of its own artifact; export it again"
            )


def external_locations(path: Path) -> set[str]:
    """Names of the files in which a graph's tensors keep their values.

    Raises:
        ArtifactError: the file is no ONNX model.
    """
    if not path.stat().st_size:
        raise ArtifactError(f"{path} is no ONNX model: it is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return set(_locations(data, (0, len(data)), "ModelProto", 0))
        except (ValueError, IndexError) as error:
            raise ArtifactError(f"{path} is no ONNX model: {error}") from error


def _locations(data: mmap.mmap, span: Span, message: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ValueError(f"messages nest deeper than {MAX_DEPTH}")
    for field, part in _byte_fields(data, span):
        child = _FIELDS[message].get(field)
        if child == _EXTERNAL_DATA:
            yield from _location(data, part)
        elif child is not None:
            yield from _locations(data, part, child, depth + 1)


def _location(data: mmap.mmap, span: Span) -> Iterator[str]:
    """The value of an entry `location`; protobuf keeps the last of repeated fields."""
    entry = {field: data[start:end] for field, (start, end) in _byte_fields(data, span)}
    if entry.get(_KEY) == b"location":
        yield entry.get(_VALUE, b"").decode("utf-8", "backslashreplace")


def _byte_fields(data: mmap.mmap, span: Span) -> Iterator[tuple[int, Span]]:
    """Field number and place of everything in a message that has a length: texts, bytes, messages, packed numbers."""
    at, end = span
    while at < end:
        tag, at = _varint(data, at, end)
        kind = tag & 7
        size = _FIXED_SIZES.get(kind, 0)
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _BYTES:
            size, at = _varint(data, at, end)
        elif not size:
            raise ValueError(f"wire type {kind} at byte {at}")
        if size > end - at:
            raise ValueError(f"a field ends behind its message, at byte {at}")
        if kind == _BYTES:
            yield tag >> 3, (at, at + size)
        at += size


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number of up to ten bytes, seven bits each, and where the next one starts."""
    value = 0
    for count, place in enumerate(range(at, min(end, at + 10))):
        byte = data[place]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, place + 1
    raise ValueError(f"an endless number at byte {at}")
