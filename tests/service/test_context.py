import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from service.context import ByteBudget, RequestContext, Share
from service.errors import HeldTooMuch, Invalid
from service.http.response import respond
from service.routes import adapter
from service.routes.compatible import inference_protocol
from tests.service.conftest import Serve, Served, bodies
from tests.service.fake_engine import MODEL_NAME
from tests.service.http.test_protocol import large_request, metric, read_answer
from tests.service.process import fake_server, wait_until


def context(**headers: bytes) -> RequestContext:
    return RequestContext("/encode", "POST", [(key.replace("_", "-").encode(), text) for key, text in headers.items()])


def test_of_several_lines_the_last_counts_unless_they_are_one_list() -> None:
    lines = [(b"accept", b"a/b"), (b"host", b"one"), (b"accept", b"c/d"), (b"host", b"two"), (b"x-api-key", b"three")]
    made = RequestContext("/encode", "POST", lines)
    assert made.headers == {b"accept": b"a/b, c/d", b"host": b"two", b"x-api-key": b"three"}


def test_a_plain_request_id_is_taken_and_any_other_is_replaced() -> None:
    for given in (b"a", b"0f8fad5b-d9cd-469f-a165-70867728950e", b"a.b_c:d/e+f=g@h", b"x" * 128):
        assert context(x_request_id=given).request_id == given.decode()
    for given in (b"", b"x" * 129, b"a b", b"a\tb", b'a"b', b"caf\xc3\xa9", b"a\n", b"<script>", b"a,b"):
        assert re.fullmatch("[0-9a-f]{32}", context(x_request_id=given).request_id), given


SECONDS = {b"2": 2.0, b"0.25": 0.25, b"30": 30.0, b"31": 30.0, b"1e3": 30.0, b"1.5e-1": 0.15, b"9e999": 30.0}
NO_SECONDS = (b"0", b"0.0", b"-1", b"1e", b"0x1p4", b"inf", b"nan", b"", b" 1", b"1_000", b"\xd9\xa1")


@pytest.mark.parametrize(("given", "seconds"), [*SECONDS.items(), *((one, None) for one in NO_SECONDS)])
def test_a_deadline_is_positive_seconds_and_can_only_be_shortened(given: bytes, seconds: float | None) -> None:
    made = context(x_request_timeout=given)
    if seconds is not None:
        assert made.deadline(30.0) == made.started + seconds
    else:
        with pytest.raises(Invalid, match="X-Request-Timeout: expected a positive number of seconds"):
            made.deadline(30.0)


TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = b"00f067aa0ba902b7"


def test_trace_id_is_the_callers_and_what_is_no_traceparent_is_ignored() -> None:
    """The cases of the W3C recommendation, 3.2.2."""
    for form in (b"00-%s-%s-01", b"00-%s-%s-00", b"cc-%s-%s-01", b"cc-%s-%s-01-and-more"):
        assert context(traceparent=form % (TRACE, PARENT)).trace_id == TRACE.decode(), form
    for form in (b"00-%s-%s", b"00-%s-%s-01-more", b"00-%s-%s-01.", b"ff-%s-%s-01", b"00-%s-%s-1"):
        assert context(traceparent=form % (TRACE, PARENT)).trace_id is None, form
    for trace, parent in ((TRACE.upper(), PARENT), (b"0" * 32, PARENT), (TRACE, b"0" * 16)):
        assert context(traceparent=b"00-%s-%s-01" % (trace, parent)).trace_id is None


def test_shares_are_taken_up_to_the_limit_and_given_back() -> None:
    budget = ByteBudget(10, "answers")
    with Share(budget) as first, Share(budget) as second:
        first.take(4)
        second.take(6)
        with pytest.raises(HeldTooMuch, match="too many answers are held") as refused:
            second.take(1)
        assert refused.value.retry_after == 1
        assert (first.held, second.held, budget.held) == (4, 6, 10)
        first.give_back()
        first.give_back()
        assert budget.held == 6
        second.take(4)
    assert budget.held == 0


def test_what_is_alone_is_taken_whatever_its_size() -> None:
    budget = ByteBudget(10, "answers")
    with Share(budget) as share:
        share.take(11)
        with pytest.raises(HeldTooMuch):
            Share(budget).take(1)
    Share(budget).take(12)


TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["cat"]}


def test_answers_of_every_route_are_counted_and_given_back(serve: Serve) -> None:
    served = serve("--max-held-answer-bytes", "1")
    answers = served.services.model.answers
    for path, body in {**bodies("cat"), f"/v2/models/{MODEL_NAME}/infer": {"inputs": [TENSOR]}}.items():
        assert (served.client.post(path, json=body).status_code, answers.held) == (200, 0), path
        with Share(answers) as other:
            other.take(1)
            response = served.client.post(path, json=body)
            assert (response.status_code, response.headers["retry-after"]) == (429, "1"), path
        assert answers.held == 0, path


def test_what_an_answer_repeats_of_its_request_is_held_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, held = served.services.model.answers, list[int]()

    def note(*parts: Any) -> Response:
        held.append(answers.held)
        return respond(*parts)

    for module in (adapter, inference_protocol):
        monkeypatch.setattr(module, "respond", note)
    texts = ["cat " * 5000] * 3
    for path, body in {
        "/rerank": {"query": "cat", "texts": texts, "return_text": True},
        "/v1/rerank": {"query": "cat", "documents": texts},
        "/v2/embed": {"texts": texts},
        f"/v2/models/{MODEL_NAME}/infer": {"id": texts[0] * 4, "inputs": [TENSOR]},
    }.items():
        answer = served.client.post(path, json=body)
        assert answer.status_code == 200, path
        assert held[-1] == len(answer.content) > 60_000, path
        assert answers.held == 0


TEXTS = 800  # whose answer is more than the kernel keeps of a connection


def test_an_answer_is_held_until_it_is_read(fake_artifact: Path) -> None:
    with (
        fake_server(fake_artifact, "--max-held-answer-bytes", "1").wait_until_ready() as server,
        server.connect(room=4096) as connection,
    ):
        for asked in (1, 2):
            connection.sendall(large_request(TEXTS))
            wait_until(lambda asked=asked: metric(server, "polyhead_texts_total") >= TEXTS * asked)  # type: ignore[misc]
            status, headers, body = server.request("POST", "/encode", {"inputs": "cat"})
            assert (status, headers["retry-after"]) == (429, "1")
            assert json.loads(body)["error"]["message"] == "too many answers are held; try again later"
            if asked == 1:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                assert read_answer(connection)[0] == 200
        # Who reads nothing is cut off for others, long before its own time is up (20 s, and 130 s for its size).
        wait_until(lambda: server.request("POST", "/encode", {"inputs": "cat"})[0] == 200, 15)
        server.wait_for_line("has read nothing for longest is cut off")
