"""The command line of the exporter: `python -m export [MODEL] --output DIR`."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from export.command import CommandParser, number, run_command, wait_asleep
from export.errors import UnsupportedModel
from export.sources import ALLOW_PICKLES, DEFAULT_MODEL
from model.artifact import LAST_HIDDEN_STATE, ONNX_RUNTIME, OPENVINO, Manifest
from model.config import Pooling
from model.config_parts import Precision, Task

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

Only safetensors are read unless {ALLOW_PICKLES} is given. Exit code 0: the artifact is there; 1: it is not, and
the last line on stderr says why; 2: the command line is wrong; 130: interrupted."""


WHAT_TO_EXPORT: Mapping[str, Mapping[str, Any]] = {
    "--name": {"help": "name to serve the model under (default: its id or its folder's name)"},
    "--precision": {
        "choices": get_args(Precision),
        "default": "fp32",
        "help": "fp32 (default); int8 for CPUs, fastest with VNNI or AMX; bf16 for CPUs with AMX or AVX512-BF16, by "
        "OpenVINO, and for CUDA; fp16 for CUDA",
    },
    "--engine": {
        "choices": (ONNX_RUNTIME, OPENVINO),
        "help": "what computes plain answers: onnxruntime, or openvino for fp32 and bf16 on CPUs, from the extra of "
        "that name (default: onnxruntime, and openvino for bf16 where ONNX Runtime has no CUDA)",
    },
    "--calibration": {
        "type": Path,
        "metavar": "FILE",
        "help": "text, one a line, for int8, 8-bit vectors and pruning without --pairs (default: ships with the "
        "project)",
    },
    "--max-length": {
        "type": int,
        "metavar": "TOKENS",
        "help": "longest text to serve (default: what the checkpoint says)",
    },
    "--task": {
        "choices": get_args(Task),
        "help": "what to export where the checkpoint is for something else, or does not say (default: what it is for)",
    },
    "--adapter": {
        "metavar": "NAME",
        "help": "adapter to merge: one of the checkpoint's own (jina-embeddings-v3 and -v5), or the folder of a LoRA "
        "adapter that peft saved",
    },
    "--instruction": {
        "metavar": "TEXT",
        "help": "what a language model judges documents by, with --task classification (default: Qwen3-Reranker's)",
    },
    "--pooling": {
        "choices": get_args(Pooling),
        "help": "how tokens become one vector, for a folder without modules.json (default: mean); its card says how",
    },
    "--normalize": {
        "choices": ("yes", "no"),
        "help": "whether embeddings are answered at length 1 (default: no where the checkpoint names the dot product "
        "as its similarity and does not normalise, else yes)",
    },
}
HOW_TO_EXPORT: Mapping[str, Mapping[str, Any]] = {
    "--revision": {"help": "branch, tag or commit on the hub"},
    ALLOW_PICKLES: {
        "action": "store_true",
        "help": "read weights that are not there as safetensors from pickles (pytorch_model.bin), by "
        "torch.load(weights_only=True): tensors, and nothing else",
    },
    "--no-explain": {
        "action": "store_true",
        "help": "without explain.onnx, which `/explain` through the network needs: a shorter export",
    },
    "--against": {
        "choices": ("original", "none"),
        "default": "original",
        "help": "what the network is compared with before it is exported: sentence-transformers and transformers, if "
        "they are installed (default), or nothing",
    },
    "--force": {"action": "store_true", "help": "replace DIR if it is an artifact"},
    "--debug": {"action": "store_true", "help": "show the traceback of a failure"},
}


