"""Every transformation of attention over HTTP equals the same transformation of `transformers`' eager attention."""

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
from transformers import AutoModel, AutoTokenizer

from export.sources import find_folder
from tests.attention_reference import transformed
from tests.service.process import ServerProcess

TOLERANCE = 1e-5
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


@dataclass(frozen=True)
class Expected:
    """What the reference libraries say of a text."""

    attentions: list[NDArray[np.float32]]
    special: list[bool]
    word_ids: list[int | None]


@pytest.fixture(scope="module")
def references() -> list[Expected]:
    folder = str(find_folder(None).path)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for text in TEXTS:
        encoded = tokenizer(text, return_special_tokens_mask=True)
        with torch.inference_mode():
            attentions = model(torch.tensor([encoded["input_ids"]]), output_attentions=True).attentions
        special = list(map(bool, encoded["special_tokens_mask"]))
        found.append(Expected([layer[0].numpy() for layer in attentions], special, encoded.word_ids()))
    return found


def encode(server: ServerProcess, **body: Any) -> Any:
    status, _, answer = server.request("POST", "/encode", {"inputs": TEXTS, "encoding_format": "base64", **body})
    assert status == 200, answer[:500]
    return json.loads(answer)


def unpack(tensor: dict[str, Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(tensor["data"]), tensor["dtype"]).reshape(tensor["shape"])


def expect(reference: Expected, options: dict[str, Any]) -> list[NDArray[Any]]:
    return transformed(reference.attentions, options, special=reference.special, word_ids=reference.word_ids)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_transformed_attention(server: ServerProcess, references: list[Expected], options: dict[str, Any]) -> None:
    sums_to_one = options.get("reduce") != "max" and not (
        options.get("exclude_special") and not options.get("renormalise")
    )
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
