"""What a route is, declared in one place.

Routing, keys, ports, early refusals, failures, CORS, OpenAPI, metrics and tracing all read these declarations; none has
a list of its own. A new API is a file of declarations and a line in `service.routes.table`.
"""

import re
import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service.error_shapes import OURS, ErrorShape
from service.errors import (
    DeadlineExceeded,
    HeldTooMuch,
    InferenceFailed,
    InternalError,
    Invalid,
    MalformedBody,
    MalformedRequest,
    NotAcceptable,
    NotReady,
    Overloaded,
    RequestTimeout,
    ServiceError,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from service.http.media import JSON

Access = Literal["everyone", "key", "admin"]
"""Who may call a route. `key`: whoever has one, where the process was given keys. `admin`: everyone, but only on the
admin port where there is one."""

Method = Literal["GET", "POST"]

Endpoint = Callable[..., Coroutine[Any, Any, Response]]
"""`async def f(request)`, or `async def f(request, body: Model)` for a route with a validated body."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
"""An endpoint whose body is read and validated."""

_BODY_FAILURES = (
    MalformedBody,
    MalformedRequest,
    RequestTimeout,
    NotAcceptable,
    TooLarge,
    UnsupportedMedia,
    Invalid,
    Overloaded,
    HeldTooMuch,
    NotReady,
)
_QUEUE_FAILURES = (InferenceFailed, DeadlineExceeded)


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """One method of one path.

    Attributes:
        method: HTTP method; a route for GET answers HEAD, too.
        path: template; `{name:path}` matches slashes. Narrower templates are declared before wider ones.
        endpoint: makes the answer.
        access: who may call it.
        is_queued: waits for the workers, so it is refused before its body is read while they have too much to do.
        is_probe: asked by machines under any host name, every few seconds: on both ports, and never traced.
        is_shared: on the admin port as well as on the first one.
        error_shape: how its failures are written.
        body_error_shapes: the same for bodies of other APIs at the same path, by a field that only theirs have.
        summary: its line in the OpenAPI document, which leaves a route without one out.
        tag: the API that it belongs to, in that document.
        answer: the document's entry of a good answer. Its content types are those that the route answers.
        raises: failures of the document beside those that follow from the rest of the declaration.
        parameters: the document's entries of parameters in the path.
        request_body: the document's entry of a body that the endpoint reads itself.
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
        """The model of its body, from the endpoint's annotation; None where the endpoint takes no validated body."""
        return typing.get_type_hints(self.endpoint).get("body")

    @property
    def has_body(self) -> bool:
        """Whether requests bring a body."""
        return self.request_body is not None or self.body_model is not None

    @property
    def content_types(self) -> tuple[str, ...]:
        """What it answers."""
        return tuple(self.answer.get("content", ()))

    @property
    def failures(self) -> tuple[type[ServiceError], ...]:
        """Every failure that its entry in the document lists."""
        return (
            *((Unauthorized,) if self.access == "key" else ()),
            *(_BODY_FAILURES if self.has_body else ()),
            InternalError,
            *(_QUEUE_FAILURES if self.is_queued else ()),
            *self.raises,
        )

    def error_shape_of(self, body: bytes) -> ErrorShape:
        """How a failure of a request with this body is written; looks for field names, valid JSON or not.

        A text never holds such a name: the quotes in it are escaped.
        """
        shapes = self.body_error_shapes.items()
        found = (shape for name, shape in shapes if re.search(rf'"{re.escape(name)}"\s*:'.encode(), body))
        return next(found, self.error_shape)

    def is_on_port(self, *, is_admin: bool) -> bool:
        """Whether one of two ports has it: the admin port, or the other one."""
        if self.access == "admin":
            return is_admin
        return not is_admin or self.is_probe or self.is_shared


def answer_document(model: Any, example: Any = None, headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document's entry of a good answer in JSON."""
    content = {JSON: {"example": example} if example is not None else {}}
    document = {"description": "OK", "model": model, "content": content}
    return document if headers is None else {**document, "headers": headers}
