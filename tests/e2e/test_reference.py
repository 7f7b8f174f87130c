"""HTTP answers on real weights equal sentence-transformers and `transformers`: vectors, attention, explanations."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, BertModel

from export.sources import find_folder
from tests.attention_reference import transformed
from tests.service.process import ServerProcess
from tests.texts import varied_texts
from tests.transformers_heads import moved_norms, scale_heads

TOLERANCE = 1e-5
MANY_TEXTS = varied_texts()
TEXTS = [
    "The trophy does not fit into the suitcase because it is too large.",
    "Tokenisation of unbelievably long, antidisestablishmentarian words!",
    "naïve café résumé: 3.14159 & 机器学习 🙂",
    "a",
    "",
]
CASES: list[dict[str, Any]] = [
    {"layers": "all"},
    {"layers": [5, 0], "heads": [11, 3], "queries": "cls"},
    {"layers": "all", "reduce": "mean"},
    {"layers": "all", "reduce": "max", "heads": [0, 5, 7]},
    {"reduce": "rollout"},
    {"reduce": "rollout", "queries": "cls", "heads": [1, 2]},
    {"layers": "all", "exclude_special": True},
    {"layers": "all", "exclude_special": True, "renormalise": True},
    {"layers": "all", "level": "word"},
    {"layers": [2], "level": "word", "reduce": "mean", "queries": "cls"},
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
    sums_to_one = options.get("reduce") != "max" and ("renormalise" in options or "exclude_special" not in options)
    for entry, reference in zip(encode(server, attention=options)["attention"], references, strict=True):
        expected = expect(reference, options)
        found = [unpack(tensor) for tensor in entry["weights"]]
        assert [maps.shape for maps in found] == [maps.shape for maps in expected]
        for maps, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(maps, wanted, atol=TOLERANCE, rtol=0)
            if sums_to_one and maps.shape[-1]:
                np.testing.assert_allclose(maps.sum(axis=-1, dtype=np.float64), 1, atol=TOLERANCE, rtol=0)


def test_top_k(server: ServerProcess, references: list[Expected]) -> None:
    options = {"layers": "all", "level": "word", "top_k": 3}
    for entry, reference in zip(encode(server, attention=options)["attention"], references, strict=True):
        for layer, wanted in enumerate(expect(reference, options)):
            weights, indices, left_out = (unpack(entry[name][layer]) for name in ("weights", "indices", "left_out"))
            largest = -np.sort(-wanted, axis=-1)[..., :3]
            np.testing.assert_allclose(weights, largest, atol=TOLERANCE, rtol=0)
            # Words with weights that differ by rounding may change places; each stands at its own weight.
            np.testing.assert_allclose(np.take_along_axis(wanted, indices, -1), weights, atol=TOLERANCE, rtol=0)
            np.testing.assert_allclose(left_out, 1 - largest.sum(axis=-1), atol=TOLERANCE, rtol=0)


def test_statistics(server: ServerProcess, references: list[Expected]) -> None:
    answer = encode(server, attention={"layers": "all", "form": "stats"})
    for entry, reference in zip(answer["attention"], references, strict=True):
        for layer, weights in enumerate(reference.attentions):
            maps, special = weights.astype(np.float64), np.array(reference.special)
            positions = np.arange(len(special))
            expected = {
                "entropy": -(maps * np.log(np.maximum(maps, 1e-30))).sum(axis=-1).mean(axis=-1),
                "special_mass": maps[..., special].sum(axis=-1).mean(axis=-1),
                "offset_previous": maps.diagonal(-1, axis1=1, axis2=2).sum(axis=-1) / len(special),
                "signed_distance": (maps * (positions[:, np.newaxis] - positions)).sum(axis=(1, 2)) / len(special),
            }
            for name, values in expected.items():
                found = entry["statistics"][name][layer]
                # Distances are weights times tens of tokens, entropies times logarithms.
                np.testing.assert_allclose(found, values, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)


def test_no_question_about_attention_changes_a_bit_of_the_embedding(server: ServerProcess) -> None:
    plain = encode(server)["embeddings"]
    for options in (*CASES, {"form": "stats", "layers": "all"}, {"top_k": 2}):
        assert encode(server, attention=options)["embeddings"] == plain


@pytest.mark.parametrize(("encoding_format", "dtype"), [("float", np.float32), ("float16", np.float16)])
def test_safetensors_hold_the_same_numbers(
    server: ServerProcess, tmp_path: Path, encoding_format: str, dtype: type[np.floating[Any]]
) -> None:
    options = {"layers": [1, 3], "level": "word"}
    body = {"inputs": TEXTS, "encoding_format": encoding_format, "attention": options}
    status, headers, content = server.request("POST", "/encode", body, accept="application/vnd.safetensors")
    assert (status, headers["content-type"]) == (200, "application/vnd.safetensors")
    tensors, plain = load(content), encode(server, attention=options)
    embeddings = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in plain.pop("embeddings")]
    np.testing.assert_array_equal(tensors["embeddings"], np.stack(embeddings))
    for index, entry in enumerate(plain["attention"]):
        expected = np.stack([unpack(tensor) for tensor in entry.pop("weights")]).astype(dtype)
        np.testing.assert_array_equal(tensors[f"attention.{index}"], expected, strict=True)
    (tmp_path / "answer.safetensors").write_bytes(content)
    with safe_open(tmp_path / "answer.safetensors", framework="np") as file:
        assert json.loads(file.metadata()["answer"]) == plain


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


def test_norm_weighted_attention(server: ServerProcess, network: BertModel, references: list[Expected]) -> None:
    weights = encode(server, attention={"layers": "all"})
    answer = encode(server, attention={"layers": "all", "form": "norms"})
    assert answer["embeddings"] == weights["embeddings"]
    for index, reference in enumerate(references):
        entry = answer["attention"][index]
        assert entry["form"] == "norms"
        for tensor, layer, norms in zip(
            entry["weights"], reference.attentions, moved_norms(network, reference.ids), strict=True
        ):
            expected = layer.astype(np.float64) * norms.numpy()[:, np.newaxis]
            # float32 on both sides: relative to the longest vector that is moved at all
            np.testing.assert_allclose(unpack(tensor), expected, atol=TOLERANCE * float(norms.max()), rtol=0)


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
