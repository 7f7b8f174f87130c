"""Request bodies: bounded while they are read, then validated by pydantic straight from the bytes."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from service.byte_budget import Share
from service.errors import ClientLeft, NotAcceptable, TooLarge, UnsupportedMedia
from service.http.media import JSON, quality
from service.http.validation import explain_validation

M = TypeVar("M", bound=BaseModel)


def check_media(headers: Mapping[bytes, bytes]) -> None:
    """Checks that the body is JSON.

    Raises:
        UnsupportedMedia: the body is of another type or compressed.
    """
    content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if content_type != JSON.encode("ascii"):
        raise UnsupportedMedia("Content-Type: expected application/json", param="Content-Type")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMedia("Content-Encoding: the body must not be compressed", param="Content-Encoding")


def check_accept(headers: Mapping[bytes, bytes], answers: Sequence[str]) -> None:
    """Checks that the caller accepts one of `answers`.

    Raises:
        NotAcceptable: the caller accepts none of them.
    """
    accept = headers.get(b"accept")
    if not accept or accept == b"*/*":
        return
    if not any(quality(accept, answer) for answer in answers):
        raise NotAcceptable(f"Accept: this route answers {' and '.join(answers)} only", param="Accept")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int, share: Share) -> bytes:
    """Reads a body; holds at most one piece more than `limit` bytes of it.

    Raises:
        TooLarge: by its Content-Length before anything is read, or as soon as more than the limit arrived.
        HeldTooMuch: all requests together hold as much as they may.
        ClientLeft: the connection closed before the end.
    """
    if int(headers.get(b"content-length", b"0")) > limit:
        raise _body_too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        size += len(part)
        share.take(len(part))
        if size > limit:
            raise _body_too_large(limit)
        if not message.get("more_body", False):
            return b"".join([*parts, part]) if parts else part
        parts.append(part)


def validate(model: type[M], raw: bytes) -> M:
    """Parses and validates a body.

    Raises:
        MalformedBody: the body is not JSON.
        Invalid: it is JSON that the model does not take. The message never holds a value that was sent.
    """
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise explain_validation(error, model) from None


def _body_too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes; send fewer inputs a request")
