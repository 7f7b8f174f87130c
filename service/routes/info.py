"""`GET /info` and `GET /heads`: what answers here, and what is known of its heads."""

from dataclasses import asdict
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.errors import NotFound, NotReady
from service.http.media import JSON
from service.http.route import Route, answer_document
from service.requests.schemas import HeadReport, Info
from service.runner import Runner
from service.services import services_of
from service.settings import Settings
from service.versions import installed_versions

_LIMITS = (
    "max_body_bytes",
    "max_texts",
    "max_text_characters",
    "max_request_tokens",
    "max_queue_tokens",
    "max_embedding_bytes",
    "max_attention_bytes",
    "max_attention_work_bytes",
    "max_explained_tokens",
    "request_timeout",
)


async def answer_info(request: Request) -> Response:
    """The artifact's manifest, this process' limits and threads, and the versions it runs on."""
    services = services_of(request)
    answer = describe_service(services.readiness.runner(), services.settings)
    return Response(orjson.dumps(answer), media_type=JSON)


async def answer_heads(request: Request) -> Response:
    """The report on each head that the export wrote, where it wrote one."""
    report = services_of(request).readiness.runner().head_report
    if report is None:
        raise NotFound("this artifact has no head report; `python -m export heads ARTIFACT --corpus FILE` writes one")
    return Response(report, media_type=JSON)


def describe_service(runner: Runner, settings: Settings) -> dict[str, Any]:
    """What `/info` answers."""
    return {
        "model": runner.manifest.model,
        "manifest": runner.manifest.to_dict(),
        "limits": {
            "max_sequence_length": runner.tokenizer.max_sequence_length,
            **{name: getattr(settings, name) for name in _LIMITS},
        },
        "runtime": asdict(runner.runtime),
        "versions": installed_versions(),
    }


ROUTES = (
    Route(
        "GET",
        "/info",
        answer_info,
        summary="Model, limits, versions",
        answer=answer_document(Info),
        raises=(NotReady,),
    ),
    Route(
        "GET",
        "/heads",
        answer_heads,
        summary="The head report",
        answer=answer_document(HeadReport),
        raises=(NotFound, NotReady),
    ),
)
