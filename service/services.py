"""What routes share: settings, readiness, metrics, budgets. One object an app, none global."""

from dataclasses import dataclass, replace
from typing import Literal

from starlette.requests import Request

from service.batching.admission import refuse
from service.context import SERVICES_KEY, ByteBudget, RequestContext, context_of
from service.errors import NotReady
from service.http.connection import expected_tokens
from service.http.early_refusal import EarlyRefusals
from service.http.route import RouteTable
from service.models import Models, ServedModel
from service.observability.metrics import Metrics
from service.observability.snapshots import MetricsPages, Snapshot
from service.runner import Runner
from service.settings import Settings

State = Literal["starting", "ready", "draining"]
"""`starting` until the model is loaded and warm, `draining` from the first signal on."""


class ProcessGroup:
    """The processes behind one port, as one of them sees the others. This one is alone, and answers for itself."""

    def check_ready(self) -> None:
        """Raises `NotReady` unless every process takes traffic."""

    def check_alive(self) -> None:
        """Raises `NotReady` if a process does not answer."""

    async def snapshot(self) -> Snapshot | None:
        """The metrics of all processes together; None for a process that is alone, whose own are all."""
        return None


class Readiness:
    """The one place that says whether traffic should come: starting, ready, then draining; never back.

    Probes are answered for the whole `group` of processes behind the same port.
    """

    models: Models  # set with the app

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group or ProcessGroup()
        self._state: State = "starting"

    @property
    def is_draining(self) -> bool:
        """Whether clients are to go elsewhere."""
        return self._state == "draining"

    def start(self) -> None:
        """Takes traffic from now on, unless the process is on its way out already."""
        if self._state == "starting":
            self._state = "ready"

    def drain(self) -> None:
        """Asks for no more traffic; what still comes is served."""
        self._state = "draining"

    def is_ready(self) -> bool:
        """Whether traffic should come to this process."""
        return self._state == "ready" and self.models.is_alive()

    def is_alive(self) -> bool:
        """Whether the workers of this process answer; while it loads or drains they are not asked."""
        return self._state != "ready" or self.models.are_all_alive()

    def check_ready(self) -> None:
        """Raises `NotReady`, as `/readyz` answers, while this process or another starts, drains or is not alive."""
        if self._state == "draining":
            raise NotReady("draining: this process is about to end")
        if self._state == "starting":
            raise NotReady("the model is loading; try again soon")
        self.check_alive()
        self.group.check_ready()

    def check_alive(self) -> None:
        """Raises `NotReady`, as `/healthz` answers, while a worker hangs, here or in another process."""
        if not self.is_alive():
            raise NotReady("the workers do not answer")
        self.group.check_alive()


@dataclass(frozen=True, slots=True)
class Services:
    """Made with the app, before a model is loaded; `model` is a request's own once it has chosen, else the default."""

    settings: Settings
    readiness: Readiness
    metrics: Metrics
    pages: MetricsPages
    routes: RouteTable
    body_budget: ByteBudget
    early_refusals: EarlyRefusals
    models: Models
    model: ServedModel

    def runner(self) -> Runner:
        """The model, loaded; `NotReady` before."""
        return self.model.runner()


def services_of(request: Request) -> Services:
    """The services of the app that answers this request."""
    services: Services = request.scope[SERVICES_KEY]
    return services


def choose_model(request: Request, name: str | None, is_exact: bool = False) -> Services:
    """The services as the chosen model has them, for the rest of the request; the model is in use until its end.

    No `name` is the default; `ModelNotFound` if no model has it. With `is_exact` one that is alone answers to its own
    name only.
    """
    services = services_of(request)
    model = services.models.find(name) if is_exact and name is not None else services.models.choose(name)
    if model is not services.model:
        services = request.scope[SERVICES_KEY] = replace(services, model=model)
    context = context_of(request.scope)
    context.model = model.name
    model.enter()
    context.at_end.append(model.leave)
    return services


def refuse_early(services: Services, context: RequestContext) -> None:
    """Of several models: refuses (Overloaded) what the chosen one would not queue; before, all had to be full."""
    if services.models.are_several:
        refuse(services.runner().early_refusal(expected_tokens(context.headers)))
