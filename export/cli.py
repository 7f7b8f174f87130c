"""The command line of the exporter: `python -m export [MODEL] --output DIR`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from export.command import run_command
from export.pruning.cli import add_options, check_options, prune_as_asked
from export.sources import DEFAULT_MODEL
from export.threads import wait_asleep
from model.graph_names import LAST_HIDDEN_STATE
from model.manifest import Manifest
from model.tasks.settings import Task

if TYPE_CHECKING:  # torch takes seconds to import: --help and a wrong command line answer without it
    from export.checkpoint import Checkpoint

PROGRAM = "python -m export"
DESCRIPTION = """\
Turns a pretrained encoder into an artifact that `python -m service --model DIR` serves: one ONNX graph with fused
attention, the tokenizer, and a manifest. The graph is checked against the PyTorch encoder over a grid of batch sizes,
lengths and paddings, embeddings and attention weights alike; an export that does not verify leaves nothing behind."""
EXAMPLES = f"""\
examples:
  python -m export --output artifacts/default          the default model, {DEFAULT_MODEL}
  python -m export ./my-model --output artifacts/mine  a sentence-transformers or Hugging Face folder
  python -m export ./my-reranker --output artifacts/r  a cross-encoder or classifier; the folder says which
  python -m export --precision int8 --output artifacts/int8
  python -m export BAAI/bge-small-en-v1.5 --output artifacts/bge --revision main
  python -m export --prune-to-quality 0.5 --pairs rated.csv --output artifacts/pruned
  python -m export heads artifacts/default --corpus texts.txt  what each head does; python -m export heads --help

Only safetensors are read; a checkpoint that exists only as a pickle is refused. Exit code 0: the artifact is there;
1: it is not, and the last line on stderr says why; 2: the command line is wrong; 130: interrupted."""


def parser(program: str = PROGRAM, default_output: str = "") -> argparse.ArgumentParser:
    """The command line; `program` is what it was called by, `default_output` where it writes by default."""
    made = argparse.ArgumentParser(
        prog=program,
        description=DESCRIPTION.replace("python -m service", _serve_command(program)),
        epilog=EXAMPLES.replace(PROGRAM, program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"folder or Hugging Face id (default: {DEFAULT_MODEL}, embedded)"
    )
    made.add_argument(
        "--output",
        type=Path,
        required=not default_output,
        metavar="DIR",
        help="directory to make" + (f" (default: {default_output})" if default_output else ""),
    )
    made.add_argument("--name", help="name to serve the model under (default: its id or its folder's name)")
    made.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16", "int8"),
        default="fp32",
        help="fp32 (default); int8 for CPUs, fastest with VNNI or AMX; fp16 and bf16 for CUDA",
    )
    made.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="text, one a line, for int8, 8-bit vectors and pruning without --pairs (default: ships with the project)",
    )
    made.add_argument(
        "--max-length", type=int, metavar="TOKENS", help="longest text to serve (default: what the checkpoint says)"
    )
    made.add_argument(
        "--task",
        choices=get_args(Task),
        help="what to export where the checkpoint is for something else, or does not say (default: what it is for)",
    )
    made.add_argument(
        "--adapter", metavar="NAME", help="adapter to merge, where the checkpoint has several (jina-embeddings-v3)"
    )
    made.add_argument(
        "--instruction",
        metavar="TEXT",
        help="what a language model judges documents by, with --task classification (default: Qwen3-Reranker's)",
    )
    add_options(made)
    made.add_argument("--revision", help="branch, tag or commit on the hub")
    made.add_argument(
        "--no-explain",
        action="store_true",
        help="without explain.onnx, which `/explain` through the network needs: a shorter export",
    )
    made.add_argument("--force", action="store_true", help="replace DIR if it is an artifact")
    made.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    return made


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Runs the command line and returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["heads"]:
        from export.heads.cli import main as report_heads  # noqa: PLC0415 - its imports are its own

        return report_heads(given[1:], f"{program} heads")
    wait_asleep()
    made = parser(program)
    options = made.parse_args(given)
    check_options(made, options)
    return run_command(
        lambda: _export(options, _serve_command(program)),
        name="export",
        left_behind="nothing was left behind",
        debug=options.debug,
    )


def _serve_command(program: str) -> str:
    """The command that serves, in the words that the exporter was called by."""
    return "python -m service" if program == PROGRAM else "polyhead serve"


def _export(options: argparse.Namespace, serve: str) -> None:
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from export.checkpoint import read_checkpoint  # noqa: PLC0415
    from export.exporter import export_artifact, require_free  # noqa: PLC0415
    from export.sources import find_folder  # noqa: PLC0415

    require_free(options.output, force=options.force)
    folder = find_folder(options.model, options.revision)
    sys.stderr.write(f"reading {folder.id}\n")
    checkpoint = read_checkpoint(
        folder,
        name=options.name,
        max_length=options.max_length,
        task=options.task,
        adapter=options.adapter,
        instruction=options.instruction,
    )
    sys.stderr.write(_length_note(checkpoint))
    checkpoint, pruning = prune_as_asked(options, checkpoint)
    manifest = export_artifact(
        checkpoint,
        options.output,
        precision=options.precision,
        calibration=options.calibration,
        force=options.force,
        pruning=pruning,
        explains=not options.no_explain,
    )
    sys.stderr.write(_summary(options.output, manifest, serve))


def _length_note(checkpoint: "Checkpoint") -> str:
    """Says where texts are cut that the original would take longer; nothing where it would not."""
    if checkpoint.stated_length is None:
        return ""
    return (
        f"texts are cut at {checkpoint.max_sequence_length} tokens, as far as positions are reproduced; "
        f"{checkpoint.source.id} states {checkpoint.stated_length}\n"
    )


def _summary(output: Path, manifest: Manifest, serve: str) -> str:
    names = (manifest.task_output, LAST_HIDDEN_STATE, "attentions")
    parity = ", ".join(f"{name} {manifest.parity[name]:.1e}" for name in names)
    quality = manifest.parity.get("quality")
    fused = sum(manifest.fused_attention.values())
    judged = ""
    if quality:
        figures = ", ".join(f"{name} {value:.5f}" for name, value in quality.items() if isinstance(value, float))
        judged = f"compared with fp32 over {quality['texts']} held-out texts: {figures}\n"
    return (
        f"wrote {output}: {manifest.model}, {manifest.task}, {manifest.precision}, {fused} fused attention nodes\n"
        f"largest difference over {manifest.parity['cases']} batches: {parity} "
        f"(allowed {manifest.parity['tolerance']:.0e})\n"
        f"{judged}serve it: {serve} --model {output}\n"
    )
