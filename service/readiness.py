"""Whether the process takes traffic: starting, ready, then draining; never back.

It holds the runner once there is one. It does not know probes or signals.
"""

from typing import Literal

from service.errors import NotReady, Overloaded
from service.process_group import Alone, ProcessGroup
from service.runner import Runner

State = Literal["starting", "ready", "draining"]
"""`starting` until the model is loaded and warm, `draining` from the first signal on."""

RETRY_AFTER_SECONDS = 1.0


class Readiness:
    """The one place that says whether the runner may be used. Changed on the event loop only.

    Attributes:
        group: the other processes behind the same port. Probes are answered for all.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group or Alone()
        self._state: State = "starting"
        self._runner: Runner | None = None

    @property
    def is_draining(self) -> bool:
        """Whether clients are to go elsewhere; requests are still answered."""
        return self._state == "draining"

    @property
    def loaded_runner(self) -> Runner | None:
        """The runner, draining or not; None while starting."""
        return self._runner

    def start(self, runner: Runner) -> None:
        """Takes traffic from now on, unless the process is on its way out already."""
        self._runner = runner
        if self._state == "starting":
            self._state = "ready"

    def drain(self) -> None:
        """Asks for no more traffic; what still comes is served."""
        self._state = "draining"

    def runner(self) -> Runner:
        """The runner that answers requests, also while draining.

        Raises:
            NotReady: the model is not loaded yet.
        """
        if self._runner is None:
            raise NotReady("the model is loading; try again soon", retry_after=RETRY_AFTER_SECONDS)
        return self._runner

    def early_refusal(self, tokens: int, others: int = 0, refused: int = 0) -> Overloaded | None:
        """Why the queue would refuse a request, before its body is read: see `Batcher.early_refusal`.

        Raises:
            NotReady: the model is not loaded yet.
        """
        return self.runner().early_refusal(tokens, others, refused)

    def is_ready(self) -> bool:
        """Whether traffic should come to this process."""
        return self._state == "ready" and self._runner is not None and self._runner.is_alive()

    def is_alive(self) -> bool:
        """Whether the workers of this process answer, once there are any."""
        return self._state != "ready" or self.is_ready()

    def check_ready(self) -> None:
        """What `/readyz` answers.

        Raises:
            NotReady: starting, draining, or the workers do not answer, here or in another process.
        """
        if self._state == "draining":
            raise NotReady("draining: this process is about to end", retry_after=RETRY_AFTER_SECONDS)
        self.runner()
        self.check_alive()
        self.group.check_ready()

    def check_alive(self) -> None:
        """What `/healthz` answers: the event loop does by answering, the workers are asked once there are any.

        Raises:
            NotReady: a worker hangs or is gone for good, here or in another process. While draining they come to their
                end and are not asked.
        """
        if not self.is_alive():
            raise NotReady("the workers do not answer", retry_after=RETRY_AFTER_SECONDS)
        self.group.check_alive()
