"""What this processor can do, and the settings with which engines compute on it what they compute on any other.

Standard library only, but for OpenVINO, which is imported to compile for it. The behaviour of ONNX Runtime's kernels
was seen with onnxruntime 1.31 in emulation (`tests/e2e/test_processors.py`); the setting is described in its
`onnxruntime_session_options_config_keys.h` and `avx2_weight_s8_to_u8.cc`.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")

_INTEGER_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"})
_VECTOR_INSTRUCTIONS = (
    *("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "avx"),
    *("sve2", "sve", "bf16", "i8mm", "asimddp", "asimd"),
)
BF16_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})  # else OpenVINO computes in float32 under bf16's name
_NEEDS_NO_STEP = "avx2"
_VECTOR = 4  # float32 numbers in a register of SSE and NEON


def has_integer_products(cpuinfo: Path = CPUINFO) -> bool | None:
    """Whether the processor multiplies and adds 8-bit integers in one instruction; None where the system does not say.

    That is VNNI or AMX on x86, and the dot product extension on Arm.
    """
    features = _features(cpuinfo)
    return None if features is None else not _INTEGER_PRODUCTS.isdisjoint(features)


def session_entries(*, fits_16_bits: bool, cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Entries of a session's configuration without which 8-bit products are not exact here.

    x86 without VNNI multiplies uint8 by int8 into sums of two in 16 bits, which saturate unless the weights are made
    for it: vectors of MiniLM-L6 turn by as much again as int8 costs. uint8 by uint8 is summed in 32 bits and needs a
    third longer; ONNX Runtime then shifts the weights, which changes no product.

    `fits_16_bits` is what the artifact's manifest says.
    """
    return {} if fits_16_bits or has_integer_products(cpuinfo) else {"session.x64quantprecision": "1"}


def length_step(cpuinfo: Path = CPUINFO) -> int:
    """Padded lengths have to be multiples of this for a text's vector not to depend on how long its batch mates are.

    Where a row of scores is no whole number of vectors, sums over it differ with how far it is padded, by some 2e-7.
    With AVX2 and AVX-512 no such difference was found.
    """
    return 1 if _NEEDS_NO_STEP in (_features(cpuinfo) or ()) else _VECTOR


def vector_instructions() -> tuple[str, ...]:
    """The processor's instructions that decide how fast networks run here, as Linux names them, best first."""
    features = _features(CPUINFO) or frozenset()
    return tuple(name for name in _VECTOR_INSTRUCTIONS if name in features)


def processor_name() -> str:
    """The processor's name, as its maker gives it; empty where the system does not say."""
    return (_field(CPUINFO, "model name") or "").strip()


def openvino_settings(
    precision: str, capabilities: Collection[str], *, streams: int, threads: int, cpuinfo: Path = CPUINFO
) -> dict[str, str | int | bool]:
    """Settings of OpenVINO's CPU device. Its defaults take every core, bind threads to cores, and choose the precision.

    Args:
        precision: of the artifact: `bf16`, or `fp32`.
        capabilities: what the device says it computes in (`OPTIMIZATION_CAPABILITIES`). Without BF16 it is float32:
            OpenVINO would convert at every step.
        streams: runs at the same time.
        threads: of all of them together.
        cpuinfo: the system's description of its processors.
    """
    hint = "bf16" if precision == "bf16" and "BF16" in capabilities else "f32"
    is_fast = hint == "bf16" and "amx_bf16" in (_features(cpuinfo) or ())
    return {
        "INFERENCE_PRECISION_HINT": hint,
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
        # Kernels compiled for a shape, by default 5,000 of each stream: gigabytes, since texts differ in length. With
        # AMX the products are so fast that compiling again is a third of the time.
        "CPU_RUNTIME_CACHE_CAPACITY": 1024 if is_fast else 32,
    }


def compile_in_openvino(path: Path, precision: str, *, streams: int, threads: int) -> tuple[Any, str]:
    """Compiles an artifact's `plain.onnx`; returns OpenVINO's model and what it computes in, `bf16` or `f32`.

    Precision, streams and threads are those of `openvino_settings`.

    Raises:
        ImportError: OpenVINO is not installed.
        RuntimeError: OpenVINO refuses the graph.
    """
    import openvino  # noqa: PLC0415 - an extra

    core = openvino.Core()
    capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    settings = openvino_settings(precision, capabilities, streams=streams, threads=threads)
    # oneDNN keeps kernels of its own, 1,024 if nothing is said, and asks for this when it makes the first one.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(max(64, settings["CPU_RUNTIME_CACHE_CAPACITY"])))
    network = core.read_model(path)
    _let_attention_fuse(network)
    return core.compile_model(network, "CPU", settings), str(settings["INFERENCE_PRECISION_HINT"])


def _let_attention_fuse(network: Any) -> None:
    """Removes the step between the softmax and the product behind it: OpenVINO fuses only steps that are neighbours.

    It reads ONNX's Attention with a 0 for the weights of a query that sees no key (`Select(IsNaN(w), 0, w)`). Such a
    query is padding, and nothing reads its result.
    """
    for node in network.get_ordered_ops():
        if node.get_type_name() == "Select" and node.input_value(0).get_node().get_type_name() == "IsNaN":
            node.output(0).replace(node.input_value(2))


def _features(cpuinfo: Path) -> frozenset[str] | None:
    """The instruction sets that Linux lists for the first processor."""
    values = _field(cpuinfo, "flags", "Features")
    return None if values is None else frozenset(values.split())


def _field(cpuinfo: Path, *names: str) -> str | None:
    """The first field of one of these names."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, values = line.partition(":")
        if name.strip() in names:
            return values
    return None
