"""What routes share: settings, readiness, metrics. One object an app, none global."""

from dataclasses import dataclass

from starlette.requests import Request

from service.metrics import Metrics
from service.readiness import Readiness
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """Made with the app, before there is an engine."""

    settings: Settings
    readiness: Readiness
    metrics: Metrics


def services_of(request: Request) -> Services:
    """The services of the app that answers this request."""
    services: Services = request.app.state.services
    return services
