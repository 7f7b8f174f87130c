"""The whole path from a checkpoint to an artifact: trace, write, verify, describe, and only then give it its name."""

import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

import onnx_ir
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.errors import OutputExists
from export.graph import OPSET, input_names, output_names, trace
from export.verify import verify
from model.artifact import GRAPH, GRAPH_WEIGHTS, TOKENIZER, Manifest, describe_files, write_manifest

EXTERNAL_WEIGHTS_BYTES = 1 << 30  # a protobuf holds 2 GiB at most, and large files load faster beside it
PACKAGES = ("polyhead", "torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "tokenizers")
STAGES = ("tracing the graph", "writing", "verifying", "describing")


def export_artifact(checkpoint: Checkpoint, output: Path, *, force: bool = False) -> Manifest:
    """Writes a verified artifact.

    Everything is made in a temporary directory beside the output, which takes its name at the very end: a failed or
    interrupted export leaves nothing behind, and a reader never sees half an artifact.

    Args:
        checkpoint: the network and what surrounds it.
        output: directory to make.
        force: replace an output that exists.

    Returns:
        The manifest that was written.

    Raises:
        OutputExists: the output is there and `force` is not set.
        VerificationError: the graph is not what was asked for.
    """
    if output.exists() and not force:
        raise OutputExists(f"{output} exists already: name another directory, or replace it with --force")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as directory:
        made = Path(directory) / output.name
        made.mkdir()
        manifest = _make(checkpoint, made)
        if output.exists():
            output.rename(Path(directory) / "replaced")
        made.rename(output)
    return manifest


def _make(checkpoint: Checkpoint, directory: Path) -> Manifest:
    config = checkpoint.encoder.config
    with tqdm(total=len(STAGES), unit="stage", bar_format="{desc:<20}{bar:30} {n}/{total} [{elapsed}]") as progress:
        progress.set_description_str(STAGES[0])
        model = trace(checkpoint.encoder)
        progress.update()
        progress.set_description_str(STAGES[1])
        _write_graph(model, directory)
        checkpoint.tokenizer.save(str(directory / TOKENIZER))
        progress.update()
        progress.set_description_str(STAGES[2])
        fused, parity = verify(directory / GRAPH, checkpoint.encoder)
        progress.update()
        progress.set_description_str(STAGES[3])
        manifest = Manifest(
            model=checkpoint.name,
            source=checkpoint.source,
            config=config,
            precision="fp32",
            opset=OPSET,
            inputs=input_names(config),
            outputs=output_names(config),
            defaults=checkpoint.defaults,
            max_sequence_length=checkpoint.max_sequence_length,
            fused_attention=fused,
            parity=parity,
            files=describe_files(directory),
            versions={"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        )
        write_manifest(directory, manifest)
        progress.update()
    return manifest


def _write_graph(model: onnx_ir.Model, directory: Path) -> None:
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    external = GRAPH_WEIGHTS if size > EXTERNAL_WEIGHTS_BYTES else None
    onnx_ir.save(model, directory / GRAPH, external_data=external)
