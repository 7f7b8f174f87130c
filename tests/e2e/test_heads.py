"""Head masks and the norm-weighted view over HTTP, against `transformers` with the same heads changed by hooks."""

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer, BertModel

from export.sources import find_folder
from tests.service.process import ServerProcess
from tests.transformers_heads import moved_norms, scale_heads

TOLERANCE = 1e-5
TEXTS = [
    "The trophy does not fit into the suitcase because it is too large.",
    "naïve café résumé: 3.14159 & 机器学习 🙂",
    "a",
    "",
]
MASKS: list[list[list[float]]] = [
    [[0, 0, 0]],
    [[-1, -1, 0.5], [2, 7, 0], [5, 3, 0.125]],
    [[3, head, 0] for head in range(12)],
]


@pytest.fixture(scope="module")
def network() -> BertModel:
    found: BertModel = AutoModel.from_pretrained(str(find_folder(None).path), attn_implementation="eager").eval()
    return found


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(str(find_folder(None).path))
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def encode(server: ServerProcess, **body: Any) -> Any:
    status, _, answer = server.request("POST", "/encode", {"inputs": TEXTS, "encoding_format": "base64", **body})
    assert status == 200, answer[:500]
    return json.loads(answer)


def unpack(tensor: dict[str, Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(tensor["data"]), tensor["dtype"]).reshape(tensor["shape"])


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_masked_embedding_and_its_attention(
    server: ServerProcess, network: BertModel, ids: list[list[int]], mask: list[list[float]]
) -> None:
    answer = encode(server, head_mask=mask, attention={"layers": "all"})
    plain = encode(server, attention={"layers": "all"})
    gated = {(int(layer) % 6, int(head) % 12): gate for layer, head, gate in mask}
    for index, text_ids in enumerate(ids):
        with torch.inference_mode(), scale_heads(network, gated):
            expected = network(torch.tensor([text_ids]), output_attentions=True)
        pooled = expected.last_hidden_state[0].mean(dim=0)
        vector = np.frombuffer(base64.b64decode(answer["embeddings"][index]), "<f4")
        np.testing.assert_allclose(vector, pooled / pooled.norm(), atol=TOLERANCE, rtol=0)
        assert answer["embeddings"][index] != plain["embeddings"][index]
        for tensor, weights in zip(answer["attention"][index]["weights"], expected.attentions, strict=True):
            np.testing.assert_allclose(unpack(tensor), weights[0], atol=TOLERANCE, rtol=0)


def test_masks_of_others_change_no_bit(server: ServerProcess) -> None:
    plain = encode(server)["embeddings"]
    assert encode(server, head_mask=[])["embeddings"] == plain
    assert encode(server, head_mask=[[1, 1, 1]])["embeddings"] == plain
    encode(server, head_mask=MASKS[0])
    assert encode(server)["embeddings"] == plain


def test_norm_weighted_attention(server: ServerProcess, network: BertModel, ids: list[list[int]]) -> None:
    weights = encode(server, attention={"layers": "all"})
    answer = encode(server, attention={"layers": "all", "form": "norms"})
    assert answer["embeddings"] == weights["embeddings"]
    for index, text_ids in enumerate(ids):
        with torch.inference_mode():
            attentions = network(torch.tensor([text_ids]), output_attentions=True).attentions
        entry = answer["attention"][index]
        assert entry["form"] == "norms"
        for tensor, layer, norms in zip(entry["weights"], attentions, moved_norms(network, text_ids), strict=True):
            expected = layer[0].double().numpy() * norms.numpy()[:, np.newaxis]
            # float32 on both sides: relative to the longest vector that is moved at all
            np.testing.assert_allclose(unpack(tensor), expected, atol=TOLERANCE * float(norms.max()), rtol=0)
