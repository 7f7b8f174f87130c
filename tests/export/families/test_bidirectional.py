"""Decoders that see the whole text by code of a model's own equal `transformers`' networks that are told to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.errors import UnsupportedModel
from tests.export.conftest import change_json
from tests.family_models import NAMED, draw, read, save

TOLERANCE = 1e-5
VOYAGE: dict[str, Any] = {
    "use_bidirectional_attention": True,
    "num_labels": 20,
    "architectures": ["Qwen3BidirectionalModel"],
    "auto_map": {"AutoModel": "modeling_qwen3_bidirectional.Qwen3BidirectionalModel"},
}
NEMOTRON: dict[str, Any] = {
    "model_type": "llama_bidirec",
    "pooling": "avg",
    "architectures": ["LlamaBidirectionalModel"],
    "auto_map": {"AutoModel": "llama_bidirectional_model.LlamaBidirectionalModel"},
}


@pytest.mark.parametrize(
    ("family", "said", "size"),
    [("qwen3", VOYAGE, 20), ("qwen3", {**VOYAGE, "num_labels": None}, 0), ("llama", NEMOTRON, 0)],
)
def test_its_vectors_are_the_projected_means(family: str, said: dict[str, Any], size: int, tmp_path: Path) -> None:
    model = NAMED[family]
    theirs = draw(replace(model, settings={**model.settings, "is_causal": False})).eval()
    folder = save(theirs, model, tmp_path / family)
    change_json(folder / "config.json", is_causal=None, **said)
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    linear = torch.randn(size, 32, generator=torch.Generator().manual_seed(1))
    save_file(tensors | ({"linear.weight": linear} if size else {}), folder / "model.safetensors", {"format": "pt"})
    ids = torch.tensor([[5, 17, 250, 31, 99, 8]])
    encoder = read(folder).encoder
    with torch.inference_mode():
        states = theirs(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        causal = draw(replace(model, settings={**model.settings, "is_causal": True})).eval()
        seen_before = causal(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        found = encoder(ids, torch.tensor([ids.shape[1]])).task_output
    expected = (states @ linear.T if size else states).mean(dim=1)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < TOLERANCE
    assert (states - seen_before).abs().max() > 0.01  # the network would notice


def test_the_largest_of_projected_tokens_is_refused(tmp_path: Path) -> None:
    folder = save(draw(NAMED["qwen3"]), NAMED["qwen3"], tmp_path / "qwen3")
    change_json(folder / "config.json", **VOYAGE)
    with pytest.raises(UnsupportedModel, match="tokens are projected first"):
        read(folder, pooling="max")
