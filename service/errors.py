"""Every failure the service answers, each with its HTTP status; one body for all of them.

`ClientLeft` stands outside: nobody is there to answer.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self


class ServiceError(Exception):
    """A failure with a status and the fields of the error body.

    Attributes:
        type: OpenAI's error family, for clients that switch on it.
        code: short machine-readable name.
        param: the request field at fault, as a dotted path, or None.
        retry_after: seconds after which trying again makes sense, or None.
        usual_message: what is said where nothing else is; `usual_wait` is `retry_after` likewise.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    usual_message: ClassVar[str] = ""
    usual_wait: ClassVar[float | None] = None

    def __init__(self, message: str = "", *, param: str | None = None, retry_after: float | None = None) -> None:
        self.message = message or self.usual_message
        super().__init__(self.message)
        self.param = param
        self.retry_after = self.usual_wait if retry_after is None else retry_after

    @classmethod
    def at(cls, name: str, problem: str) -> Self:
        """The failure of a field or header: its name begins the message, and `inputs[0]` is `inputs.0` in `param`."""
        return cls(f"{name}: {problem}", param=name.replace("[", ".").replace("]", ""))

    def body(self) -> dict[str, Any]:
        """The one error body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class MalformedRequest(ServiceError):
    """No valid HTTP/1.1 request, or a `Host` that is not served."""

    status, type, code = 400, "invalid_request_error", "malformed_request"


class MalformedBody(ServiceError):
    """The body is not JSON."""

    status, type, code = 400, "invalid_request_error", "malformed_body"


class Unauthorized(ServiceError):
    """No API key, or one that is not known."""

    status, type, code = 401, "authentication_error", "unauthorized"


class NotFound(ServiceError):
    """No such route or resource."""

    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """Another model is served here."""

    code = "model_not_found"


class WrongTask(NotFound):
    """The model that is served is for another task; the message names it."""

    code = "wrong_task"


class MethodNotAllowed(ServiceError):
    """The route exists, with other methods."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(f"this route takes {', '.join(allowed)}")
        self.allowed = allowed


class NotAcceptable(ServiceError):
    """The caller accepts no content type that the route answers."""

    status, type, code = 406, "invalid_request_error", "not_acceptable"


class RequestTimeout(ServiceError):
    """The request's headers or body did not arrive in time."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class TooLarge(ServiceError):
    """Over a limit on bytes, texts, tokens or the size of the answer."""

    status, type, code = 413, "invalid_request_error", "too_large"


class UnsupportedMedia(ServiceError):
    """A content type that the route does not take."""

    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class Invalid(ServiceError, ValueError):
    """JSON, but not what the route takes; from Python a `ValueError`, too."""

    status, type, code = 422, "invalid_request_error", "invalid"


class HeadersTooLarge(ServiceError):
    """More header bytes than the server reads."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class Overloaded(ServiceError):
    """The wait would be too long, or the queue is full."""

    status, type, code = 429, "rate_limit_error", "overloaded"


class HeldTooMuch(Overloaded):
    """All requests together hold as many bytes as they may."""

    code = "too_many_bytes_held"
    usual_wait = 1.0


class InternalError(ServiceError):
    """A fault of ours; the text is fixed, details are in the log."""

    usual_message = "internal error; the log holds the details under this request's id"


class InferenceFailed(InternalError):
    """The backend failed on this text."""

    code = "inference_failed"
    usual_message = "the model gave a number that is not finite"


class UnsupportedCoding(ServiceError):
    """The body comes in another transfer coding than in chunks."""

    status, type, code = 501, "invalid_request_error", "unsupported_transfer_coding"


class TooManyConnections(ServiceError):
    """More open connections than allowed."""

    status, type, code = 503, "server_error", "too_many_connections"
    usual_wait = 1.0


class NotReady(ServiceError):
    """Starting, draining, or no worker answers."""

    status, type, code = 503, "server_error", "not_ready"
    usual_wait = 1.0  # another replica is there by then


class DeadlineExceeded(ServiceError):
    """The caller's time was up before the answer was there."""

    status, type, code = 504, "server_error", "deadline_exceeded"
    usual_message = "the deadline passed before the answer was there"


class ClientLeft(Exception):
    """The client closed its connection before its request was answered."""


def one_line(error: Exception) -> str:
    """What an exception of anybody's says, for a program that ends with it."""
    return " ".join(str(error).split()) or type(error).__name__
