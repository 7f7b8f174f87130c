"""Bulk encoding without Ray: the service's vectors to the bit, texts in their order, batches under their limit."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from deploy.bulk.encoder import TextEncoder
from service.backend import Batch, BatchOutput
from service.errors import ServiceError
from service.prompts import Prompt
from service.tokenizer import Tokenizer
from tests.service.fake_engine import make_tokenizer
from tests.service.process import ServerProcess
from tests.texts import varied_texts

WORDS = ("a", "cat", "sat", "on", "the", "mat")


class LengthBackend:
    """Answers each text with its length, and keeps the batches' shapes."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, batch: Batch) -> BatchOutput:
        self.shapes.append(batch.input_ids.shape)
        return BatchOutput(batch.lengths[:, np.newaxis].astype(np.float32), None, {})

    def close(self) -> None: ...


def encoder(backend: LengthBackend, *, max_batch_tokens: int = 64, prompt: Prompt | None = None) -> TextEncoder:
    tokenizer = Tokenizer(make_tokenizer(), 40, threads=1)
    return TextEncoder(
        backend, tokenizer, dimensions=1, normalize=False, prompt=prompt, max_batch_tokens=max_batch_tokens
    )


def lengths(texts: list[str]) -> list[int]:
    return [len(item.input_ids) for item in Tokenizer(make_tokenizer(), 40, threads=1).encode_now(texts)]


def test_vectors_come_in_the_order_of_the_texts() -> None:
    texts = [" ".join(WORDS[: index * 5 % 7]) for index in range(60)]
    assert len(set(lengths(texts))) > 3
    assert encoder(LengthBackend()).encode(texts)[:, 0].tolist() == lengths(texts)


def test_no_batch_is_over_its_limit_but_of_one_long_text() -> None:
    backend = LengthBackend()
    texts = ["cat " * (index % 50) for index in range(200)]
    encoder(backend, max_batch_tokens=32).encode(texts)
    assert sum(rows for rows, _ in backend.shapes) == 200
    assert all(rows == 1 or rows * longest <= 32 for rows, longest in backend.shapes)
    assert len(backend.shapes) < 200


def test_no_texts_are_no_vectors() -> None:
    assert encoder(LengthBackend()).encode([]).shape == (0, 1)


def test_prompt_stands_before_every_text() -> None:
    texts = ["cat", "cat sat"]
    prompted = encoder(LengthBackend(), prompt=Prompt("the mat ")).encode(texts)
    assert prompted[:, 0].tolist() == lengths([f"the mat {text}" for text in texts])


@pytest.mark.parametrize(
    ("given", "message"), [({"dimensions": 385}, "this model has 384"), ({"dimensions": 0}, "384")]
)
def test_dimensions_that_the_model_has_not(default_artifact: Path, given: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextEncoder.load(default_artifact, **given)  # type: ignore[arg-type]  # a table of arguments


def test_prompt_that_the_model_has_not(default_artifact: Path) -> None:
    with pytest.raises(ServiceError, match="no named prompts"):
        TextEncoder.load(default_artifact, prompt_name="query")


def test_gives_the_services_vectors(default_artifact: Path) -> None:
    texts = varied_texts(60)
    vectors = TextEncoder.load(default_artifact, dimensions=200).encode(texts)
    body = {"inputs": texts, "dimensions": 200, "encoding_format": "base64"}
    with ServerProcess("service", "--model", str(default_artifact)).wait_until_ready() as server:
        status, _, answer = server.request("POST", "/encode", body)
        assert server.stop() == 0
    assert status == 200
    served = [np.frombuffer(base64.b64decode(vector), dtype="<f4") for vector in json.loads(answer)["embeddings"]]
    np.testing.assert_array_equal(vectors, np.stack(served))
