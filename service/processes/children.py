"""All children of a parent: which of them serve, whether they answer, and that each of them knows."""

import logging

from service.processes.child_process import ChildProcess

SILENT_LOOKS = 5  # after which a child counts as not answering
HUNG_LOOKS = 20  # after which it is killed; with a look a second Kubernetes would restart everything after 30

logger = logging.getLogger(__name__)


class Children:
    """Every child that has not ended.

    Attributes:
        all: of them, those too that leave or are not ready yet.
        serving: by place, those that are to serve; a place misses while its process is dead.
        is_ending: whether none is to serve any more.

    Args:
        places: processes that should serve.
    """

    def __init__(self, places: int) -> None:
        self.all: set[ChildProcess] = set()
        self.serving: dict[int, ChildProcess] = {}
        self.is_ending = False
        self._places = places

    def remove(self, child: ChildProcess) -> bool:
        """Forgets a child that has ended; whether it was to serve."""
        self.all.discard(child)
        is_serving = self.serving.get(child.index) is child
        if is_serving:
            del self.serving[child.index]
        self.tell()
        return is_serving

    def is_ready(self) -> bool:
        """Whether every place has a process that takes traffic."""
        is_complete = len(self.serving) == self._places
        are_ready = is_complete and all(child.state == "ready" for child in self.serving.values())
        return are_ready and self.is_alive() and not self.is_ending

    def is_alive(self) -> bool:
        """Whether each of them answers."""
        return all(child.silence < SILENT_LOOKS for child in self.all)

    def tell(self) -> None:
        """Lets each know how all are, for the probes that it answers."""
        is_ready, is_alive = self.is_ready(), self.is_alive()
        for child in self.all:
            child.describe_group(is_ready=is_ready, is_alive=is_alive)

    def look(self) -> None:
        """Kills who no longer answers. Looks are counted, not seconds: a machine that stood still lets nobody hang."""
        for child in self.all:
            child.silence += child.takes_connections
            if child.silence == HUNG_LOOKS:
                logger.error("process %d does not answer: it is killed", child.index)
                child.kill()
        self.tell()

    def kill(self) -> None:
        """Ends all of them at once."""
        for child in self.all:
            child.kill()
