"""`GET /` (the viewer), `GET /docs` and what they load: everything from this process, nothing from elsewhere.

The files are read once, when the app is made: a request touches no path and no disk.
"""

import hashlib
import mimetypes
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.errors import InternalError, NotFound
from service.http.failures import failure_documents
from service.http.ports import ADMIN_ROUTES
from service.services import services_of

STATIC = Path(__file__).parent.parent / "static"
INDEX, DOCS = "viewer/index.html", "docs.html"
_LINK = re.compile(rb'<a href="([^"]*)"[^>]*>[^<]*</a>\s*')


@dataclass(frozen=True, slots=True)
class Page:
    """One file as it is answered."""

    content: bytes
    media_type: str
    etag: str


def add_routes(app: FastAPI) -> None:
    """Adds the pages; OpenAPI lists the first, whose path the API has too, and leaves the others out."""
    pages = read_pages(STATIC)
    viewer, viewer_beside_admin_port = pages[INDEX], _without_links(pages[INDEX], ADMIN_ROUTES)
    docs, docs_on_admin_port = pages[DOCS], _without_trying(pages[DOCS])

    async def answer_viewer(request: Request) -> Response:
        return _answer(request, viewer_beside_admin_port if _has_admin_port(request) else viewer)

    async def answer_docs(request: Request) -> Response:
        return _answer(request, docs_on_admin_port if _has_admin_port(request) else docs)

    async def answer_file(request: Request) -> Response:
        page = pages.get(request.path_params["path"])
        if page is None:
            raise NotFound("no such file")
        return _answer(request, page)

    app.add_api_route(
        "/",
        answer_viewer,
        methods=["GET"],
        summary="The viewer",
        response_model=None,
        response_class=Response,
        responses={200: {"content": {"text/html": {}}}, **failure_documents(InternalError)},
    )
    for path, handler in (("/docs", answer_docs), ("/static/{path:path}", answer_file)):
        app.add_api_route(path, handler, methods=["GET"], response_model=None, include_in_schema=False)


def read_pages(directory: Path) -> dict[str, Page]:
    """Every file below a directory, by its path in it."""
    return {
        path.relative_to(directory).as_posix(): _read(path) for path in sorted(directory.rglob("*")) if path.is_file()
    }


def _read(path: Path) -> Page:
    return _page(path.read_bytes(), mimetypes.guess_type(path.name)[0] or "text/plain")


def _page(content: bytes, media_type: str) -> Page:
    return Page(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _without_links(page: Page, routes: Collection[str]) -> Page:
    """A page of the root that links to none of these routes."""

    def keep(link: re.Match[bytes]) -> bytes:
        return b"" if f"/{link[1].decode()}" in routes else link[0]

    return _page(_LINK.sub(keep, page.content), page.media_type)


def _without_trying(page: Page) -> Page:
    """The documentation where what it describes is not: with a word about it, and without buttons to try."""
    return _page(page.content.replace(b'<p id="elsewhere" hidden>', b'<p id="elsewhere">'), page.media_type)


def _has_admin_port(request: Request) -> bool:
    return services_of(request).settings.admin_port is not None


def _answer(request: Request, page: Page) -> Response:
    headers = {"etag": page.etag, "cache-control": "no-cache"}
    if _is_known(page, context_of(request.scope).headers.get(b"if-none-match", b"")):
        return Response(status_code=304, headers=headers)
    return Response(page.content, media_type=page.media_type, headers=headers)


def _is_known(page: Page, tags: bytes) -> bool:
    """Whether the caller has it, by `If-None-Match` (RFC 9110, 13.1.2); a proxy that compresses makes its tag weak."""
    known = {tag.strip().removeprefix("W/") for tag in tags.decode("latin-1").split(",")}
    return page.etag in known or known == {"*"}
