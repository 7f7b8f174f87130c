"""`explain.onnx` against the PyTorch decomposition, and its weights in the encoder's file."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx_ir
import pytest
import torch

from export.errors import ParityError
from export.explain import LEAST_SHARED_BYTES, explain_inputs, share_weights, verify_explain_graph, write_explain_graph
from export.exporter import write_graph
from export.graph import trace
from export.runtime import Session
from model.artifact import EXPLAIN_GRAPH, INPUT_IDS, OWN_SHARES, PARTS, PLACE, SOURCES, TOKEN_TYPE_IDS, WHOLE
from model.config_parts import ClassificationSettings
from model.decomposition.decompose import decompose
from model.encoder import Encoder
from tests.networks import ONE_LAYER, draw_weights, vary

MODERN: dict[str, Any] = {
    **dict.fromkeys(("pre_norm", "final_norm", "gated", "output_gate"), True),
    **dict.fromkeys(("activation", "value_activation"), "silu"),
    "norm": "rms_norm",
    "attention_positions": "rotary",
    "positions": "none",
    "local_layers": (1,),
    "window": 2,
    "value_residual": ((0.0, 1.0), (0.5, 0.5)),
    "pooling": "max",
    "task": "classification",
    "task_settings": ClassificationSettings(labels=("no", "yes"), dense_norm=True),
}
TOKEN_CLASSIFIER: dict[str, Any] = {
    "num_heads": (2, 0),
    "task": "token_classification",
    "task_settings": ClassificationSettings(labels=("O", "B", "I"), dense_activation=None),
}


@pytest.mark.parametrize("change", [MODERN, TOKEN_CLASSIFIER], ids=["modern", "tokens"])
def test_the_graph_gives_the_parts_of_the_decomposition(change: dict[str, Any], tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(vary(**change)))
    figures = write_explain_graph(encoder, tmp_path)
    assert max(figures[name] for name in (PARTS, WHOLE, OWN_SHARES)) < 1e-5
    session, reference = Session(tmp_path / EXPLAIN_GRAPH), encoder.double().use("eager")
    inputs = explain_inputs(encoder.config, 11, 4, seed=5)
    found = session.run(inputs)
    ids, types, sources = (torch.from_numpy(inputs[name]) for name in (INPUT_IDS, TOKEN_TYPE_IDS, SOURCES))
    with torch.no_grad():
        place = torch.from_numpy(inputs[PLACE]) if PLACE in inputs else None
        expected = decompose(reference, ids, types, tokens=sources, place=place)
        whole = reference(ids, torch.tensor([11]), token_type_ids=types).task_output[0]
    if place is not None:
        whole = whole[int(place)]
    np.testing.assert_allclose(found[PARTS], expected.output, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(found[WHOLE], whole, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(found[OWN_SHARES], expected.own_shares, atol=1e-5)


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    """A network whose matrices are large enough to be shared, and where its graphs are."""
    directory = tmp_path_factory.mktemp("graphs")
    encoder = draw_weights(Encoder(ONE_LAYER))
    write_graph(trace(encoder), directory)
    write_explain_graph(encoder, directory)
    return encoder, directory


def test_large_tensors_are_places_in_the_encoders_file(one_layer: tuple[Encoder, Path]) -> None:
    graph = onnx_ir.load(one_layer[1] / EXPLAIN_GRAPH)
    tensors = [value.const_value for value in graph.graph.initializers.values() if value.const_value is not None]
    large = [tensor for tensor in tensors if tensor.nbytes >= LEAST_SHARED_BYTES]
    assert len(large) >= 6  # every matrix of the layer
    for tensor in large:
        assert isinstance(tensor, onnx_ir.ExternalTensor)
        assert tensor.location == "model.onnx"


def test_a_graph_of_another_network_is_refused(one_layer: tuple[Encoder, Path]) -> None:
    encoder, directory = one_layer
    other = draw_weights(Encoder(encoder.config), seed=1)
    with pytest.raises(ParityError, match="parts differs from the PyTorch encoder"):
        verify_explain_graph(directory / EXPLAIN_GRAPH, other)


def test_weights_that_stand_nowhere_else_stay_in_the_graph(one_layer: tuple[Encoder, Path], tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"nothing of it")
    graph = onnx_ir.load(one_layer[1] / EXPLAIN_GRAPH)
    before = {name: value.const_value for name, value in graph.graph.initializers.items()}
    with patch("export.explain.LEAST_SHARED_BYTES", 1):
        assert share_weights(graph, [file]) == 0
    assert all(value.const_value is before[name] for name, value in graph.graph.initializers.items())
