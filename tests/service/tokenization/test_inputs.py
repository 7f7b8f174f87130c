"""Inputs that nothing can be made of: texts of no token, where the tokenizer adds none of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import Serve, Served
from tests.service.fake_engine import write_fake_artifact

NO_TOKENS = "no tokens, and this model's tokenizer adds none; give a text with at least one"


@pytest.fixture
def bare(serve: Serve, tmp_path: Path) -> Served:
    made: Served = serve("--model", str(write_fake_artifact(tmp_path / "bare", special_tokens=False)))
    return made


EMPTY: list[tuple[str, Any, str, str]] = [
    ("/encode", {"inputs": ""}, "inputs.0", "inputs[0]"),
    ("/encode", {"inputs": ["the cat", " \n"], "attention": {"level": "word"}}, "inputs.1", "inputs[1]"),
    ("/encode", {"inputs": ["the cat", "\u200b"], "output": "tokens"}, "inputs.1", "inputs[1]"),
    ("/explain", {"a": "the cat", "b": ""}, "b", "b"),
    ("/similarity", {"source": "", "targets": ["a dog"]}, "source", "source"),
    ("/similarity", {"source": "a dog", "targets": ["a mat", ""]}, "targets.1", "targets[1]"),
    ("/v1/embeddings", {"input": ["", "the cat"]}, "input.0", "input[0]"),
]


def test_a_text_of_no_token_is_refused_by_its_name(bare: Served) -> None:
    for path, body, param, name in EMPTY:
        response = bare.client.post(path, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["message"]) == (422, param, f"{name}: {NO_TOKENS}"), path
    assert not bare.backend.batches


def test_a_prompt_is_text_enough_and_tokenize_shows_that_there_is_none(bare: Served) -> None:
    assert bare.encode({"inputs": "", "prompt": "the "}).json()["usage"] == {"tokens": 1}
    assert bare.client.post("/tokenize", json={"inputs": ""}).json()["items"][0]["tokens"] == []
