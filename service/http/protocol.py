"""uvicorn's HTTP protocol with bounds on what a client may hold: header bytes, time to send, time to read.

uvicorn 0.54 has none of them, and httptools buffers a header of any size. No timer runs a request: the server looks at
every connection a few times within the shortest limit (`check`). A client that leaves ends its request. It knows
connections and tasks, not what requests mean.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal, NoReturn

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors import HeadersTooLarge, MalformedRequest, RequestTimeout, ServiceError
from service.http.answer_writer import AnswerWriter
from service.http.connection import CONNECTION_KEY, Connection, ConnectionLimits, refusal_bytes
from service.http.read_ahead import MOST_AHEAD, ReadAhead
from service.http.request_head import host_problem, with_path, without_offer

LINGER_SECONDS = 2.0  # how long a refused client may go on sending before it is cut off

Reading = Literal["nothing yet", "head", "body", "between requests"]


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        limits: what the client may hold.
        on_refused: told the code of each error that is answered here, because there is no request to answer.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, on_refused: Callable[[str], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._on_refused = on_refused
        self._connection = Connection()
        self._reading: Reading = "nothing yet"
        self._answering: RequestResponseCycle | None = None  # the current one; `cycle` is the last that came in
        self._awaited_since: float | None = None  # what is being read, or a request's first byte
        self._unread_until: float | None = None  # an answer that the client has to read
        self._patience = limits.send_timeout  # seconds that are left of it for the current answer
        self._closing_until: float | None = None
        self._is_deaf = False  # nothing more is read
        self._objection: ServiceError | None = None  # why the parser was stopped, where it had no reason of its own
        self._refusal: ServiceError | None = None  # to be written once earlier requests are answered
        self._head_bytes = 0  # of headers that are complete
        self._unparsed_bytes = 0  # received since the head began, or since the last piece of the body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self.flow = self._ahead = ReadAhead(transport, self.pipeline)
        self._writer = AnswerWriter(transport, self._linger)
        self._awaited_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what still runs for this client."""
        super().connection_lost(exc)
        self._connection.is_lost = True
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True  # uvicorn marks the last one only
        self._ahead.drop()
        self._writer.close_connection = self.transport.close  # as would the whole connection through its own
        self._connection.cancel()

    def eof_received(self) -> None:
        """Begins no answer any more: the transport drops it, and tells that it is lost a turn later."""
        self._connection.is_lost = True
        if self._answering is not None and not self._answering.response_started:
            self._answering.disconnected = True

    def data_received(self, data: bytes) -> None:
        """Parses what arrived; what a refused client goes on sending is dropped."""
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        self._unparsed_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._objection or MalformedRequest("this is no valid HTTP/1.1 request"))
        else:
            if self._reading in ("head", "body") and self._unparsed_bytes > self._limits.max_header_bytes:
                self._refuse(self._too_large())
            elif self._reading == "between requests" and self.cycle.response_complete and self._awaited_since is None:
                self._awaited_since = self.loop.time()  # what came ended uvicorn's wait, and began no request

    def on_message_begin(self) -> None:
        """Hands the connection to the request through its scope, and starts its clock."""
        if len(self.pipeline) >= MOST_AHEAD:
            self._object(MalformedRequest(f"more than {MOST_AHEAD} requests ahead: wait for answers"))
        super().on_message_begin()
        self.scope[CONNECTION_KEY] = self._connection  # type: ignore[literal-required]  # a key of our own
        self._awaited_since = self.loop.time()
        self._reading = "head"
        self._head_bytes = self._unparsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Counts the request line."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts a header; a trailer comes here too, is counted, and is no header of the request (RFC 9110, 6.5.1)."""
        if self._reading == "head":
            super().on_header(name, value)
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """The head is whole; one with an offer to upgrade comes a second time, without it."""
        if not self.parser.should_upgrade():
            if (wrong_host := host_problem(self.parser.get_http_version(), self.headers)) is not None:
                self._object(MalformedRequest(wrong_host, param="Host"))
            self.url = with_path(self.url)
            self.expect_100_continue &= self.parser.get_http_version() != "1.0"  # takes it for the answer
            super().on_headers_complete()
            self.cycle.transport = self._writer  # type: ignore[assignment]  # all that a cycle uses
            self._reading = "body"
            if self.pipeline:
                self.flow.resume_reading()  # stopped by uvicorn: while nothing is read, nobody sees the client leave

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body; what follows and is none is counted anew: trailers, extensions of chunks."""
        super().on_body(body)
        self._unparsed_bytes = 0

    def on_message_complete(self) -> None:
        """Stops the request's clock."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self._reading, self._awaited_since = "between requests", None
            self.flow.resume_reading()  # stopped by uvicorn behind a large piece, for a reader that asks no more

    def on_response_complete(self) -> None:
        """Goes on with the next request, or with what there is to say to what followed the last one."""
        self._writer.flush()
        if self._answering is not None:
            self._answering.body.clear()  # what no route asked for would stay until the next request
        if self._closing_until is not None:
            return
        super().on_response_complete()
        if self._refusal is not None and self.cycle.response_complete:
            self._write_refusal(self._refusal)

    def pause_writing(self) -> None:
        """Starts the answer's clock: the client reads more slowly than it is written."""
        super().pause_writing()
        seconds = self._patience + self.transport.get_write_buffer_size() / self._limits.min_send_rate
        self._unread_until = self.loop.time() + seconds

    def resume_writing(self) -> None:
        """Stops the answer's clock; what this piece took beyond its share is missing for the next."""
        super().resume_writing()
        if self._unread_until is not None:
            self._patience = min(self._patience, self._unread_until - self.loop.time())
            self._unread_until = None

    def check(self, now: float) -> None:
        """Cuts the client off where its time is up."""
        if self.transport.is_closing() and self._closing_until is None:
            self._closing_until = now
        unread = self._limits.send_timeout if self.transport.get_write_buffer_size() else 0.0  # it has time to read
        limits = (self._closing_until and self._closing_until + unread, self._unread_until)
        if any(limit is not None and now > limit for limit in limits):
            self.transport.abort()
        elif self._awaited_since is None:
            return
        elif self.flow.read_paused:  # not the client's doing: it may not send
            self._awaited_since = now
        elif now > self._awaited_since + self._limits.receive_timeout:
            if self._reading in ("nothing yet", "between requests"):
                self.transport.close()
            else:
                part = "headers" if self._reading == "head" else "body"
                self._refuse(RequestTimeout(f"the request's {part} did not arrive in time"))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        self._patience = self._limits.send_timeout
        if self._refusal is not None and self._reading == "body" and cycle is self.cycle:
            self._connection.failure, self._refusal = self._refusal, None  # its own: the body is what was refused
        super()._start_asgi_task(cycle, app)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.max_header_bytes:
            self._object(self._too_large())

    def _object(self, error: ServiceError) -> NoReturn:
        """Stops the parser; `data_received` answers."""
        self._objection = error
        raise error

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the headers are larger than {self._limits.max_header_bytes} bytes")

    def _decline_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its offer to upgrade, which RFC 9110 (7.8) lets a server ignore.

        httptools' parser stops for good behind the head of such a request, and Java's HTTP client makes the offer
        with every first one, body and all.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode("ascii")
        self.parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse(MalformedRequest("CONNECT: this is no proxy"))
            return
        head = b"".join(b"%s: %s\r\n" % header for header in without_offer(self.headers))
        self.data_received(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, head, rest))

    def _refuse(self, error: ServiceError) -> None:
        """Reads no more, and answers what cannot be read: once, and after what is still being answered."""
        self._is_deaf, self._awaited_since = True, None
        if self._reading == "body" and self.cycle is self._answering:
            self._refuse_body(error)
        elif self.cycle is not None and not self.cycle.response_complete:
            self._refusal = error
        else:
            self._write_refusal(error)

    def _refuse_body(self, error: ServiceError) -> None:
        """Ends the request whose body is at fault through its own task: it has an id, a log line and a count."""
        if self.cycle.response_started:
            self.transport.close()  # its answer is out: no place for this one
        else:
            self._connection.fail(error)

    def _write_refusal(self, error: ServiceError) -> None:
        """Answers without a request, then listens no more."""
        self._refusal = None
        if not self.transport.is_closing():
            self._on_refused(error.code)
            self.transport.write(refusal_bytes(error))
            self._linger()

    def _linger(self) -> None:
        """Closes for writing, and drops what still comes for a moment.

        Closed with bytes unread, the socket would be reset, and the client lose the answer, or not even look for it.
        """
        self._is_deaf, self._awaited_since = True, None
        self._closing_until = max(self.loop.time() + LINGER_SECONDS, self._unread_until or 0.0)
        self.transport.write_eof()
        self._ahead.drop()
        self.flow.resume_reading()
