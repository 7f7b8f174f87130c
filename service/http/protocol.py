"""uvicorn's HTTP protocol with bounds on what a client may hold: a slot, header bytes, time to send, time to read.

uvicorn 0.54 has none of them, and httptools buffers a header of any size. No timer runs a request: the server looks at
every connection a few times within the shortest limit (`enforce_timeouts`). A client that leaves ends its request. The
protocol knows connections and tasks, not what requests mean. It uses names that uvicorn may change: tests fail then.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors import HeadersTooLarge, MalformedRequest, RequestTimeout, ServiceError, TooManyConnections
from service.http.connection import (
    CONNECTION_KEY,
    AnswerWriter,
    Connection,
    ConnectionSlots,
    Slot,
    check_head,
    expected_tokens,
    refusal_bytes,
    without_upgrade,
)
from service.http.early_refusal import EarlyRefusals, RefusedClient
from service.settings import Settings

LINGER_SECONDS = 2.0  # how long a refused client may go on sending before it is cut off
FREE_CHUNKS = 4096  # of a body in chunks; beyond, each has to hold LEAST_CHUNK_BYTES on average
LEAST_CHUNK_BYTES = 64
MOST_PIPELINED = 128  # requests that may wait behind the one that is being answered; one read may hold ten thousand
LEAST_RETRY_AFTER = 1  # seconds; the header has whole ones
_CHUNK_MARK_BYTES = 12  # around a chunk: its length and two ends of lines

Reading = Literal["nothing yet", "head", "body", "between requests"]


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Tells `on_refused` the code of each error that it answers because there is no request to.

    Attributes:
        answering: the request that is being answered, or was answered last. uvicorn's `cycle` is the one that came in
            last, which may still wait for its turn in uvicorn's `pipeline`.
        body_bytes: how much has come of the body that is being read.
    """

    answering: RequestResponseCycle | None = None

    def __init__(
        self,
        *args: Any,
        settings: Settings,
        slots: ConnectionSlots,
        early: EarlyRefusals,
        on_refused: Callable[[str], None],
        was_answered: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._slots = slots
        self._early = early
        self._on_refused = on_refused
        self._slot: Slot | None = None
        self._reading: Reading = "between requests" if was_answered else "nothing yet"
        self._waiting_since: float | None = None  # for what is being read, or for a request's first byte
        self._answered_at = 0.0  # the last request
        self._read_deadline: float | None = None  # of the client, for what is written
        self._unread_bytes = 0  # that were written, when somebody looked last
        self._unread_since = 0.0  # their number is this
        self._send_seconds = settings.send_timeout  # that are left for the current answer
        self._close_deadline: float | None = None
        self._discards_input = False
        self._refusal: ServiceError | None = None  # to be written after the current answer
        self._head_bytes = 0  # of headers that are complete
        self._framing_bytes = 0  # received since the request began, without its body and the marks of its chunks
        self.body_bytes = self._chunks = 0
        self._is_refused = False  # the request that is being read, from its head
        self._refusals = RefusedClient(early)
        self._pause: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Begins to wait for a request; refuses a client without a slot."""
        super().connection_made(transport)
        self._writer = AnswerWriter(transport, self.linger_and_close)
        self.connection = Connection(self._begin_answer)
        if self.was_answered:
            self._answered_at = self.loop.time()
            self._start_keep_alive(self.timeout_keep_alive)
        else:
            self._waiting_since = self.loop.time()
        self._slot = self._slots.take(self.server[1] if self.server is not None else None, transport)
        if self._slot is None:
            self._refuse(TooManyConnections("too many connections; try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what still runs for this client."""
        super().connection_lost(exc)
        self.connection.is_lost = True
        if self.answering is not None:  # uvicorn marks the request that came in last
            self.answering.disconnected = True
        self.pipeline.clear()
        self._writer.close_connection = self.transport.close  # no longer this object, which is freed at once
        self.connection.begin_answer = lambda: False
        self.connection.cancel()
        self._refusals.end()
        if self._pause is not None:
            self._pause.cancel()
        self._slots.release(self._slot, self.transport)
        self._slot = None

    def data_received(self, data: bytes) -> None:
        """Parses what arrived; what a refused client goes on sending is dropped."""
        if self._discards_input:
            return
        self._unset_keepalive_if_required()
        self._framing_bytes += len(data)
        offer_end = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            offer_end = offer.args[0]
        except httptools.HttpParserError as error:
            ours = error.__context__  # that a method of this class raised
            malformed = MalformedRequest("this is no valid HTTP/1.1 request")
            self._refuse(ours if isinstance(ours, ServiceError) else malformed)
            return
        if offer_end is not None:
            self._decline_upgrade(data[offer_end:])
        elif self._reading in ("head", "body") and self._framing_bytes > self._settings.max_header_bytes:
            self._refuse(self._too_large())
        elif self._reading == "between requests" and not (self.is_answering or self.timeout_keep_alive_task):
            self._waiting_since = self._waiting_since or self.loop.time()  # the bytes began no request

    def on_message_begin(self) -> None:
        """Hands the connection to the request through its scope, and starts its clock."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise MalformedRequest(f"more than {MOST_PIPELINED} requests ahead: wait for answers")
        super().on_message_begin()
        self.scope[CONNECTION_KEY] = self.connection  # type: ignore[literal-required]  # a key of our own
        self._waiting_since = self.loop.time()
        self._reading = "head"
        self._head_bytes = self._framing_bytes = self.body_bytes = self._chunks = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts a header; a trailer comes here too, and is no header of the request (RFC 9110, 6.5.1)."""
        if self._reading == "head":
            super().on_header(name, value)
            self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """The head is whole; one with an offer to upgrade comes a second time, without it."""
        if not self.parser.should_upgrade():
            self._count_head(len(self.url))
            check_head(self.parser.get_http_version(), self.headers)
            self.expect_100_continue &= self.parser.get_http_version() == "1.1"  # RFC 9110, 10.1.1
            self._reading = "body"
            self._count_framing(-self._head_bytes)
            is_free = self._pause is None and not self.is_answering and not self.pipeline
            self._is_refused = is_free and self._early.is_alert and self._refuse_from_head()
            if not self._is_refused:  # it is answered when its turn comes
                super().on_headers_complete()
                self.cycle.transport = self._writer  # type: ignore[assignment]  # it has the methods that uvicorn uses

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body; that of a refused request belongs to none."""
        if self.cycle is not None:
            super().on_body(body)
        self.body_bytes += len(body)
        self._count_framing(-len(body))

    def on_chunk_header(self) -> None:
        """Counts a chunk: bodies in chunks of one byte hold the event loop."""
        self._chunks += 1
        self._count_framing(-_CHUNK_MARK_BYTES)
        if self._chunks > FREE_CHUNKS + self.body_bytes // LEAST_CHUNK_BYTES:
            raise MalformedRequest("the body comes in too many small chunks; send larger ones")

    def on_message_complete(self) -> None:
        """Stops the request's clock; behind a refused request, waits before the next one is read."""
        if not self.parser.should_upgrade():
            if self.cycle is not None:
                super().on_message_complete()
            self._reading, self._waiting_since = "between requests", None
            if not self.pipeline:
                self.flow.resume_reading()  # stopped behind a large piece; only a reader sees a client leave
        if self._is_refused:
            self._is_refused = False
            self._wait_before_next()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Uvicorn calls this when it is a request's turn: the answer's clock starts again."""
        self.answering = cycle
        self._send_seconds = self._settings.send_timeout
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Goes on with the next request, or refuses what followed the last one.

        A request that was refused on its usual way is waited behind, too; any other answer ends the row of refusals.
        """
        self._writer.flush()
        if self.answering is not None:
            self.answering.body.clear()  # that no route asked for: uvicorn keeps it until the next request
        if self._close_deadline is None:
            super().on_response_complete()
            if self._refusal is not None:
                self._write_refusal(self._refusal)
        if not self.connection.was_refused:
            self._refusals.end()
        elif not (self.is_answering or self.pipeline or self._pause is not None):
            self._refusals.note(expected_tokens(dict(self.headers)), LEAST_RETRY_AFTER)
            self._wait_before_next()
        self.connection.was_refused = False
        self._answered_at = self.loop.time()
        if self._slots.on_idle is not None:
            self.loop.call_soon(self._slots.on_idle, self)

    def pause_writing(self) -> None:
        """Starts the answer's clock: the client reads more slowly than it is written."""
        super().pause_writing()
        seconds = self._send_seconds + self.transport.get_write_buffer_size() / self._settings.min_send_rate
        self._read_deadline = self.loop.time() + seconds

    def resume_writing(self) -> None:
        """Stops the answer's clock; what this piece took beyond its share is missing for the next."""
        super().resume_writing()
        if self._read_deadline is not None:
            self._send_seconds = min(self._send_seconds, self._read_deadline - self.loop.time())
            self._read_deadline = None

    @property
    def is_answering(self) -> bool:
        """Whether an answer is not written yet."""
        return self.answering is not None and not self.answering.response_complete

    @property
    def was_answered(self) -> bool:
        """Whether an idle client waits for its next request, here or in the process that had it before."""
        return self._reading == "between requests"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: no request has begun, and every answer is written."""
        is_between = self._reading in ("nothing yet", "between requests") and not self.pipeline
        is_over = self.transport.is_closing() or self._discards_input
        return is_between and not is_over and not self.is_answering and not self.transport.get_write_buffer_size()

    @property
    def unused_since(self) -> float | None:
        """Since when the client holds a slot of the first port without a whole request; None if it has one."""
        is_used = self.is_answering or self.transport.is_closing() or self.transport.get_write_buffer_size()
        if self._slot != "first port" or is_used or self._reading == "body" or self.pipeline:
            return None
        return self._answered_at if self._waiting_since is None else self._waiting_since

    @property
    def stalled_since(self) -> float | None:
        """Since when the client has read nothing of its answer; None if no answer waits."""
        return self._unread_since if self._unread_bytes else None

    @property
    def sending_since(self) -> float | None:
        """Since when the client sends the body of the request that is being answered; None if no body is missing."""
        is_current = self._reading == "body" and self.is_answering and self.cycle is self.answering
        return self._waiting_since if is_current else None

    def refuse_body(self) -> None:
        """Ends a request whose body takes too long."""
        self._refuse(RequestTimeout("the request's body did not arrive in time"))

    def enforce_timeouts(self, now: float) -> None:
        """Cuts the client off where its time is up."""
        if self.transport.is_closing() and self._close_deadline is None:
            self._close_deadline = now
        size = self.transport.get_write_buffer_size()
        if size != self._unread_bytes:
            self._unread_bytes, self._unread_since = size, now
        unread = self._settings.send_timeout if size else 0.0  # it has time to read
        deadlines = (self._close_deadline and self._close_deadline + unread, self._read_deadline)
        if any(deadline is not None and now > deadline for deadline in deadlines):
            self.transport.abort()
        elif self._waiting_since is None:
            return
        elif self.flow.read_paused:  # not the client's doing: it may not send
            self._waiting_since = now
        elif now > self._waiting_since + self._settings.receive_timeout:
            if self._reading == "head":
                self._refuse(RequestTimeout("the request's headers did not arrive in time"))
            elif self._reading == "body" and self.is_answering:
                self.refuse_body()
            else:  # nothing was asked, or it has its answer
                self.transport.close()

    def _begin_answer(self) -> bool:
        """Holds the head until its body comes; whether the connection has to end behind the answer.

        A client that waits for `100 Continue` and gets an answer instead may send its body or not (RFC 9110, 10.1.1).
        """
        self._writer.hold_head()
        return not self.timeout_keep_alive or bool(self.answering and self.answering.waiting_for_100_continue)

    def _count_framing(self, size: int) -> None:
        self._framing_bytes = max(0, self._framing_bytes + size)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._settings.max_header_bytes:
            raise self._too_large()

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the headers are larger than {self._settings.max_header_bytes} bytes")

    def _decline_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its offer to upgrade, which RFC 9110 (7.8) lets a server ignore.

        httptools' parser stops permanently behind the head of such a request, and Java's HTTP client makes the offer
        with every first one, body and all.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode("ascii")
        self.parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse(MalformedRequest("CONNECT: this is no proxy"))
            return
        head = b"".join(b"%s: %s\r\n" % header for header in without_upgrade(self.headers))
        self.data_received(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, head, rest))

    def _refuse(self, error: ServiceError) -> None:
        """Reads no more, and answers what cannot be read: once, and after the current answer.

        A request whose own body is at fault ends through its own task: it has an id, a log line and a count.
        """
        self._discards_input, self._waiting_since = True, None
        if not self.is_answering:
            self._write_refusal(error)
        elif self._reading != "body" or self.cycle is not self.answering:
            self._refusal = error
            self.pipeline.clear()
        elif self.cycle.response_started:
            self.transport.close()  # its answer is out: no place for this one
        else:
            self.connection.fail(error)

    def _write_refusal(self, error: ServiceError) -> None:
        """Answers without a request, then listens no more."""
        if not self.transport.is_closing():
            self._on_refused(error.code)
            self.transport.write(refusal_bytes(error, headers=self.server_state.default_headers))
            self.linger_and_close()

    def linger_and_close(self) -> None:
        """Closes for writing, and drops what still comes for a moment.

        Closed with bytes unread, the socket would be reset, and the client lose the answer, or not even look for it.
        """
        self._discards_input, self._waiting_since, self._refusal = True, None, None
        self._close_deadline = max(self.loop.time() + LINGER_SECONDS, self._read_deadline or 0.0)
        self.transport.write_eof()
        self.pipeline.clear()
        self.flow.resume_reading()

    def _refuse_from_head(self) -> bool:
        """Writes a refusal where the queue would refuse; whether it did."""
        is_kept = self.parser.get_http_version() != "1.0" and self.timeout_keep_alive > 0
        keeps_alive = is_kept and self.parser.should_keep_alive()
        refusal = self._early.refuse(
            self.parser.get_method().decode("ascii"),
            self.url,
            self.headers,
            self.server,
            default_headers=self.server_state.default_headers,
            keeps_alive=keeps_alive,
            call_soon=self.loop.call_soon,
        )
        if refusal is None:
            return False
        self._refusals.note(refusal.tokens, refusal.retry_after)
        self.transport.write(refusal.data)
        if not keeps_alive:
            self.linger_and_close()
        return True

    def _wait_before_next(self) -> None:
        pause = self._refusals.pause(self.loop.time())
        self._start_keep_alive(pause + self.timeout_keep_alive)
        if pause and not self.transport.is_closing():
            self.flow.pause_reading()
            self._pause = self.loop.call_later(pause, self._read_again)

    def _start_keep_alive(self, seconds: float) -> None:
        """Does what uvicorn does behind an answer, for those that it does not see, or a pause follows."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _read_again(self) -> None:
        self._pause = None
        self.flow.resume_reading()
