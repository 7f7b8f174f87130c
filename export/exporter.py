"""The whole path from a checkpoint to an artifact: trace, write, verify, describe, and only then give it its name."""

import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.errors import OutputExists
from export.explain import can_explain, write_explain_graph
from export.graph import OPSET, input_names, output_names, trace
from export.openvino import require_openvino, write_plain_graph
from export.original import not_compared
from export.precision import judge, to_precision
from export.quality import measure_ranges
from export.reference import available_bytes, require_memory
from export.runtime import CUDA, Session
from export.verify import verify
from model.artifact import (
    FURTHER_OUTPUTS,
    GRAPH,
    GRAPH_WEIGHTS,
    MANIFEST,
    ONNX_RUNTIME,
    OPENVINO,
    TOKENIZER,
    Manifest,
    describe_files,
    write_manifest,
)
from model.config_parts import Precision

EXTERNAL_WEIGHTS_BYTES = 1 << 30  # a protobuf holds 2 GiB at most, and large files load faster beside it
PACKAGES = ("polyhead", "torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "tokenizers")
STAGES = 6  # of an export; OpenVINO and explaining are one more each


def export_artifact(
    checkpoint: Checkpoint,
    output: Path,
    *,
    precision: Precision = "fp32",
    engine: str | None = None,
    calibration: Path | None = None,
    force: bool = False,
    pruning: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    explains: bool = True,
    original: Mapping[str, Any] | None = None,
) -> Manifest:
    """Writes a verified artifact and returns its manifest.

    Writes everything into a temporary directory next to the output, and renames it at the very end: a failed or
    interrupted export leaves nothing behind, and a reader never sees half an artifact.

    Args:
        checkpoint: the network and what surrounds it.
        output: directory to make.
        precision: of the graph.
        engine: what computes plain answers; None for ONNX Runtime, or OpenVINO for bf16 where that has no CUDA.
        calibration: text for the ranges of int8 and of 8-bit vectors, one a line; None for what ships with the project.
        force: replace an artifact, or an empty directory, that has the output's name.
        pruning: which heads were removed before, for the manifest (`export.pruning.driver`).
        files: what else the artifact holds, contents by name.
        explains: whether to make the graph that explains through the network too, if there can be one.
        original: what `export.original.compare_with_original` found, for the manifest.

    Raises:
        OutputExists: the output is there and `force` is not set, or it is no artifact.
        SourceError: the calibration text cannot be used.
        VerificationError: the graph fails verification, or there is too little memory for it.
    """
    require_free(output, force=force)
    if engine is None:
        has_cuda = CUDA in Session.available_providers()
        engine = OPENVINO if precision == "bf16" and not has_cuda else ONNX_RUNTIME
    if engine == OPENVINO:
        require_openvino(precision)
    require_memory(checkpoint.encoder, available_bytes())
    with _parents(output), tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as directory:
        made = Path(directory) / output.name
        made.mkdir()
        for name, content in (files or {}).items():
            (made / name).write_bytes(content)
        compared = {"original": dict(original or not_compared("it was not asked for"))}
        manifest = _make(
            checkpoint, made, precision, calibration, pruning, engine=engine, explains=explains, compared=compared
        )
        require_free(output, force=force)  # once more: an export takes minutes
        _put_in_place(made, output)
    return manifest


def require_free(output: Path, *, force: bool) -> None:
    """Checks that an artifact can get the output's name: `force` replaces an artifact or an empty directory alone.

    Raises:
        OutputExists: something has the name already and may not be replaced.
        PermissionError: no directory can be made there.
    """
    require_writable(output.absolute().parent)
    if not os.path.lexists(output):  # a link that leads nowhere would be in the way too
        return
    if not force:
        raise OutputExists(f"{output} exists already: name another directory, or replace it with --force")
    if not output.is_dir() or (any(output.iterdir()) and not (output / MANIFEST).is_file()):
        raise OutputExists(
            f"{output} is no artifact (it has no {MANIFEST}), and --force replaces nothing else: name another directory"
        )


def require_writable(folder: Path) -> None:
    """Checks that files can be written into a folder, or that it can be made; a PermissionError says what hinders."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{there} is no directory that can be written to: name another place")


@contextmanager
def _parents(output: Path) -> Iterator[None]:
    """Makes the output's parent directories; where the export fails, removes those that it made."""
    missing = [parent for parent in output.parents if not parent.exists()]  # the nearest first
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # not made, or in use by now
                parent.rmdir()
        raise


def _put_in_place(made: Path, output: Path) -> None:
    """Gives the new artifact the output's name; an older output is then deleted with the temporary directory."""
    replaced = made.parent / "replaced"
    if output.exists():
        output.rename(replaced)
    try:
        made.rename(output)
    except BaseException:
        if replaced.exists():
            replaced.rename(output)
        raise


def _make(
    checkpoint: Checkpoint,
    directory: Path,
    precision: Precision,
    calibration: Path | None,
    pruning: Mapping[str, Any] | None,
    *,
    engine: str,
    explains: bool,
    compared: Mapping[str, Any],
) -> Manifest:
    config, graph = checkpoint.encoder.config, directory / GRAPH
    graph_precision: Precision = "fp32" if engine == OPENVINO else precision  # OpenVINO rounds by itself
    explains = explains and can_explain(config, graph_precision)
    total, shown = STAGES + (engine == OPENVINO) + explains, "{desc:<22}{bar:30} {n}/{total} [{elapsed}]"
    with tqdm(total=total, unit="stage", bar_format=shown) as bar:

        def enter(stage: str) -> None:
            bar.set_description_str(stage)
            bar.update()

        enter("preparing")
        prepared = to_precision(checkpoint, graph_precision, calibration)
        enter("tracing the graph")
        model = trace(prepared.traced)
        enter("writing")
        write_graph(model, directory)
        del model  # its weights are a copy of the encoder's: 2.3 GB of a network of 568 million
        checkpoint.tokenizer.save(str(directory / TOKENIZER))
        if checkpoint.further_outputs:
            np.savez(directory / FURTHER_OUTPUTS, allow_pickle=False, **checkpoint.further_outputs)
        enter("verifying")
        fused, parity = verify(graph, prepared.reference, tolerance=prepared.tolerance)
        enter("judging")
        figures = dict(judge(graph, checkpoint, graph_precision))
        if prepared.float32_products:
            figures["float32_products"] = list(prepared.float32_products)
        ranges = measure_ranges(graph, checkpoint, calibration)
        if engine == OPENVINO:
            enter("verifying in OpenVINO")
            figures |= {"openvino": write_plain_graph(checkpoint, directory, precision)}
        if explains:
            enter("explaining")
            figures |= {"explain": write_explain_graph(checkpoint.encoder, directory)}
        enter("describing")
        manifest = _describe(
            checkpoint,
            precision=precision,
            fused_attention=fused,
            parity={**parity, **figures, **compared},
            files=describe_files(directory),
            pruning=pruning,
            vector_ranges=ranges,
            fits_16_bits=precision == "int8",
            engine=engine,
        )
        write_manifest(directory, manifest)
    return manifest


def _describe(checkpoint: Checkpoint, **made: Any) -> Manifest:
    config, further = checkpoint.encoder.config, checkpoint.further_outputs
    return Manifest(
        model=checkpoint.name,
        source=checkpoint.source,
        config=config,
        opset=OPSET,
        inputs=input_names(config),
        outputs=output_names(config),
        defaults=checkpoint.defaults,
        max_sequence_length=checkpoint.max_sequence_length,
        removed_in_training=checkpoint.removed or None,
        examples=checkpoint.examples,
        pairs=checkpoint.pairs,
        pair_wording=checkpoint.pair_wording,
        token_outputs={"sparse": 2, "multi_vector": len(further["vector_bias"])} if "vector_bias" in further else {},
        query_table="query_weights" in further,
        versions={"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        **made,
    )


def write_graph(model: onnx_ir.Model, directory: Path) -> None:
    """Writes `model.onnx`, and large weights in a file of their own."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    external = GRAPH_WEIGHTS if size > EXTERNAL_WEIGHTS_BYTES else None
    onnx_ir.save(model, directory / GRAPH, external_data=external)
