"""The whole path from a checkpoint to an artifact: trace, write, verify, describe, and only then give it its name."""

import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import onnx_ir
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.errors import OutputExists
from export.explain import can_explain, write_explain_graph
from export.graph import OPSET, input_names, output_names, trace
from export.memory import available_bytes, require_memory
from export.precision import Precision, judge, to_precision
from export.ranges import measure_ranges
from export.verify import verify
from model.artifact import GRAPH, GRAPH_WEIGHTS, MANIFEST, TOKENIZER, describe_files, write_manifest
from model.manifest import Manifest

EXTERNAL_WEIGHTS_BYTES = 1 << 30  # a protobuf holds 2 GiB at most, and large files load faster beside it
PACKAGES = ("polyhead", "torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "tokenizers")
STAGES = ("preparing", "tracing the graph", "writing", "verifying", "judging", "explaining", "describing")


@dataclass(frozen=True, slots=True)
class PruningRecord:
    """What an artifact says about the heads that were removed before the export.

    Attributes:
        removed: for the manifest (see `export.pruning.driver`); None where no head was removed.
        files: the curve and its picture, contents by file name.
    """

    removed: Mapping[str, Any] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def export_artifact(
    checkpoint: Checkpoint,
    output: Path,
    *,
    precision: Precision = "fp32",
    calibration: Path | None = None,
    force: bool = False,
    pruning: PruningRecord | None = None,
    explains: bool = True,
) -> Manifest:
    """Writes a verified artifact.

    Everything is made in a temporary directory beside the output, which takes its name at the very end: a failed or
    interrupted export leaves nothing behind, and a reader never sees half an artifact.

    Args:
        checkpoint: the network and what surrounds it.
        output: directory to make.
        precision: `fp32`, `fp16`, `bf16` or `int8`.
        calibration: text for the ranges of int8 and of 8-bit vectors, one a line; None for what ships with the project.
        force: replace an artifact, or an empty directory, that has the output's name.
        pruning: which heads were removed before; None where none were.
        explains: whether to make the graph that explains through the network too, where there can be one.

    Returns:
        The manifest that was written.

    Raises:
        OutputExists: the output is there and `force` is not set, or it is no artifact.
        SourceError: the calibration text cannot be used.
        VerificationError: the graph is not what was asked for, or there is too little memory to find out.
    """
    require_free(output, force=force)
    require_memory(checkpoint.encoder, available_bytes())
    with _parents(output), tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as directory:
        made = Path(directory) / output.name
        made.mkdir()
        manifest = _make(checkpoint, made, precision, calibration, pruning or PruningRecord(), explains=explains)
        _put_in_place(made, output)
    return manifest


def require_free(output: Path, *, force: bool) -> None:
    """Raises OutputExists where something has the output's name already and may not be replaced.

    Replacing deletes what is there, so `force` covers an artifact and an empty directory, and nothing else.
    """
    if not output.exists():
        return
    if not force:
        raise OutputExists(f"{output} exists already: name another directory, or replace it with --force")
    if not output.is_dir() or (any(output.iterdir()) and not (output / MANIFEST).is_file()):
        raise OutputExists(
            f"{output} is no artifact (it has no {MANIFEST}), and --force replaces nothing else: name another directory"
        )


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
    """Renames what was made to the output. An older output is moved beside `made` and deleted with its directory."""
    replaced = made.parent / "replaced"
    try:
        if output.exists():
            output.rename(replaced)
        made.rename(output)
    except BaseException:
        if replaced.exists() and not output.exists():
            replaced.rename(output)
        raise


def _make(
    checkpoint: Checkpoint,
    directory: Path,
    precision: Precision,
    calibration: Path | None,
    pruning: PruningRecord,
    *,
    explains: bool,
) -> Manifest:
    config, graph = checkpoint.encoder.config, directory / GRAPH
    with _Stages() as stages:
        stages.enter("preparing")
        prepared = to_precision(checkpoint, precision, calibration)
        stages.enter("tracing the graph")
        model = trace(prepared.traced)
        stages.enter("writing")
        write_graph(model, directory)
        del model  # its weights are a copy of the encoder's: 2.3 GB of a network of 568 million
        checkpoint.tokenizer.save(str(directory / TOKENIZER))
        for name, content in pruning.files.items():
            (directory / name).write_bytes(content)
        stages.enter("verifying")
        fused, parity = verify(graph, prepared.reference, tolerance=prepared.tolerance)
        stages.enter("judging")
        figures = dict(judge(graph, checkpoint, precision))
        ranges = measure_ranges(graph, checkpoint, calibration)
        if explains and can_explain(config, precision):
            stages.enter("explaining")
            figures |= {"explain": write_explain_graph(checkpoint.encoder, directory)}
        stages.enter("describing")
        manifest = Manifest(
            model=checkpoint.name,
            source=checkpoint.source,
            config=config,
            precision=precision,
            opset=OPSET,
            inputs=input_names(config),
            outputs=output_names(config),
            defaults=checkpoint.defaults,
            max_sequence_length=checkpoint.max_sequence_length,
            fused_attention=fused,
            parity={**parity, **figures},
            files=describe_files(directory),
            pruning=pruning.removed,
            pairs=checkpoint.pairs,
            pair_wording=checkpoint.pair_wording,
            vector_ranges=ranges,
            fits_16_bits=precision == "int8",
            versions={"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        )
        write_manifest(directory, manifest)
    return manifest


class _Stages:
    """A progress bar over the stages of an export, on stderr."""

    def __init__(self) -> None:
        self._bar = tqdm(total=len(STAGES), unit="stage", bar_format="{desc:<18}{bar:30} {n}/{total} [{elapsed}]")

    def __enter__(self) -> Self:
        return self

    def enter(self, stage: str) -> None:
        self._bar.set_description_str(stage)
        self._bar.update(STAGES.index(stage) - self._bar.n)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._bar.update(len(STAGES) - self._bar.n)
        self._bar.close()


def write_graph(model: onnx_ir.Model, directory: Path) -> None:
    """Writes `model.onnx`, its weights beside it where they are large."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    external = GRAPH_WEIGHTS if size > EXTERNAL_WEIGHTS_BYTES else None
    onnx_ir.save(model, directory / GRAPH, external_data=external)
