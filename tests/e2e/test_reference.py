"""HTTP answers on real weights equal sentence-transformers and `transformers`: vectors, attention, explanations."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, BertModel

from export.sources import find_folder
from tests.attention_reference import transformed
from tests.service.process import ServerProcess
from tests.texts import varied_texts
from tests.transformers_heads import scale_heads

TOLERANCE = 1e-5
MANY_TEXTS = varied_texts()
TEXTS = [
    "The trophy does not fit into the suitcase because it is too large.",
    "Tokenisation of unbelievably long, antidisestablishmentarian words!",
    "naïve café résumé: 3.14159 & 机器学习 🙂",
    "a",
    "",
]
CASES: list[dict[str, Any]] = [  # `tests/service/answers/test_attention.py` has every option, on maps that it makes
    {"layers": "all"},
    {"layers": [5, 0], "heads": [11, 3], "queries": "cls"},
    {"layers": [1, 4], "level": "word", "exclude_special": True, "renormalise": True, "reduce": "mean"},
    {"reduce": "rollout", "level": "word", "exclude_special": True, "renormalise": True},
]
MASKS: list[Any] = [[[0, 0, 0]], [[-1, -1, 0.5], [2, 7, 0], [5, 3, 0.125]], [[3, head, 0] for head in range(12)]]
PAIRS = [
    ("A man is playing a guitar.", "Someone strums a musical instrument."),
    ("naïve café résumé 机器学习 🙂", ""),
    ("The trophy does not fit into the suitcase because it is too large. " * 12, "short"),
]


@dataclass(frozen=True)
class Expected:
    """What the reference libraries say of a text."""

    ids: list[int]
    hidden: NDArray[np.float32]
    attentions: list[NDArray[np.float32]]
    special: list[bool]
    word_ids: list[int | None]


@pytest.fixture(scope="module")
def network() -> BertModel:
    found: BertModel = AutoModel.from_pretrained(str(find_folder(None).path), attn_implementation="eager").eval()
    return found


@pytest.fixture(scope="module")
def refer(network: BertModel) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(str(find_folder(None).path))

    def run(text: str) -> Expected:
        encoded = tokenizer(text, return_special_tokens_mask=True, truncation=True, max_length=256)
        with torch.inference_mode():
            output = network(torch.tensor([encoded["input_ids"]]), output_attentions=True)
        special = list(map(bool, encoded["special_tokens_mask"]))
        maps = [layer[0].numpy() for layer in output.attentions]
        return Expected(encoded["input_ids"], output.last_hidden_state[0].numpy(), maps, special, encoded.word_ids())

    return run


@pytest.fixture(scope="module")
def references(refer: Any) -> list[Expected]:
    return [refer(text) for text in TEXTS]


def encode(server: ServerProcess, **body: Any) -> Any:
    return server.post("/encode", {"inputs": TEXTS, "encoding_format": "base64", **body})


def unpack(tensor: dict[str, Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(tensor["data"]), tensor["dtype"]).reshape(tensor["shape"])


def expect(reference: Expected, options: dict[str, Any]) -> list[NDArray[Any]]:
    return transformed(reference.attentions, options, special=reference.special, word_ids=reference.word_ids)


def test_embeddings_equal_sentence_transformers(server: ServerProcess) -> None:
    model = SentenceTransformer(str(find_folder(None).path), device="cpu")
    expected = model.encode(MANY_TEXTS, batch_size=8, convert_to_numpy=True)
    answer = encode(server, inputs=MANY_TEXTS, encoding_format="float")
    np.testing.assert_allclose(np.array(answer["embeddings"]), expected, atol=TOLERANCE, rtol=0)
    assert len(answer["items"]) == len(MANY_TEXTS)
    assert answer["usage"]["tokens"] == sum(item["tokens"] for item in answer["items"])
    truncated = [item["truncated"] for item in answer["items"]]
    assert truncated[MANY_TEXTS.index("word " * 600)]
    assert not truncated[MANY_TEXTS.index("")]


def test_a_text_gives_the_same_bits_alone_in_a_batch_with_attention_and_as_tokens(server: ServerProcess) -> None:
    together = encode(server, inputs=MANY_TEXTS[:40])["embeddings"]
    for index in range(0, 40, 3):
        text = MANY_TEXTS[index]
        ids = server.post("/tokenize", {"inputs": text})["items"][0]["input_ids"]
        for inputs, more in ((text, {}), (text, {"attention": {"layers": "all"}}), (ids, {})):
            assert encode(server, inputs=inputs, **more)["embeddings"][0] == together[index]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_transformed_attention(server: ServerProcess, references: list[Expected], options: dict[str, Any]) -> None:
    for entry, reference in zip(encode(server, attention=options)["attention"], references, strict=True):
        expected = expect(reference, options)
        found = [unpack(tensor) for tensor in entry["weights"]]
        assert [maps.shape for maps in found] == [maps.shape for maps in expected]
        for maps, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(maps, wanted, atol=TOLERANCE, rtol=0)
            if maps.shape[-1]:
                np.testing.assert_allclose(maps.sum(axis=-1, dtype=np.float64), 1, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_masked_embedding_and_its_attention(
    server: ServerProcess, network: BertModel, references: list[Expected], mask: list[list[float]]
) -> None:
    answer = encode(server, head_mask=mask, attention={"layers": "all"})
    plain = encode(server, attention={"layers": "all"})
    gated = {(int(layer) % 6, int(head) % 12): gate for layer, head, gate in mask}
    for index, reference in enumerate(references):
        with torch.inference_mode(), scale_heads(network, gated):
            expected = network(torch.tensor([reference.ids]), output_attentions=True)
        pooled = expected.last_hidden_state[0].mean(dim=0)
        vector = np.frombuffer(base64.b64decode(answer["embeddings"][index]), "<f4")
        np.testing.assert_allclose(vector, pooled / pooled.norm(), atol=TOLERANCE, rtol=0)
        assert answer["embeddings"][index] != plain["embeddings"][index]
        for tensor, weights in zip(answer["attention"][index]["weights"], expected.attentions, strict=True):
            np.testing.assert_allclose(unpack(tensor), weights[0], atol=TOLERANCE, rtol=0)


def test_masks_that_close_nothing_and_those_of_others_change_no_bit(server: ServerProcess) -> None:
    plain = encode(server)["embeddings"]
    encode(server, head_mask=MASKS[0])
    others: list[dict[str, Any]] = [{}, {"head_mask": []}, {"head_mask": [[1, 1, 1]]}]
    for more in others:
        assert encode(server, **more)["embeddings"] == plain


def rollout_saliency(attentions: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    size = attentions[0].shape[-1]
    followed = np.eye(size)
    for weights in attentions:
        step = (weights.mean(axis=0) + np.eye(size)) / 2
        followed = step @ followed
    return np.asarray(followed.mean(axis=0))


@pytest.mark.parametrize("pair", PAIRS, ids=["paraphrase", "unicode and empty", "long"])
def test_the_account_of_two_texts(server: ServerProcess, refer: Any, pair: tuple[str, str]) -> None:
    answer = server.post("/explain", {"a": pair[0], "b": pair[1]})
    a, b = (refer(text) for text in pair)
    hidden_a, hidden_b = a.hidden.astype(np.float64), b.hidden.astype(np.float64)
    mean_a, mean_b = hidden_a.mean(axis=0), hidden_b.mean(axis=0)
    lengths = np.linalg.norm(mean_a) * np.linalg.norm(mean_b)
    cells = np.array(answer["contributions"])
    np.testing.assert_allclose(cells, hidden_a @ hidden_b.T / (cells.size * lengths), atol=TOLERANCE, rtol=0)
    assert answer["similarity"] == pytest.approx(mean_a @ mean_b / lengths, abs=TOLERANCE)
    assert cells.sum() == pytest.approx(answer["similarity"], abs=TOLERANCE)
    for side, attentions in (("a", a.attentions), ("b", b.attentions)):
        np.testing.assert_allclose(answer[side]["saliency"], rollout_saliency(attentions), atol=TOLERANCE, rtol=0)
