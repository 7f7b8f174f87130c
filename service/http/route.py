"""What a route is, declared in one place, and the table in which a request finds its route.

A new API is a file of declarations and a line in `service.app`.
"""

import re
import typing
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from re import Pattern
from typing import Any, Literal, NoReturn

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from service.errors import (
    DeadlineExceeded,
    HeldTooMuch,
    InferenceFailed,
    InternalError,
    Invalid,
    MalformedBody,
    MalformedRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotAcceptable,
    NotReady,
    Overloaded,
    RequestTimeout,
    ServiceError,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from service.http.response import JSON
from service.wire import OURS, ErrorShape

Access = Literal["everyone", "key", "admin", "operator"]
"""Who may call a route. `key`: whoever has one, where the process was given keys. `admin`: everyone, but only on the
admin port if there is one. `operator`: whoever has a key, only on the admin port, and nowhere if there is none."""

Method = Literal["GET", "POST", "DELETE"]

Endpoint = Callable[..., Coroutine[Any, Any, Response]]
"""`async def f(request)`, or `async def f(request, body: Model)` for a route with a validated body."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
"""An endpoint whose body is read and validated."""

_NO_PARAMETERS: Mapping[str, str] = {}
_ANY_OTHER = ""  # instead of a method

_BODY_FAILURES = (
    *(ModelNotFound, MalformedBody, MalformedRequest, RequestTimeout, NotAcceptable, TooLarge),
    *(UnsupportedMedia, Invalid, Overloaded, HeldTooMuch, NotReady),
)
_QUEUE_FAILURES = (InferenceFailed, DeadlineExceeded)


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """One method of one path.

    Attributes:
        method: a route for GET answers HEAD, too.
        path: template; `{name:path}` matches slashes. Narrower templates are declared before wider ones.
        is_queued: waits for the workers, so it is refused before its body is read while they have too much to do.
        is_probe: asked by machines under any host name, every few seconds: on both ports, and never traced.
        is_shared: on the admin port as well as on the first one.
        error_shape: how its failures are written.
        body_error_shapes: the same for bodies of other APIs at the same path, by a field that only theirs have.
        summary: its line in the OpenAPI document, which leaves a route without one out.
        tag: the API that it belongs to, in that document, as all that follows.
        answer: a good answer. Its content types are those that the route answers.
        raises: failures beside those that follow from the rest of the declaration.
        parameters: those in the path.
        request_body: one that the endpoint reads itself.
    """

    method: Method
    path: str
    endpoint: Endpoint
    _: KW_ONLY
    access: Access = "key"
    is_queued: bool = False
    is_probe: bool = False
    is_shared: bool = False
    error_shape: ErrorShape = OURS
    body_error_shapes: Mapping[str, ErrorShape] = field(default_factory=dict)
    summary: str = ""
    tag: str | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)
    raises: Sequence[type[ServiceError]] = ()
    parameters: Sequence[Mapping[str, Any]] = ()
    request_body: Mapping[str, Any] | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it answers, as `Allow` lists them."""
        return (self.method, "HEAD") if self.method == "GET" else (self.method,)

    @property
    def body_model(self) -> type[BaseModel] | None:
        """The model of its body, from the endpoint's annotation; None if the endpoint has no validated body."""
        return typing.get_type_hints(self.endpoint).get("body")

    @property
    def has_body(self) -> bool:
        """Whether requests bring a body."""
        return self.request_body is not None or self.body_model is not None

    @property
    def needs_key(self) -> bool:
        """Whether callers need a key, where the process was given keys."""
        return self.access in {"key", "operator"}

    @property
    def is_administrative(self) -> bool:
        """Whether it is on the admin port."""
        return self.access in {"admin", "operator"}

    @property
    def content_types(self) -> tuple[str, ...]:
        """What it answers."""
        return tuple(self.answer.get("content", ()))

    @property
    def failures(self) -> tuple[type[ServiceError], ...]:
        """Every failure that its entry in the document lists."""
        listed = (
            *((Unauthorized,) if self.needs_key else ()),
            *(_BODY_FAILURES if self.has_body else ()),
            InternalError,
            *(_QUEUE_FAILURES if self.is_queued else ()),
            *self.raises,
        )
        return tuple(dict.fromkeys(listed))

    def error_shape_of(self, body: bytes) -> ErrorShape:
        """How a failure of a request with this body is written; looks for field names, valid JSON or not.

        A text never holds such a name: the quotes in it are escaped.
        """
        shapes = self.body_error_shapes.items()
        found = (shape for name, shape in shapes if re.search(rf'"{re.escape(name)}"\s*:'.encode(), body))
        return next(found, self.error_shape)

    def is_on_port(self, *, is_admin: bool) -> bool:
        """Whether one of two ports has it: the admin port, or the other one."""
        if self.is_administrative:
            return is_admin
        return not is_admin or self.is_probe or self.is_shared


def answer_document(model: Any, example: Any = None, headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document's entry of a good answer in JSON."""
    content = {JSON: {"example": example} if example is not None else {}}
    document = {"description": "OK", "model": model, "content": content}
    return document if headers is None else {**document, "headers": headers}


class RouteTable:
    """Finds the route of a request.

    Args:
        routes: in the order in which templates with parameters are tried.
        unmatched: answers paths that none of them has.
    """

    def __init__(self, routes: Sequence[Route], unmatched: Route) -> None:
        self._routes = tuple(routes)
        self.unmatched = unmatched
        by_path = {path: _by_method(path, routes) for path in dict.fromkeys(route.path for route in routes)}
        self._exact = {path: methods for path, methods in by_path.items() if "{" not in path}
        self._templates: list[tuple[Pattern[str], dict[str, Route]]] = [
            (re.compile(compile_path(path)[0].pattern, re.DOTALL), methods)  # a name in a path may hold a line feed
            for path, methods in by_path.items()
            if "{" in path
        ]

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """The route of a request and the parameters in its path; for a wrong method, one that refuses it."""
        methods = self._exact.get(path)
        if methods is not None:
            return methods.get(method) or methods[_ANY_OTHER], _NO_PARAMETERS
        for template, methods in self._templates:
            if (found := template.fullmatch(path)) is not None:
                return methods.get(method) or methods[_ANY_OTHER], found.groupdict()
        return self.unmatched, _NO_PARAMETERS

    @property
    def methods(self) -> list[str]:
        """Every method that some route is declared with."""
        return sorted({route.method for route in self._routes})

    @property
    def answer_headers(self) -> list[str]:
        """Headers that the declarations list with their answers."""
        return sorted({name for route in self._routes for name in route.answer.get("headers", ())})


def _by_method(path: str, routes: Sequence[Route]) -> dict[str, Route]:
    here = [route for route in routes if route.path == path]
    by_method = {method: route for route in here for method in route.methods}
    return {**by_method, _ANY_OTHER: _refusing_methods(here[0], sorted(by_method))}


def _refusing_methods(first: Route, allowed: Sequence[str]) -> Route:
    """What answers other methods of a path: 405, to whoever may call the path at all."""

    async def refuse(_request: Request) -> NoReturn:
        raise MethodNotAllowed(allowed)

    return Route(
        first.method,
        first.path,
        refuse,
        access=first.access if first.is_administrative else "key",
        is_probe=first.is_probe,
        is_shared=first.is_shared,
        error_shape=first.error_shape,
    )
