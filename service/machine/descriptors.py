"""How many connections the system lets this process hold: each takes a file descriptor.

Where none is left, clients are reset and no line says why. A refused connection takes one, too, until its client has
read the answer.
"""

import logging
import resource

logger = logging.getLogger(__name__)

_OURS = 32  # files, pipes and listeners; 14 of them after the start
_ENOUGH = 2**20  # where the system knows no limit, or a larger one


def make_room(connections: int, *, besides: int = 0) -> int:
    """Raises the process's own limit as far as the system's goes; how many connections fit, at most `connections`.

    Args:
        connections: wanted.
        besides: connections that are counted apart.
    """
    needed = connections + besides + _OURS
    limit = _raise_limit(needed)
    if limit >= needed:
        return connections
    fitting = max(1, limit - besides - _OURS)
    logger.warning(
        "the system allows %d descriptors (ulimit -n): %d connections instead of %d", limit, fitting, connections
    )
    return fitting


def _raise_limit(needed: int) -> int:
    """The limit after it was raised: clients may come faster than refused ones are closed."""
    soft, hard = (_finite(limit, needed) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    for wanted in (hard, needed):
        if wanted <= soft:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):  # some systems have one more limit, which is named nowhere
            continue
        return wanted
    return soft


def _finite(limit: int, needed: int) -> int:
    most = max(_ENOUGH, needed)
    return most if limit == resource.RLIM_INFINITY else min(limit, most)
