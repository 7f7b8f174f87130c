import pytest

from service.context import RequestContext
from service.errors import Invalid


def context(**headers: bytes) -> RequestContext:
    return RequestContext(
        "/encode", "POST", [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    )


def test_of_several_lines_the_last_counts_unless_they_are_one_list() -> None:
    lines = [(b"accept", b"a/b"), (b"host", b"one"), (b"accept", b"c/d"), (b"host", b"two"), (b"x-api-key", b"three")]
    made = RequestContext("/encode", "POST", lines)
    assert made.headers == {b"accept": b"a/b, c/d", b"host": b"two", b"x-api-key": b"three"}


@pytest.mark.parametrize("given", [b"a", b"0f8fad5b-d9cd-469f-a165-70867728950e", b"a.b_c:d/e+f=g@h", b"x" * 128])
def test_plain_request_id_is_taken(given: bytes) -> None:
    assert context(x_request_id=given).request_id == given.decode()


@pytest.mark.parametrize(
    "given", [b"", b"x" * 129, b"a b", b"a\tb", b'a"b', b"caf\xc3\xa9", b"a\n", b"<script>", b"a,b"]
)
def test_other_request_ids_are_replaced(given: bytes) -> None:
    made = context(x_request_id=given).request_id
    assert made.encode() != given
    assert len(made) == 32
    assert int(made, 16) >= 0


def test_made_request_ids_differ() -> None:
    assert context().request_id != context().request_id


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(b"2", 2.0), (b"0.25", 0.25), (b"30", 30.0), (b"31", 30.0), (b"1e3", 30.0), (b"1.5e-1", 0.15), (b"9e999", 30.0)],
)
def test_deadline_can_only_be_shortened(given: bytes, seconds: float) -> None:
    made = context(x_request_timeout=given)
    assert made.deadline(30.0) == made.started + seconds


def test_deadline_without_a_wish_is_the_longest() -> None:
    made = context()
    assert made.deadline(30.0) == made.started + 30.0


@pytest.mark.parametrize(
    "given", [b"0", b"0.0", b"-1", b"1e", b"0x1p4", b"inf", b"nan", b"", b" 1", b"1_000", b"\xd9\xa1"]
)
def test_deadline_must_be_positive_seconds(given: bytes) -> None:
    with pytest.raises(Invalid, match="X-Request-Timeout: expected a positive number of seconds"):
        context(x_request_timeout=given).deadline(30.0)


TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = b"00f067aa0ba902b7"


@pytest.mark.parametrize("given", [b"00-%s-%s-01", b"00-%s-%s-00", b"cc-%s-%s-01", b"cc-%s-%s-01-and-more"])
def test_trace_id_is_the_callers(given: bytes) -> None:
    assert context(traceparent=given % (TRACE, PARENT)).trace_id == TRACE.decode()


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"00-%s-%s" % (TRACE, PARENT),
        b"00-%s-%s-01-more" % (TRACE, PARENT),
        b"00-%s-%s-01." % (TRACE, PARENT),
        b"ff-%s-%s-01" % (TRACE, PARENT),
        b"00-%s-%s-01" % (TRACE.upper(), PARENT),
        b"00-%s-%s-01" % (b"0" * 32, PARENT),
        b"00-%s-%s-01" % (TRACE, b"0" * 16),
        b"00-%s-%s-1" % (TRACE, PARENT),
    ],
)
def test_what_is_no_traceparent_is_ignored(given: bytes) -> None:
    """The cases of the W3C recommendation, 3.2.2."""
    assert context(traceparent=given).trace_id is None
