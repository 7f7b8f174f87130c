"""What of an answer's arrays is shared with what is sent, and what is copied."""

from typing import Any

import numpy as np
from safetensors.numpy import load

from service.answers.packing import pack_safetensors
from service.inference.backend import Float32Array


def answer_with(layers: list[Float32Array]) -> dict[str, Any]:
    entry = {"layers": list(range(len(layers))), "weights": layers}
    return {"model": "m", "embeddings": np.ones((1, 4), np.float32), "attention": [entry]}


def test_a_text_alone_in_its_batch_is_not_copied() -> None:
    layers = [np.random.default_rng(layer).random((1, 2, 100, 100), np.float32)[0] for layer in range(3)]
    pieces = pack_safetensors(answer_with(layers), is_half=False)
    np.testing.assert_array_equal(load(b"".join(pieces))["attention.0"], np.stack(layers))
    assert [np.shares_memory(np.asarray(piece), layer) for piece, layer in zip(pieces[-3:], layers, strict=True)] == (
        [True] * 3
    )


def test_an_answer_holds_nothing_of_its_batch_mates() -> None:
    batch = np.random.default_rng(0).random((4, 2, 100, 100), np.float32)
    pieces = pack_safetensors(answer_with([batch[2]]), is_half=False)
    np.testing.assert_array_equal(load(b"".join(pieces))["attention.0"], batch[2][np.newaxis])
    assert not any(np.shares_memory(np.frombuffer(piece, np.uint8), batch) for piece in pieces)


def test_token_vectors_hold_nothing_of_batch_mates() -> None:
    batch = np.random.default_rng(0).random((4, 100, 200), np.float32)
    answer = {"embeddings": [batch[0], batch[3, :50]]}
    pieces = pack_safetensors(answer, is_half=False)
    read = load(b"".join(pieces))
    np.testing.assert_array_equal(read["embeddings.0"], batch[0])
    np.testing.assert_array_equal(read["embeddings.1"], batch[3, :50])
    assert not any(np.shares_memory(np.frombuffer(piece, np.uint8), batch) for piece in pieces)
