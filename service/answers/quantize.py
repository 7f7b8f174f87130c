"""Vectors in fewer bits, as `quantize_embeddings` of sentence-transformers makes them.

int8 and uint8 scale each dimension to 256 steps between its least and greatest value over the export's calibration
texts; beyond these they stop at the ends. Binary vectors keep the sign of each dimension, eight to a byte.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from model.manifest import Manifest
from service.errors import Invalid
from service.inference.backend import Float32Array
from service.requests.plan import EncodePlan

VectorFormat = Literal["int8", "uint8", "binary", "ubinary"]
FORMATS: tuple[VectorFormat, ...] = ("int8", "uint8", "binary", "ubinary")


def is_quantized(name: str | None) -> TypeGuard[VectorFormat]:
    """Whether a format has fewer bits than float32."""
    return name in FORMATS


def refuse_format(plan: EncodePlan, manifest: Manifest) -> None:
    """Refuses the format of a request's vectors where model or request have no such vectors.

    Raises:
        Invalid: naming what is in the way.
    """
    request, param = plan.request, "encoding_format"
    name, of_tokens = request.encoding_format, request.output == "tokens" or plan.task == "multi_vector"
    if plan.task not in {"embedding", "multi_vector"} and not of_tokens:
        raise Invalid(
            f"{param}: {name} is for vectors, and {manifest.model} gives none (its task is {plan.task})", param=param
        )
    if of_tokens and name in {"int8", "uint8"}:
        raise Invalid(
            f"{param}: the ranges of {name} are those of whole texts' vectors; ask for binary vectors of tokens",
            param=param,
        )
    check_format(name, manifest, dimensions=plan.dimensions, normalize=request.normalize, param=param)


def empty_vectors(count: int, dimensions: int, name: str) -> NDArray[Any]:
    """Room for one vector each of so many inputs, in a format of `encoding_format`."""
    if not is_quantized(name):
        return np.empty((count, dimensions), np.float32)
    size = dimensions // 8 if name in {"binary", "ubinary"} else dimensions
    return np.empty((count, size), np.uint8 if name in {"uint8", "ubinary"} else np.int8)


def quantize_all(
    vectors: Float32Array | Sequence[Float32Array], name: VectorFormat, manifest: Manifest
) -> NDArray[Any] | list[NDArray[Any]]:
    """One array of all inputs, or one array an input, each by `quantize`."""
    if isinstance(vectors, np.ndarray):
        return quantize(vectors, name, manifest)
    return [quantize(rows, name, manifest) for rows in vectors]


def check_format(name: str, manifest: Manifest, *, dimensions: int, normalize: bool, param: str) -> None:
    """Refuses a format that the artifact cannot give.

    Raises:
        Invalid: no ranges in the artifact, vectors that these are not of, or dimensions that fill no bytes.
    """
    if name in {"int8", "uint8"}:
        if manifest.vector_ranges is None:
            raise Invalid(f"{param}: the artifact has no ranges for {name} vectors; export it again", param=param)
        if not normalize or dimensions != len(manifest.vector_ranges.minimum):
            raise Invalid(
                f"{param}: {name} is for vectors of length 1 with all their dimensions; leave normalize and dimensions "
                "out, or ask for binary",
                param=param,
            )
    elif name in {"binary", "ubinary"} and dimensions % 8:
        raise Invalid(
            f"{param}: {name} packs eight dimensions into a byte; ask for a multiple of 8, not {dimensions}",
            param=param,
        )


def quantize(vectors: Float32Array, name: VectorFormat, manifest: Manifest) -> NDArray[Any]:
    """Vectors [N, D] as int8 or uint8 [N, D], or as signs [N, D/8]: `ubinary` uint8, `binary` the same less 128."""
    if name in {"binary", "ubinary"}:
        packed = np.packbits(vectors > 0, axis=-1)
        return packed if name == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)
    ranges = manifest.vector_ranges
    assert ranges is not None  # noqa: S101 - checked before anything ran
    least, greatest = (np.array(side, dtype=np.float32) for side in (ranges.minimum, ranges.maximum))
    steps = (greatest - least) / np.float32(255)
    steps[steps == 0] = 1
    levels = np.clip(np.floor((vectors - least) / steps), 0, 255)
    return levels.astype(np.uint8) if name == "uint8" else (levels - 128).astype(np.int8)
