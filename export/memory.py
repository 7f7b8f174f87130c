"""Whether there is memory to verify a large network in, asked before anything long begins.

    2 weights          what ONNX Runtime loads and lays out anew; the float64 reference is a layer at a time
    32 H S^2           attention weights of all H heads of two rows of S tokens: float64, and twice float32
    1 GB               programs and the rest

The network itself is in memory already. docs/models.md has what was measured.
"""

from pathlib import Path

from export.errors import VerificationError
from export.grid import LONGEST_OF_EVERY_LAYER
from export.reference import LARGE
from model.encoder import Encoder

WEIGHT_COPIES = 2
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
    heads, longest = sum(encoder.config.num_heads), encoder.config.max_positions
    needed = needed_bytes(weights, heads, longest)
    if weights >= LARGE and available is not None and needed > available:
        raise VerificationError(
            f"verifying this network takes about {needed / 1e9:.1f} GB of memory more, and {available / 1e9:.1f} GB "
            "are free: export it on a larger machine; the artifact itself is served in far less"
        )


def needed_bytes(weights: int, num_heads: int, longest: int) -> int:
    """Memory that an export takes at its largest, beside the network.

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
