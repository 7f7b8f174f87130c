"""`explain.onnx`: the decomposition of a network as a graph, next to the encoder's graph and on its weights."""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from torch import Tensor, nn

from export.graph import export_module, fold_biases
from export.reference import float64_reference
from export.runtime import Session
from export.texts import Inputs
from export.verify import Parity, Tolerance
from model.artifact import (
    EXPLAIN_GRAPH,
    GRAPH,
    GRAPH_WEIGHTS,
    INPUT_IDS,
    OWN_SHARES,
    PARTS,
    PLACE,
    SOURCES,
    TOKEN_TYPE_IDS,
    WHOLE,
)
from model.config import EncoderConfig
from model.decomposition.decompose import DECOMPOSABLE, decompose
from model.decomposition.output_only import decompose_output
from model.encoder import Encoder

OUTPUTS = (PARTS, WHOLE, OWN_SHARES)
LEAST_SHARED_BYTES = 4096  # smaller tensors are in the graph itself
LENGTHS = (1, 2, 7, 24)  # tokens of the texts that the graph is verified on
SEED = 20231
# Parts are larger than what they add up to and cancel in it, so rounding is relative to the largest of them. Those of
# all-MiniLM-L6-v2 differ by 2e-6.
TOLERANCE = Tolerance(largest=1e-5, mean=1e-5)


def can_explain(config: EncoderConfig, precision: str) -> bool:
    """Whether a graph of this network in this precision can be made.

    Lower precisions are left out: rounded parts would not add up to what the encoder's graph gives.
    """
    return precision == "fp32" and config.task in DECOMPOSABLE and config.is_decomposable


def write_explain_graph(encoder: Encoder, directory: Path) -> dict[str, Any]:
    """Writes and verifies the graph beside a directory's `model.onnx`; returns what verification found.

    Raises:
        ParityError: it differs from the PyTorch decomposition.
    """
    traced = _Traced(fold_biases(encoder).use("eager")).eval()
    example = explain_inputs(encoder.config, min(5, encoder.config.max_positions), 3)
    sizes = {INPUT_IDS: {1: "sequence"}, SOURCES: {0: "tokens"}, TOKEN_TYPE_IDS: {1: "sequence"}, PLACE: {}}
    path = directory / EXPLAIN_GRAPH
    save_beside(export_module(traced, example, OUTPUTS, sizes, rewrites=False), path)
    return verify_explain_graph(path, encoder)


def save_beside(model: onnx_ir.Model, path: Path) -> None:
    """Writes a graph into the folder of the encoder's, its large tensors as places in the encoder's files."""
    share_weights(model, [file for name in (GRAPH, GRAPH_WEIGHTS) if (file := path.with_name(name)).is_file()])
    onnx_ir.save(model, path)


def share_weights(model: onnx_ir.Model, files: Sequence[Path]) -> int:
    """Names the places in files where a graph's large tensors stand, instead of the tensors; returns their bytes."""
    shared, starts = 0, dict.fromkeys(files, 0)
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < LEAST_SHARED_BYTES:
            continue
        for file in files:
            if (offset := _find(file, tensor.tobytes(), starts[file])) >= 0:
                value.const_value = onnx_ir.ExternalTensor(
                    file.name, offset, tensor.nbytes, tensor.dtype, shape=onnx_ir.Shape(tensor.shape.numpy()), name=name
                )
                starts[file], shared = offset, shared + tensor.nbytes
                break
    return shared


def explain_inputs(config: EncoderConfig, tokens: int, sources: int, seed: int = SEED) -> Inputs:
    """One random text, and the last of its tokens as sources; of a token classifier a token, too."""
    generator = np.random.default_rng([seed, tokens])
    inputs: Inputs = {
        INPUT_IDS: generator.integers(0, config.vocab_size, (1, tokens)),
        SOURCES: np.arange(tokens)[-sources:],
    }
    if config.type_vocab_size:
        inputs[TOKEN_TYPE_IDS] = generator.integers(0, config.type_vocab_size, (1, tokens))
    if config.task == "token_classification":
        inputs[PLACE] = generator.integers(0, tokens, 1)
    return inputs


def verify_explain_graph(path: Path, encoder: Encoder) -> dict[str, Any]:
    """Compares the graph with the decomposition in float64; returns the largest differences.

    Raises:
        ParityError: one is above the tolerance.
    """
    session, parity = Session(path), Parity(TOLERANCE)
    config, reference = encoder.config, float64_reference(encoder).use("eager")
    lengths = sorted({min(length, config.max_positions) for length in LENGTHS})
    for tokens, sources in sorted({(n, sources) for n in lengths for sources in (n, (n + 1) // 2)}):
        inputs = explain_inputs(config, tokens, sources)
        given = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.inference_mode():
            types, place = given.get(TOKEN_TYPE_IDS), given.get(PLACE)
            expected = decompose(reference, given[INPUT_IDS], types, tokens=given[SOURCES], place=place)
        found = session.run(inputs)
        for name, tensor in zip(OUTPUTS, (expected.output, expected.whole, expected.own_shares), strict=True):
            parity.record(name, found[name], tensor.numpy())
        parity.count(tokens)
    figures = {**parity.differences, "cases": parity.cases, "longest": parity.longest}
    return {**figures, "tolerance": TOLERANCE.largest}


class _Traced(nn.Module):
    """The decomposition with the graph's inputs."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: Tensor, sources: Tensor, token_type_ids: Tensor | None = None, place: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        return decompose_output(self.encoder, input_ids, token_type_ids, tokens=sources, place=place)


def _find(file: Path, values: bytes, start: int) -> int:
    """The offset of the values in a file, searched from `start` first; -1 if they are nowhere."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = data.find(values, start)
        return found if found >= 0 or not start else data.find(values)
