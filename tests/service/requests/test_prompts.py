"""Prompts before texts: by name, by text, by default; said in the answer, and the same as writing them out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.manifest import Defaults
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import write_fake_artifact

PROMPTS = {"query": "the cat ", "passage": "a dog ", "plain": ""}
NAMED = {"prompt_name": "query", "prompt": "the cat "}


@pytest.fixture
def prompted(serve: Serve, tmp_path: Path) -> Callable[..., Served]:
    def start(default: str | None = None) -> Served:
        defaults = Defaults(pooling="mean", normalize=True, prompts=PROMPTS, default_prompt_name=default)
        served: Served = serve("--model", str(write_fake_artifact(tmp_path / "prompts", defaults)))
        return served

    return start


def used(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("prompt_name", "prompt") if name in answer}


@pytest.mark.parametrize(
    ("asked", "default", "before", "said"),
    [
        ({}, None, "", {}),
        ({"prompt_name": "query"}, None, "the cat ", NAMED),
        ({"prompt": "a mat "}, None, "a mat ", {"prompt": "a mat "}),
        ({}, "query", "the cat ", NAMED),
        ({"prompt_name": "passage"}, "query", "a dog ", {"prompt_name": "passage", "prompt": "a dog "}),
        ({"prompt": ""}, "query", "", {}),
        ({"prompt_name": "plain"}, "query", "", {"prompt_name": "plain", "prompt": ""}),
    ],
)
def test_a_prompt_is_the_text_before_each_text(
    prompted: Callable[..., Served], asked: dict[str, Any], default: str | None, before: str, said: dict[str, Any]
) -> None:
    served = prompted(default)
    texts = ["sat on", "run"]
    answer = served.encode({"inputs": texts, **asked}).json()
    written_out = served.encode({"inputs": [before + text for text in texts], "prompt": ""}).json()
    assert answer["embeddings"] == written_out["embeddings"]
    assert answer["usage"] == written_out["usage"]
    assert used(answer) == said
    tokens = served.client.post("/tokenize", json={"inputs": texts, **asked}).json()
    assert tokens["usage"] == answer["usage"]
    assert used(tokens) == said


@pytest.mark.parametrize("path", ["/encode", "/tokenize", "/embed", "/v1/embeddings"])
def test_unknown_name_is_refused_with_those_that_are_known(prompted: Callable[..., Served], path: str) -> None:
    field = "input" if path == "/v1/embeddings" else "inputs"
    response = prompted().client.post(path, json={field: "cat", "prompt_name": "Query"})
    assert response.status_code == 422
    error = response.json()["error"]
    message = error if path == "/embed" else error["message"]
    assert message == "prompt_name: expected one of passage, plain, query"


def test_model_without_prompts_says_so(served: Served) -> None:
    response = served.encode({"inputs": "cat", "prompt_name": "query"})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == (
        "prompt_name: this model has no named prompts; give its text as prompt"
    )


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"inputs": "cat", "prompt": "a ", "prompt_name": "query"}, "prompt", "give either prompt or prompt_name"),
        ({"inputs": [2, 5, 3], "prompt_name": "query"}, "prompt_name", "token ids are used as given"),
        ({"inputs": [2, 5, 3], "prompt": "a "}, "prompt", "token ids are used as given"),
        ({"inputs": "cat", "prompt": "a" * 1025}, "prompt", "String should have at most 1024 characters"),
    ],
)
def test_what_cannot_be_done_is_refused(
    prompted: Callable[..., Served], body: dict[str, Any], param: str, message: str
) -> None:
    response = prompted("query").encode(body)
    assert response.status_code == 422
    assert response.json()["error"]["message"].startswith(f"{param}: {message}")
    assert response.json()["error"]["param"] == param


def test_default_prompt_is_not_for_token_ids(prompted: Callable[..., Served]) -> None:
    answer = prompted("query").encode({"inputs": [2, 5, 3]}).json()
    assert used(answer) == {}
    assert answer["usage"] == {"tokens": 3}


def test_offsets_count_from_the_start_of_the_prompt(prompted: Callable[..., Served]) -> None:
    body = {"inputs": "sat", "prompt_name": "query", "attention": {"layers": [0], "level": "word"}}
    (attention,) = prompted().encode(body).json()["attention"]
    assert attention["words"][1:-1] == ["the", "cat", "sat"]
    assert attention["offsets"][1:-1] == [[0, 3], [4, 7], [8, 11]]


def test_prompt_counts_in_what_is_cut(prompted: Callable[..., Served]) -> None:
    text = " ".join(["dog"] * 13)
    served = prompted()
    assert served.encode({"inputs": text, "truncate": False}).status_code == 200
    refused = served.encode({"inputs": text, "truncate": False, "prompt_name": "query"})
    assert refused.json()["error"]["message"].startswith("inputs[0]: 17 tokens, the model takes 16")
    (item,) = served.encode({"inputs": text, "prompt_name": "query"}).json()["items"]
    assert item == {"tokens": 16, "truncated": True, "tokens_cut": 1}
