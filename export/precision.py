"""The precisions an artifact can have, and what each is verified against.

fp32 is the default. fp16 and bf16 are for CUDA, int8 for CPUs with integer dot products. bf16 on CPUs is OpenVINO's,
from a float32 graph (`export.openvino`).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from export.checkpoint import Checkpoint
from export.errors import VerificationError
from export.int8.quantize import has_folded_form, quantize_encoder, see_ranges
from export.int8.rows import quantize_products
from export.quality import measure_quality, require_quality
from export.runtime import CUDA, Session
from export.tasks.definition import Threshold
from export.tasks.registry import EXPORTS
from export.tasks.vectors import TOKEN_OUTPUT_THRESHOLDS
from export.texts import HELD_OUT_TEXTS, TEXTS, TextBatch, task_batches
from export.verify import Tolerance
from model.config_parts import Precision
from model.encoder import Encoder

# fp32: what the service promises its callers; all-MiniLM-L6-v2 measures 7e-6 on attention, 7e-7 on the embedding.
#       Deeper networks round more, in PyTorch as in the graph: twice what PyTorch's float32 does is allowed.
# fp16: 11 bits of mantissa through every layer; all-MiniLM-L6-v2 measures 4.5e-3 on attention, 1.5e-3 on the embedding.
#       On a machine with an H100 and an Emerald Rapids attention differs by 1.03e-2 at most, by 2e-6 on average.
# bf16: 8 bits of mantissa; all-MiniLM-L6-v2 measures 2.4e-2 on attention on an H100.
# int8: the reference is the quantised network itself. The two agree to 1e-7 until a value at the edge of two steps
#       rounds to the other side; later values then differ by a share of the quantisation error (measured on random
#       tokens: 0.11 at most, 1.5e-2 on average). How far int8 is from fp32 is judged on held-out text.
TOLERANCES: Mapping[Precision, Tolerance] = {
    "fp32": Tolerance(largest=1e-5, mean=1e-5, rounding=2.0),
    "fp16": Tolerance(largest=2e-2, mean=5e-3),
    "bf16": Tolerance(largest=8e-2, mean=4e-2),
    "int8": Tolerance(largest=0.5, mean=3e-2),
}
# Verification's tolerance is relative to 1, so outputs smaller than it are the thresholds' question (`export.tasks`).
OTHERWISE: Mapping[Precision, str] = {
    "fp16": "Serve fp32",
    "bf16": "Serve fp16 or fp32",
    "int8": "Calibrate with text that is closer to what the model is used on (--calibration FILE), or serve fp32",
}
# Of a graph's outputs other than the task's. all-MiniLM-L6-v2 measures 0.99991, 9e-5 and 2.2e-3 in bf16,
# 0.9987, 1.4e-3 and 7.4e-3 in int8; the room is for other networks.
SHOWN: Mapping[Precision, tuple[float, float, float]] = {
    "fp16": (0.9995, 1e-3, 5e-3),
    "bf16": (0.995, 1e-2, 4e-2),
    "int8": (0.97, 0.1, 0.1),
}
SHOWN_THRESHOLDS: Mapping[Precision, tuple[Threshold, ...]] = {
    precision: (
        Threshold("hidden_cosine_mean", least=cosine),
        Threshold("attention_kl_mean", most=divergence),
        Threshold("value_norm_difference", most=difference),
    )
    for precision, (cosine, divergence, difference) in SHOWN.items()
}
DTYPES: Mapping[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A network in some precision: what becomes the graph, what that is verified against, and how closely.

    `float32_products` are names of products that int8 would round too much, and that stay float32.
    """

    traced: Encoder
    reference: Encoder
    tolerance: Tolerance
    float32_products: tuple[str, ...] = ()


def to_precision(checkpoint: Checkpoint, precision: Precision, calibration: Path | None = None) -> Prepared:
    """A checkpoint's network in a precision; int8's ranges are of the calibration text, one a line, or of what ships.

    Raises:
        VerificationError: no provider here can run the graph.
    """
    if precision == "bf16" and CUDA not in Session.available_providers():
        raise VerificationError(
            "bf16 cannot be verified here: ONNX Runtime computes it on CUDA only, and this one has no CUDA. Export "
            "if there is a GPU, with the gpu extra instead of the cpu one, or with --engine openvino, or export fp16"
        )
    encoder, tolerance = checkpoint.encoder, TOLERANCES[precision]
    if precision == "int8":
        quantized, kept = quantize(encoder, task_batches(calibration or TEXTS, checkpoint))
        return Prepared(quantized, quantized, tolerance, tuple(kept))
    if precision in DTYPES:
        return Prepared(copy.deepcopy(encoder).to(DTYPES[precision]), encoder, tolerance)
    return Prepared(encoder, encoder, tolerance)


def quantize(encoder: Encoder, batches: Sequence[TextBatch]) -> tuple[Encoder, list[str]]:
    """A copy of a network in its form of int8, calibrated on texts, and the products that stay float32."""
    ranges = see_ranges(encoder, batches)
    if has_folded_form(encoder.config):
        return quantize_encoder(encoder, ranges), []
    quantized = copy.deepcopy(encoder)
    return quantized, quantize_products(quantized, ranges, batches)


def judge(path: Path, checkpoint: Checkpoint, precision: Precision) -> dict[str, object]:
    """How far the graph at a path is from float32 on held-out text; nothing for fp32, which verification judges.

    Raises:
        QualityError: the task's outputs are too far from float32's on held-out text.
    """
    thresholds = EXPORTS[checkpoint.encoder.config.task].thresholds.get(precision)
    if thresholds is None:
        return {}
    batches = task_batches(HELD_OUT_TEXTS, checkpoint, with_weights=True)
    layers = checkpoint.further_outputs if checkpoint.encoder.config.task == "embedding" else {}
    quality = measure_quality(path, checkpoint.encoder, batches, layers)
    further = TOKEN_OUTPUT_THRESHOLDS[precision] if layers else ()
    require_quality(quality, (*thresholds, *SHOWN_THRESHOLDS[precision], *further), OTHERWISE[precision])
    return {"quality": quality}
