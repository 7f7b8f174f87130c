"""Whole folders of sentence-transformers, tokenizer and prompts included, against sentence-transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from export.checkpoint import Checkpoint
from tests.export.conftest import write_json, write_modules
from tests.family_models import NAMED, draw, read, save

TEXTS = [
    "The cats sat on the mats, unbelievably tokenised.",
    "lower newest  wider: abc123 naïve café!\n\nAnd more\tof it",
    "日 word 语 🙂",
    "a",
    "",
    " 1234567 it's DON'T ",
]
LONGEST = 128
PROMPT = "Instruct: find what answers\nQuery:"
IDENTITY = "torch.nn.modules.linear.Identity"
# As Qwen3-Embedding, EmbeddingGemma, sentence-t5 and EuroBERT-based models are stored.
CASES: dict[str, dict[str, Any]] = {
    "qwen3": {
        "pooling": "lasttoken",
        "tokenizer": {"tokenizer_class": "Qwen2Tokenizer", "padding_side": "left", "pad_token": "<|endoftext|>"},
        "dense": [],
    },
    "gemma3": {
        "pooling": "mean",
        "tokenizer": {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": True},
        "dense": [(32, 48), (48, 20)],
    },
    "t5": {
        "pooling": "mean",
        "tokenizer": {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "pad_token": "<pad>", "eos_token": "</s>"},
        "dense": [(24, 16)],
    },
    "eurobert": {
        "pooling": "mean",
        "tokenizer": {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|end_of_text|>"},
        "dense": [],
    },
}


def build(name: str, folder: Path) -> Path:
    """A folder as sentence-transformers stores it."""
    model, case = NAMED[name], CASES[name]
    longer = {} if name == "t5" else {"max_position_embeddings": LONGEST}
    save(draw(model, **longer), model, folder)
    dense = {f"{index}_Dense": "Dense" for index in range(2, 2 + len(case["dense"]))}
    write_modules(folder, {"": "Transformer", "1_Pooling": "Pooling", **dense, "9_Normalize": "Normalize"})
    write_json(folder / "tokenizer_config.json", {**case["tokenizer"], "model_max_length": LONGEST})
    write_json(
        folder / "config_sentence_transformers.json", {"prompts": {"query": PROMPT}, "default_prompt_name": None}
    )
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode": case["pooling"]})
    generator = torch.Generator().manual_seed(0)
    for index, (size, out) in enumerate(case["dense"]):
        settings = {"in_features": size, "out_features": out, "bias": False, "activation_function": IDENTITY}
        write_json(folder / f"{index + 2}_Dense/config.json", settings)
        weight = torch.randn(out, size, generator=generator)
        save_file({"linear.weight": weight}, folder / f"{index + 2}_Dense" / "model.safetensors")
    (folder / "9_Normalize").mkdir()
    return folder


def embed(checkpoint: Checkpoint, text: str) -> torch.Tensor:
    ids = torch.tensor([checkpoint.tokenizer.encode(text).ids])
    with torch.inference_mode():
        return normalize(checkpoint.encoder(ids, torch.tensor([ids.shape[1]])).pooled)[0]


@pytest.mark.parametrize("name", CASES)
def test_vectors_equal_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    folder = build(name, tmp_path)
    theirs, checkpoint = SentenceTransformer(str(folder), device="cpu"), read(folder)
    texts = [text for text in TEXTS if text or name != "qwen3"]  # a text without tokens has no last one there
    assert checkpoint.defaults.prompts == {"query": PROMPT}
    for prompt in ("", PROMPT):
        expected = theirs.encode(texts, prompt=prompt or None, batch_size=len(texts))
        for text, vector in zip(texts, expected, strict=True):
            tokens = checkpoint.tokenizer.encode(prompt + text).ids
            assert len(tokens) <= LONGEST
            np.testing.assert_allclose(embed(checkpoint, prompt + text), vector, atol=1e-5, rtol=0, err_msg=text)
