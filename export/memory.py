"""Whether there is memory to verify a large network in, asked before anything long begins.

    5 weights          float32, its float64 reference (twice as much), what ONNX Runtime loads and lays out anew
    32 H S^2           attention weights of all H heads of two rows of S tokens: float64, and twice float32
    1 GB               programs and the rest

An export of XLM-R large (568 million parameters) as fp32 took 15.3 GB at its largest (docs/models.md); this says 15.6.
"""

from pathlib import Path

from export.errors import VerificationError
from export.grid import LONGEST_OF_EVERY_LAYER
from model.encoder import Encoder

LARGE = 1 << 30  # bytes of weights; what is smaller fits wherever the exporter itself runs
WEIGHT_COPIES = 5
SCORE_BYTES = 32
REST = 10**9
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def require_memory(encoder: Encoder, available: int | None) -> None:
    """Refuses a network that cannot be verified here.

    Args:
        encoder: float32.
        available: bytes; None where the system does not say.

    Raises:
        VerificationError: the message names both numbers.
    """
    weights = sum(parameter.nbytes for parameter in encoder.parameters())
    needed = needed_bytes(weights, sum(encoder.config.num_heads), encoder.config.max_positions)
    if weights >= LARGE and available is not None and needed > available:
        raise VerificationError(
            f"verifying this network takes about {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are "
            "free: export it on a larger machine; the artifact itself is served in far less"
        )


def needed_bytes(weights: int, num_heads: int, longest: int) -> int:
    """Memory of an export at its largest.

    Args:
        weights: bytes in float32.
        num_heads: of all layers.
        longest: the longest text, in tokens.
    """
    return WEIGHT_COPIES * weights + SCORE_BYTES * num_heads * min(longest, LONGEST_OF_EVERY_LAYER) ** 2 + REST


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Free memory as Linux counts it, and no more than a container has left; None where nothing says."""
    found = [_free(meminfo), _left(cgroup)]
    return min((number for number in found if number is not None), default=None)


def _free(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(values[0]) * 1024 if values else None


def _left(cgroup: Path) -> int | None:
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else int(limit) - int(used)
    except (OSError, ValueError):
        return None
