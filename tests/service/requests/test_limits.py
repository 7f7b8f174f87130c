"""Each limit of a request: what is exactly at it is taken, one more is refused before anything runs."""

from typing import Any

import pytest

from service.settings import SettingsError
from tests.service.conftest import Serve
from tests.service.fake_engine import CLS, HIDDEN_SIZE, MAX_LENGTH, NUM_HEADS, SEP, VOCABULARY

LAST_ID = len(VOCABULARY) - 1
LAST_LAYER, LAST_HEAD = len(NUM_HEADS) - 1, NUM_HEADS[0] - 1
NOTHING: tuple[str, ...] = ()

Flags = tuple[str, ...]
Body = dict[str, Any]


@pytest.mark.parametrize(
    ("path", "flags", "at", "beyond", "status"),
    [
        ("/encode", NOTHING, {"inputs": [0, LAST_ID]}, {"inputs": [0, LAST_ID + 1]}, 422),
        ("/encode", NOTHING, {"inputs": [[LAST_ID], [0]]}, {"inputs": [[LAST_ID], [-1]]}, 422),
        ("/v1/embeddings", NOTHING, {"input": [CLS, LAST_ID, SEP]}, {"input": [CLS, LAST_ID + 1, SEP]}, 422),
        ("/encode", NOTHING, {"inputs": [5] * MAX_LENGTH}, {"inputs": [5] * (MAX_LENGTH + 1)}, 413),
        ("/encode", ("--max-texts", "3"), {"inputs": ["cat"] * 3}, {"inputs": ["cat"] * 4}, 413),
        ("/tokenize", ("--max-texts", "3"), {"inputs": ["cat"] * 3}, {"inputs": ["cat"] * 4}, 413),
        ("/encode", ("--max-text-characters", "7"), {"inputs": "the cat"}, {"inputs": "the cats"}, 413),
        ("/explain", ("--max-text-characters", "7"), {"a": "x", "b": "the cat"}, {"a": "x", "b": "the cats"}, 413),
        ("/encode", ("--max-request-tokens", "6"), {"inputs": ["cat", "dog"]}, {"inputs": ["cat", "the dog"]}, 413),
        ("/tokenize", ("--max-request-tokens", "6"), {"inputs": ["cat", "dog"]}, {"inputs": ["cat", "a dog"]}, 413),
        (
            "/encode",
            NOTHING,
            {"inputs": "cat " * (MAX_LENGTH - 2), "truncate": False},
            {"inputs": "cat " * (MAX_LENGTH - 1), "truncate": False},
            413,
        ),
        (
            "/encode",
            NOTHING,
            {"inputs": "cat", "dimensions": HIDDEN_SIZE},
            {"inputs": "cat", "dimensions": HIDDEN_SIZE + 1},
            422,
        ),
        ("/encode", NOTHING, {"inputs": "cat", "dimensions": 1}, {"inputs": "cat", "dimensions": 0}, 422),
        (
            "/encode",
            ("--max-embedding-bytes", str(2 * 4 * HIDDEN_SIZE)),
            {"inputs": ["cat"] * 2},
            {"inputs": ["cat"] * 3},
            413,
        ),
        (
            "/encode",
            ("--max-embedding-bytes", str(3 * 4 * HIDDEN_SIZE)),
            {"inputs": "cat", "output": "tokens"},
            {"inputs": "a cat", "output": "tokens"},
            413,
        ),
        (
            "/encode",
            NOTHING,
            {"inputs": "cat", "attention": {"layers": [LAST_LAYER, -1 - LAST_LAYER]}},
            {"inputs": "cat", "attention": {"layers": [LAST_LAYER + 1]}},
            422,
        ),
        (
            "/encode",
            NOTHING,
            {"inputs": "cat", "attention": {"layers": [-1 - LAST_LAYER]}},
            {"inputs": "cat", "attention": {"layers": [-2 - LAST_LAYER]}},
            422,
        ),
        (
            "/encode",
            NOTHING,
            {"inputs": "cat", "attention": {"layers": [0], "heads": [LAST_HEAD]}},
            {"inputs": "cat", "attention": {"layers": [0], "heads": [LAST_HEAD + 1]}},
            422,
        ),
        (
            "/encode",
            NOTHING,
            {"inputs": "cat", "head_mask": [[0, LAST_HEAD, 0.0]]},
            {"inputs": "cat", "head_mask": [[0, LAST_HEAD + 1, 0.0]]},
            422,
        ),
        (
            "/explain",
            ("--max-attention-bytes", str(4 * 3 * 4)),
            {"a": "cat", "b": "a dog"},
            {"a": "a cat", "b": "a dog"},
            413,
        ),
    ],
)
def test_at_a_limit_and_beyond(serve: Serve, path: str, flags: Flags, at: Body, beyond: Body, status: int) -> None:
    served = serve(*flags)
    taken = served.client.post(path, json=at)
    assert taken.status_code == 200, taken.text
    runs = len(served.backend.batches)
    refused = served.client.post(path, json=beyond)
    assert refused.status_code == status, refused.text
    assert len(served.backend.batches) == runs


def test_explaining_computes_as_much_attention_as_is_allowed(serve: Serve) -> None:
    """Both texts of three tokens: the weights of every head of every layer, 4 bytes each."""
    body, computed = {"a": "cat", "b": "dog"}, 4 * sum(NUM_HEADS) * 2 * 9
    refused = serve("--max-attention-work-bytes", str(computed - 1)).client.post("/explain", json=body)
    assert f"{computed} bytes of attention weights would be computed" in refused.json()["error"]["message"]
    taken = serve("--max-attention-work-bytes", str(computed)).client.post("/explain", json=body)
    assert taken.status_code == 200


def test_a_request_that_fills_the_queue_is_taken(serve: Serve) -> None:
    limits = ("--max-queue-tokens", "6", "--max-request-tokens", "6")
    assert serve(*limits).encode({"inputs": ["cat", "dog"]}).status_code == 200


@pytest.mark.parametrize(
    "flags", [("--max-held-body-bytes", "9", "--max-body-bytes"), ("--max-queue-tokens", "9", "--max-request-tokens")]
)
def test_what_holds_one_request_may_be_just_as_large(serve: Serve, flags: Flags) -> None:
    serve(*flags, "9")
    with pytest.raises(SettingsError, match="is 9: at least"):
        serve(*flags, "10")
