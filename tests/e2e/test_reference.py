"""The whole path on real weights: what HTTP answers equals sentence-transformers and transformers."""

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from export.sources import find_folder
from tests.service.process import ServerProcess
from tests.texts import varied_texts

TOLERANCE = 1e-5
TEXTS = varied_texts()


def encode(server: ServerProcess, **body: Any) -> Any:
    status, _, answer = server.request("POST", "/encode", body)
    assert status == 200, answer[:500]
    return json.loads(answer)


def unpack(data: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(data), "<f4")


@pytest.fixture(scope="module")
def embeddings() -> NDArray[np.float32]:
    model = SentenceTransformer(str(find_folder(None).path), device="cpu")
    found: NDArray[np.float32] = model.encode(TEXTS, batch_size=8, convert_to_numpy=True)
    return found


def test_embeddings_equal_sentence_transformers(server: ServerProcess, embeddings: NDArray[np.float32]) -> None:
    answer = encode(server, inputs=TEXTS)
    np.testing.assert_allclose(np.array(answer["embeddings"]), embeddings, atol=TOLERANCE, rtol=0)
    assert len(answer["items"]) == len(TEXTS)
    assert answer["usage"]["tokens"] == sum(item["tokens"] for item in answer["items"])
    truncated = [item["truncated"] for item in answer["items"]]
    assert truncated[TEXTS.index("word " * 600)]
    assert not truncated[TEXTS.index("")]


def test_a_text_gives_the_same_bits_alone_and_in_a_batch_with_and_without_attention(server: ServerProcess) -> None:
    together = encode(server, inputs=TEXTS[:40], encoding_format="base64")["embeddings"]
    for index in range(0, 40, 3):
        alone = encode(server, inputs=TEXTS[index], encoding_format="base64")
        looked_at = encode(server, inputs=TEXTS[index], encoding_format="base64", attention={"layers": "all"})
        assert alone["embeddings"][0] == together[index] == looked_at["embeddings"][0]


def test_tokens_in_a_row_equal_their_text(server: ServerProcess) -> None:
    _, _, body = server.request("POST", "/tokenize", {"inputs": TEXTS[1]})
    ids = json.loads(body)["items"][0]["input_ids"]
    by_ids = encode(server, inputs=ids, encoding_format="base64")
    by_text = encode(server, inputs=TEXTS[1], encoding_format="base64")
    assert by_ids["embeddings"] == by_text["embeddings"]


def test_attention_of_every_layer_and_head_equals_transformers_eager(server: ServerProcess) -> None:
    theirs = AutoModel.from_pretrained(str(find_folder(None).path), attn_implementation="eager").eval()
    texts = [*[text for text in TEXTS if len(text) < 200][:30], TEXTS[-1]]
    answer = encode(server, inputs=texts, attention={"layers": "all"}, encoding_format="base64")
    for text, item in zip(texts, answer["attention"], strict=True):
        _, _, body = server.request("POST", "/tokenize", {"inputs": text})
        ids = json.loads(body)["items"][0]["input_ids"]
        with torch.inference_mode():
            expected = np.concatenate(
                [layer.numpy() for layer in theirs(torch.tensor([ids]), output_attentions=True).attentions]
            )
        weights = np.concatenate([unpack(layer["data"]).reshape(1, *layer["shape"]) for layer in item["weights"]])
        assert item["layers"] == [0, 1, 2, 3, 4, 5]
        assert item["heads"] == [list(range(12))] * 6
        assert len(item["tokens"]) == len(ids)
        np.testing.assert_allclose(weights, expected, atol=TOLERANCE, rtol=0)


def test_selected_rows_are_those_of_the_whole(server: ServerProcess) -> None:
    text = "The trophy does not fit into the suitcase because it is too large."
    whole = np.array(encode(server, inputs=text, attention={"layers": "all"})["attention"][0]["weights"])
    asked = {"layers": [-1, 2], "heads": [3, 0], "queries": "cls"}
    part = encode(server, inputs=text, attention=asked)["attention"][0]
    assert part["layers"] == [5, 2]
    assert part["heads"] == [[3, 0], [3, 0]]
    np.testing.assert_array_equal(np.array(part["weights"]), whole[[5, 2]][:, [3, 0]][:, :, :1])
