"""`GET /`, `GET /docs` and what they load: everything from this process, nothing from elsewhere."""

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

STATIC = Path(__file__).parent.parent / "static"


def add_routes(app: FastAPI) -> None:
    """Adds the pages; they are no part of the API, so OpenAPI leaves them out."""
    app.add_api_route("/", answer_index, methods=["GET"], response_model=None, include_in_schema=False)
    app.add_api_route("/docs", answer_docs, methods=["GET"], response_model=None, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC))


async def answer_index(_request: Request) -> Response:
    """The routes, for a person."""
    return FileResponse(STATIC / "index.html", media_type="text/html")


async def answer_docs(_request: Request) -> Response:
    """Swagger UI on this process' OpenAPI document."""
    return FileResponse(STATIC / "docs.html", media_type="text/html")
