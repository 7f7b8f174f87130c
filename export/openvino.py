"""`plain.onnx`: the task's output alone, for OpenVINO, which computes graphs with branches wrongly.

It is the artifact's graph without what is computed on demand: the switches are made constants, and ONNX Runtime folds
the branches away. Layers with a window attend to all keys and hide those outside it, in long texts too.
"""

import importlib.util
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
from numpy.typing import NDArray
from onnx import inliner, numpy_helper
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.errors import UnsupportedModel, VerificationError
from export.explain import save_beside
from export.precision import OTHERWISE, TOLERANCES
from export.quality import require_quality, split_by_text
from export.reference import float64_reference
from export.tasks.definition import Threshold
from export.tasks.registry import EXPORTS
from export.texts import HELD_OUT_TEXTS, Inputs, batch_inputs, run_encoder, task_batches
from export.verify import Outputs, Parity, compare, grid, judge_parity
from model.artifact import ATTENTION_LAYERS, GRAPH, GRAPH_WEIGHTS, HEAD_GATES, NORM_LAYERS, PLAIN_GRAPH
from model.attention import FUSED_OP, LOCAL_ATTENTION_OP
from model.config import EncoderConfig
from model.config_parts import OUTPUT_NAMES, Precision
from model.encoder import Encoder
from model.processor import compile_in_openvino
from model.value_stream import FUNCTIONS_DOMAIN

INSTALL = "pip install 'polyhead[openvino]'"
BRANCHES = ("If", "Scan")
_FOLDED, _FOLDED_WEIGHTS = "folded.onnx", "folded.data"


def is_installed() -> bool:
    """Whether OpenVINO is there to verify with."""
    return importlib.util.find_spec("openvino") is not None


def require_openvino(precision: Precision) -> None:
    """Refuses what cannot be made for OpenVINO here: an UnsupportedModel, or VerificationError if it is not there."""
    if precision not in ("fp32", "bf16"):
        raise UnsupportedModel(f"--engine openvino takes --precision fp32 or bf16, not {precision}")
    if not is_installed():
        raise VerificationError(f"an artifact for OpenVINO is verified in OpenVINO, which is not installed: {INSTALL}")


def write_plain_graph(checkpoint: Checkpoint, directory: Path, precision: Precision) -> dict[str, Any]:
    """Writes and verifies the graph beside a directory's `model.onnx`; returns what verification found.

    Raises:
        UnsupportedModel: a branch stays.
        ParityError: OpenVINO computes something else than the encoder.
        QualityError: its bf16 is too far from float32 on held-out text.
    """
    path, encoder = directory / PLAIN_GRAPH, checkpoint.encoder
    save_beside(plain_graph(directory / GRAPH, encoder.config), path)
    session = PlainSession(path, encoder.config, precision)
    figures = verify_plain_graph(session, encoder)
    thresholds = EXPORTS[encoder.config.task].thresholds.get(precision)
    if thresholds is not None:
        figures["quality"] = _judge(session, checkpoint, thresholds, OTHERWISE[precision])
    return figures


def plain_graph(path: Path, config: EncoderConfig) -> onnx_ir.Model:
    """A graph without its switches and what they switch on; an UnsupportedModel says that a branch stays."""
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        if (node.domain, node.op_type) == (FUNCTIONS_DOMAIN, LOCAL_ATTENTION_OP):
            _attend_to_all_keys(node)
    model = inliner.inline_local_functions(model)
    output = OUTPUT_NAMES[config.task]
    constants: Mapping[str, NDArray[Any]] = {
        ATTENTION_LAYERS: np.zeros(config.num_layers, np.bool_),
        NORM_LAYERS: np.zeros(config.num_layers, np.bool_),
        HEAD_GATES: np.zeros((0, sum(config.num_heads)), np.float32),
    }
    outputs = [entry for entry in model.graph.output if entry.name == output]
    inputs = [entry for entry in model.graph.input if entry.name not in constants]
    del model.graph.output[:], model.graph.input[:]
    model.graph.output.extend(outputs)
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    # External data is found in the folder of the file that names it.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".plain.") as folder:
        return _folded(model, path.parent, Path(folder))


