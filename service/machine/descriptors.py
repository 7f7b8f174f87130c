"""How many connections the system lets this process hold: each takes a file descriptor.

Where none is left, clients are reset and no line says why; a connection turned away with 503 takes one for a moment.
"""

import logging
import resource

logger = logging.getLogger(__name__)

_OURS = 64  # files, pipes and listeners, 14 of them after the start; probes beyond the most, clients turned away


def make_room(connections: int, *, besides: int = 0) -> int:
    """Raises the process's own limit as far as the system's goes; how many connections fit, at most `connections`.

    Args:
        connections: wanted.
        besides: connections that have places of their own.
    """
    ours = _OURS + besides
    needed = connections + ours
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _covers(soft, needed):
        soft = needed if _covers(hard, needed) else hard
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (OSError, ValueError):  # some systems have one more limit, which is named nowhere
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _covers(soft, needed):
        return connections
    fitting = max(1, soft - ours)
    logger.warning(
        "the system allows %d descriptors (ulimit -n): %d connections instead of %d", soft, fitting, connections
    )
    return fitting


def _covers(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