def parser(program: str = PROGRAM, default_output: str = "") -> argparse.ArgumentParser:
    """The command line; `program` is what it was called by, `default_output` where it writes by default."""
    made = CommandParser(
        prog=program,
        description=DESCRIPTION.replace("python -m service", _serve_command(program)),
        epilog=EXAMPLES.replace(PROGRAM, program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"folder or Hugging Face id (default: {DEFAULT_MODEL}, embedded)"
    )
    written = "directory to make" + (f" (default: {default_output})" if default_output else "")
    made.add_argument("--output", type=Path, required=not default_output, metavar="DIR", help=written)
    for option, settings in WHAT_TO_EXPORT.items():
        made.add_argument(option, **settings)
    _add_pruning(made)
    for option, settings in HOW_TO_EXPORT.items():
        made.add_argument(option, **settings)
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
    _check_pruning(made, options)
    return run_command(
        lambda: _export(options, _serve_command(program)),
        name="export",
        left_behind=lambda: "nothing was left behind",
        flags=made._option_string_actions,
        debug=options.debug,
    )


def _serve_command(program: str) -> str:
    """The command that serves, in the words that the exporter was called by."""
    return "python -m service" if program == PROGRAM else "polyhead serve"


def _export(options: argparse.Namespace, serve: str) -> None:
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from export.checkpoint import read_checkpoint  # noqa: PLC0415
    from export.exporter import export_artifact, require_free  # noqa: PLC0415
    from export.heads.corpus import read_pairs  # noqa: PLC0415
    from export.original import compare_with_original, describe, is_installed, not_compared  # noqa: PLC0415
    from export.quality import WITH_RANGES  # noqa: PLC0415
    from export.sources import find_folder  # noqa: PLC0415
    from export.texts import read_texts  # noqa: PLC0415

    require_free(options.output, force=options.force)
    for given, read_file in ((options.calibration, read_texts), (options.pairs, read_pairs)):
        if given:
            read_file(given)  # a file that cannot be used is said before a model is fetched and read
    folder = find_folder(options.model, options.revision, allows_pickles=options.allow_pickled_weights)
    sys.stderr.write(f"reading {folder.id}\n")
    compares = options.against == "original" and is_installed()
    choices = {
        "task": options.task,
        "adapter": options.adapter,
        "instruction": options.instruction,
        "pooling": options.pooling,
        "normalize": None if options.normalize is None else options.normalize == "yes",
    }
    read = partial(read_checkpoint, folder, name=options.name, max_length=options.max_length, **choices)
    checkpoint = read(compared=compares)
    if options.calibration and options.precision != "int8" and checkpoint.encoder.config.task not in WITH_RANGES:
        raise UnsupportedModel("--calibration: of this task nothing is calibrated but --precision int8")
    sys.stderr.write("".join(_notes(checkpoint, asks_for_length=options.normalize is not None)))
    if options.against == "original":
        original = compare_with_original(checkpoint, folder.path)
    else:
        original = not_compared("--against none")
    if compares and not original["compared"]:
        checkpoint = read()  # once more, since settings that no one knows were let through
    sys.stderr.write(describe(original))
    checkpoint, pruned = _prune_as_asked(options, checkpoint)
    manifest = export_artifact(
        checkpoint,
        options.output,
        precision=options.precision,
        engine=options.engine,
        calibration=options.calibration,
        force=options.force,
        explains=not options.no_explain,
        original=original,
        **pruned,
    )
    sys.stderr.write(_summary(options.output, manifest, serve))


def _add_pruning(made: argparse.ArgumentParser) -> None:
    """Adds the options for pruning."""
    group = made.add_argument_group("pruning")
    how_much = group.add_mutually_exclusive_group()
    how_much.add_argument(
        "--prune-heads",
        type=number(float, lambda value: 0 < value <= 1, "a share above 0 and at most 1"),
        metavar="SHARE",
        help="remove this share of the heads, the least important ones",
    )
    how_much.add_argument(
        "--prune-to-quality",
        type=number(float, lambda value: 0 <= value <= 100, "points from 0 to 100"),
        metavar="POINTS",
        help="remove as many heads as lose at most POINTS: Spearman x 100 with --pairs, else cosine x 100",
    )
    group.add_argument("--pairs", type=Path, metavar="CSV", help="text,text,rating without a header, to prune by")
    group.add_argument(
        "--prune-by",
        choices=("leave_one_out", "jacobian", "output_norm", "loss_gradient"),
        help="importance of a head (default: loss_gradient with --pairs, else jacobian)",
    )
    group.add_argument("--no-curve", action="store_true", help="prune without measuring the whole curve, in less time")


def _check_pruning(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where options for pruning do not go together."""
    if options.prune_heads is None and options.prune_to_quality is None:
        for name in ("pairs", "prune_by", "no_curve"):
            if getattr(options, name):
                made.error(f"--{name.replace('_', '-')} goes with --prune-heads or --prune-to-quality")
    if options.prune_by == "loss_gradient" and not options.pairs:
        made.error("--prune-by loss_gradient needs --pairs: the loss needs rated pairs")


def _prune_as_asked(options: argparse.Namespace, checkpoint: "Checkpoint") -> "tuple[Checkpoint, dict[str, Any]]":
    """The checkpoint without the heads that the options remove, and what the artifact says and holds of them."""
    if options.prune_heads is None and options.prune_to_quality is None:
        return checkpoint, {}
    from export.pruning.driver import prune  # noqa: PLC0415 - as above
    from export.pruning.picture import draw_pruning  # noqa: PLC0415
    from model.artifact import PRUNING, PRUNING_PICTURE  # noqa: PLC0415

    pruned = prune(
        checkpoint,
        share=options.prune_heads,
        lose=options.prune_to_quality,
        definition=options.prune_by,
        pairs=options.pairs,
        calibration=options.calibration,
        with_curve=not options.no_curve,
        precision=options.precision,
    )
    sys.stderr.write(_pruning_summary(pruned.record))
    files = {}
    if pruned.curve is not None:
        files = {
            PRUNING: json.dumps(pruned.curve, indent=1).encode() + b"\n",
            PRUNING_PICTURE: draw_pruning(pruned.curve).encode(),
        }
    return pruned.checkpoint, {"pruning": pruned.record, "files": files}


def _pruning_summary(record: dict[str, Any]) -> str:
    before, after = record["before"], record["after"]
    removed, heads = record["removed"], record["num_heads_before"]
    return (
        f"removed {len(removed)} of {sum(heads)} heads by {record['definition']}: {record['measure']} x 100 "
        f"{before['points']:.2f} before, {after['points']:.2f} after; cosine to the whole network's embedding "
        f"{after['cosine_mean']:.4f} on average, {after['cosine_worst']:.4f} at worst\n"
    )


def _notes(checkpoint: "Checkpoint", *, asks_for_length: bool) -> Iterator[str]:
    """What an export decided that a user may not expect."""
    defaults, stated = checkpoint.defaults, checkpoint.stated_length
    if pickles := [name for name in checkpoint.source.files if name.endswith((".bin", ".pt"))]:
        yield f"tensors, and nothing else, were read from pickles: {', '.join(pickles)}\n"
    if stated is not None:
        yield (
            f"texts are cut at {checkpoint.max_sequence_length} tokens, as far as positions are reproduced; "
            f"{checkpoint.source.id} states {stated}\n"
        )
    is_embedding = checkpoint.encoder.config.task == "embedding"
    if is_embedding and not asks_for_length and not defaults.normalize and defaults.unit_length:
        yield (
            "vectors are answered at length 1, which the checkpoint does not say (no Normalize module, no similarity "
            "dot); --normalize no answers them as they are\n"
        )


def _summary(output: Path, manifest: Manifest, serve: str) -> str:
    names = (manifest.task_output, LAST_HIDDEN_STATE, "attentions")
    parity = ", ".join(f"{name} {manifest.parity[name]:.1e}" for name in names)
    quality = manifest.parity.get("quality")
    fused = sum(manifest.fused_attention.values())
    rounding = ", more where PyTorch's own rounding is more" if "rounding" in manifest.parity else ""
    judged = ""
    if quality:
        figures = ", ".join(f"{name} {value:.5f}" for name, value in quality.items() if isinstance(value, float))
        judged = f"compared with fp32 over {quality['texts']} held-out texts: {figures}\n"
    if found := manifest.parity.get("openvino"):
        judged += (
            f"OpenVINO {found['version']} in {found['computed_in']}: {manifest.task_output} differs by "
            f"{found[manifest.task_output]:.1e} at most (allowed {found['tolerance']:.0e})\n"
        )
        if manifest.precision == "bf16" != found["computed_in"]:
            judged += (
                "this processor has no bf16 (AMX or AVX512-BF16): the graph was compared in float32, and bf16 was not. "
                "Export if there is one to have it judged\n"
            )
    return (
        f"wrote {output}: {manifest.model}, {manifest.task}, {manifest.precision}, {fused} fused attention nodes\n"
        f"largest difference over {manifest.parity['cases']} batches: {parity} "
        f"(allowed {manifest.parity['tolerance']:.0e}{rounding})\n"
        f"{judged}serve it: {serve} --model {output}\n"
    )