def _attend_to_all_keys(node: onnx.NodeProto) -> None:
    """Makes a window's attention the fused operator, whose bias hides what is outside the window."""
    query, key, value, lengths, bias = node.input
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    heads = {"q_num_heads": attributes["num_heads"], "kv_num_heads": attributes["num_key_value_heads"]}
    inputs = [query, key, value, bias, "", "", lengths]
    node.CopyFrom(onnx.helper.make_node(FUSED_OP, inputs, list(node.output), scale=attributes["scale"], **heads))


def _folded(model: onnx.ModelProto, weights: Path, folder: Path) -> onnx_ir.Model:
    """The graph as ONNX Runtime simplifies it, still of standard operators."""
    if (data := weights / GRAPH_WEIGHTS).is_file():
        (folder / GRAPH_WEIGHTS).hardlink_to(data)
    onnx.save(model, str(folder / GRAPH))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / _FOLDED)
    options.log_severity_level = 3
    if data.is_file():
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _FOLDED_WEIGHTS)
    onnxruntime.InferenceSession(str(folder / GRAPH), options, providers=["CPUExecutionProvider"])
    folded = onnx_ir.load(folder / _FOLDED)
    kinds = Counter(node.op_type for node in folded.graph.all_nodes() if node.op_type in BRANCHES)
    if kinds:
        raise UnsupportedModel(
            f"--engine openvino: OpenVINO computes branches wrongly, and {', '.join(kinds)} stays in this network's "
            "graph: export it without --engine openvino"
        )
    onnx_ir.external_data.load_to_model(folded)  # the folder goes
    return folded


class PlainSession:
    """`plain.onnx` in OpenVINO, with the settings that it is served with."""

    def __init__(self, path: Path, config: EncoderConfig, precision: Precision, threads: int = 0) -> None:
        import openvino  # noqa: PLC0415 - an extra

        self.version = openvino.__version__
        try:
            self._compiled, self.computes_in = compile_in_openvino(path, precision, streams=1, threads=threads)
        except RuntimeError as error:
            raise VerificationError(f"OpenVINO {self.version} refuses the graph: {error}") from error
        self._output = OUTPUT_NAMES[config.task]
        self._inputs = {entry.get_any_name() for entry in self._compiled.inputs}
        self._request = self._compiled.create_infer_request()

    def run(self, inputs: Inputs) -> Outputs:
        """The task's output of a batch, by its name."""
        self._request.infer({name: array for name, array in inputs.items() if name in self._inputs})
        return {self._output: np.array(self._request.get_tensor(self._output).data)}


def verify_plain_graph(session: PlainSession, encoder: Encoder) -> dict[str, Any]:
    """Compares the task's output with the encoder's in float64 over the whole grid; returns the figures.

    Raises:
        ParityError: a difference is above the tolerance of the precision that OpenVINO computes in.
    """
    config, tolerance = encoder.config, TOLERANCES["bf16" if session.computes_in == "bf16" else "fp32"]
    parity, reference = Parity(tolerance), float64_reference(encoder)
    for case in tqdm(list(grid(config)), desc="verifying in OpenVINO", unit="batch", leave=False):
        inputs = case.inputs(config, case.generator())
        compare(replace(case, layers=()), session.run, reference, inputs, parity)
        parity.count(case.sequence)
    judge_parity(parity, reference, encoder)
    figures = {**parity.differences, "cases": parity.cases, "longest": parity.longest}
    return {**figures, "tolerance": tolerance.largest, "computed_in": session.computes_in, "version": session.version}


def _judge(
    session: PlainSession, checkpoint: Checkpoint, thresholds: Sequence[Threshold], otherwise: str
) -> dict[str, Any]:
    """How far bf16 is from float32 on held-out text."""
    encoder = checkpoint.encoder.use("sdpa")
    config = encoder.config
    rows: tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]] = [], []
    for batch in tqdm(task_batches(HELD_OUT_TEXTS, checkpoint), desc="judging", unit="batch", leave=False):
        inputs = batch_inputs(config, batch)
        outputs = session.run(inputs)[OUTPUT_NAMES[config.task]], run_encoder(encoder, inputs).task_output.numpy()
        for kept, found in zip(rows, outputs, strict=True):
            kept.extend(split_by_text(found, batch.lengths.tolist(), config.task))
    quality = {"texts": len(rows[0]), **EXPORTS[config.task].measure(*rows)}
    require_quality(quality, thresholds, otherwise)
    return quality
