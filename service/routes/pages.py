"""`GET /` (the viewer), `GET /docs` and what they load: all files come from this process.

The files are read once, when the first of them is asked for. After that a request touches no path and no disk.
"""

import hashlib
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.errors import NotFound
from service.http.route import Route
from service.services import services_of

STATIC = Path(__file__).parent.parent / "static"
INDEX, DOCS = "viewer/index.html", "docs.html"
_LINK = re.compile(rb'<a href="([^"]*)"[^>]*>[^<]*</a>\s*')


@dataclass(frozen=True)
class Page:
    """One file, with the headers of its answer."""

    content: bytes
    media_type: str

    @cached_property
    def etag(self) -> str:
        """A part of its hash."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


async def answer_viewer(request: Request) -> Response:
    """The viewer; if there is an admin port, without links to what is on that one."""
    services = services_of(request)
    if services.settings.admin_port is None:
        return _answer(request, _pages()[INDEX])
    return _answer(request, _without_links(frozenset(one.path for one in services.routes if one.is_administrative)))


async def answer_docs(request: Request) -> Response:
    """The documentation of the API; on the admin port, where the API is not, without buttons to try it."""
    has_api = services_of(request).settings.admin_port is None
    return _answer(request, _pages()[DOCS] if has_api else _docs_without_trying())


async def answer_file(request: Request) -> Response:
    """A file that the viewer or the documentation loads."""
    page = _pages().get(request.path_params["path"])
    if page is None:
        raise NotFound("no such file")
    return _answer(request, page)


@cache
def _pages() -> Mapping[str, Page]:
    """Every file below `static`, by its path in it."""
    return {
        path.relative_to(STATIC).as_posix(): Page(path.read_bytes(), mimetypes.guess_type(path.name)[0] or "text/plain")
        for path in STATIC.rglob("*")
        if path.is_file()
    }


@cache
def _without_links(paths: frozenset[str]) -> Page:
    """The viewer without links to these routes."""

    def keep(link: re.Match[bytes]) -> bytes:
        return b"" if f"/{link[1].decode()}" in paths else link[0]

    page = _pages()[INDEX]
    return replace(page, content=_LINK.sub(keep, page.content))


@cache
def _docs_without_trying() -> Page:
    page = _pages()[DOCS]
    return replace(page, content=page.content.replace(b'<p id="elsewhere" hidden>', b'<p id="elsewhere">'))


def _answer(request: Request, page: Page) -> Response:
    """The page, unless `If-None-Match` has it (RFC 9110, 13.1.2); proxies that compress make tags weak."""
    headers = {"etag": page.etag, "cache-control": "no-cache"}
    known = context_of(request.scope).headers.get(b"if-none-match", b"").decode("latin-1").split(",")
    if {page.etag, "*"} & {tag.strip().removeprefix("W/") for tag in known}:
        return Response(status_code=304, headers=headers)
    return Response(page.content, media_type=page.media_type, headers=headers)


ROUTES = (
    Route("GET", "/", answer_viewer, access="everyone", summary="The viewer", answer={"content": {"text/html": {}}}),
    Route("GET", "/docs", answer_docs, access="admin"),
    Route("GET", "/static/{path:path}", answer_file, access="everyone", is_shared=True),
)
