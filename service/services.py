"""What routes share: settings, readiness, metrics, budgets. One object an app, none global."""

from dataclasses import dataclass

from starlette.requests import Request

from service.byte_budget import ByteBudget
from service.context import SERVICES_KEY
from service.http.early_refusal import EarlyRefusals
from service.http.route_table import RouteTable
from service.observability.metrics import Metrics
from service.readiness import Readiness
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """Made with the app, before there is a runner."""

    settings: Settings
    readiness: Readiness
    metrics: Metrics
    routes: RouteTable
    body_budget: ByteBudget
    answer_budget: ByteBudget
    early_refusals: EarlyRefusals


def services_of(request: Request) -> Services:
    """The services of the app that answers this request."""
    services: Services = request.scope[SERVICES_KEY]
    return services
