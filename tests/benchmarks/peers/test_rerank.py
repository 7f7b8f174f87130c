import json

import pytest

from benchmarks.lib.payloads import WrongAnswer
from benchmarks.peers.rerank import Question, read_scores, require_same_order


@pytest.mark.parametrize("field", ["texts", "documents"])
def test_a_request_holds_one_query_and_counts_its_documents(field: str) -> None:
    request = Question("why", ["a", "b c"], tokens=11).request(field)
    head, _, body = request.data.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /rerank HTTP/1.1\r\n")
    assert json.loads(body) == {"query": "why", field: ["a", "b c"]}
    assert (request.texts, request.tokens) == (2, 11)


def test_scores_of_both_kinds_of_answer_are_in_the_documents_order() -> None:
    ours = [{"index": 1, "score": 0.9}, {"index": 2, "score": 0.5}, {"index": 0, "score": 0.1}]
    theirs = {"results": [{"index": item["index"], "relevance_score": item["score"]} for item in ours]}
    assert read_scores(json.dumps(ours).encode()) == [0.1, 0.9, 0.5]
    assert read_scores(json.dumps(theirs).encode()) == [0.1, 0.9, 0.5]


def test_scores_may_differ_in_scale_and_not_in_order() -> None:
    require_same_order([1.0, 20.0, 3.0, 4.0], [0.1, 0.9, 0.2, 0.3])
    with pytest.raises(WrongAnswer, match=r"rank correlation of -1\.000, expected 0\.9"):
        require_same_order([3.0, 2.0, 1.0], [1.0, 2.0, 3.0])
    with pytest.raises(WrongAnswer, match="2 scores, expected 3"):
        require_same_order([1.0, 2.0], [1.0, 2.0, 3.0])
