import json
import socket
from pathlib import Path
from typing import Any

import pytest

from service.byte_budget import ByteBudget
from service.errors import HeldTooMuch
from tests.service.conftest import Serve
from tests.service.fake_engine import MODEL_NAME
from tests.service.http.test_protocol import metric, read_answer, request_bytes
from tests.service.process import fake_server, wait_until


def test_shares_are_taken_up_to_the_limit_and_given_back() -> None:
    budget = ByteBudget(10, "answers")
    with budget.share() as first, budget.share() as second:
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
    share = budget.share()
    share.take(11)
    with pytest.raises(HeldTooMuch):
        budget.share().take(1)
    share.give_back()
    budget.share().take(12)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/encode", {"inputs": "cat"}),
        ("/explain", {"a": "cat", "b": "dog"}),
        ("/similarity", {"source": "cat", "targets": ["dog"]}),
        ("/tokenize", {"inputs": "cat"}),
        ("/v1/embeddings", {"input": "cat"}),
        ("/embed_all", {"inputs": "cat"}),
        (
            f"/v2/models/{MODEL_NAME}/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["cat"]}]},
        ),
    ],
)
def test_answers_of_every_route_are_counted_and_given_back(serve: Serve, path: str, body: Any) -> None:
    served = serve("--max-held-answer-bytes", "1")
    assert served.client.post(path, json=body).status_code == 200
    assert served.services.answer_budget.held == 0
    with served.services.answer_budget.share() as other:
        other.take(1)
        response = served.client.post(path, json=body)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert served.services.answer_budget.held == 0


def test_an_answer_is_held_until_it_is_read(fake_artifact: Path) -> None:
    large = {"inputs": ["cat " * 14] * 2048, "output": "tokens", "attention": {"layers": "all"}}  # 34 MB
    with fake_server(fake_artifact, "--max-held-answer-bytes", "1").wait_until_ready() as server:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(server.address)
            for asked in (1, 2):
                connection.sendall(request_bytes(large))
                wait_until(lambda asked=asked: metric(server, "polyhead_texts_total") >= 2048 * asked)  # type: ignore[misc]
                status, headers, body = server.request("POST", "/encode", {"inputs": "cat"})
                assert (status, headers["retry-after"]) == (429, "1")
                assert json.loads(body)["error"]["message"] == "too many answers are held; try again later"
                if asked == 1:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                    assert read_answer(connection)[0] == 200
        wait_until(lambda: server.request("POST", "/encode", {"inputs": "cat"})[0] == 200)
