"""jina-embeddings-v3 with its adapters, as its own code stores them, against `transformers` with the merged weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel

from export.checkpoint import Checkpoint, read_checkpoint
from export.errors import UnsupportedModel
from export.sources import Folder
from tests.family_models import MODELS, draw, ids_and_types, save

MODEL = next(model for model in MODELS if model.name == "jina-v3")
TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
RANK, ALPHA = 4, 2
CODE = "jinaai/xlm-roberta-flash-implementation--"
OWN_WORDS = {  # of the published config.json, where `transformers` has other words
    "model_type": "xlm-roberta",
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "auto_map": {"AutoModel": f"{CODE}modeling_lora.XLMRobertaLoRA"},
    "lora_adaptations": TASKS,
    "lora_rank": RANK,
    "lora_alpha": ALPHA,
}
MODULES = [
    {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"},
    {"idx": 1, "name": "pooler", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def read(folder: Path, adapter: str | None) -> Checkpoint:
    return read_checkpoint(Folder(folder, "jina"), adapter=adapter)


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """The network with an adapter a task on every matrix."""
    folder = save(draw(MODEL), MODEL, tmp_path / "adapted")
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps({**config, **OWN_WORDS}))
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    plain, stored = load_file(folder / "model.safetensors"), {}
    generator = torch.Generator().manual_seed(1)
    for name, tensor in plain.items():
        if tensor.ndim < 2:
            stored[name] = tensor
            continue
        sizes = tensor.shape if "embeddings" in name else tensor.shape[::-1]  # into A first, then into B
        module = name.removesuffix(".weight")
        first = torch.randn(len(TASKS), sizes[0], RANK, generator=generator) * 0.2
        second = torch.randn(len(TASKS), RANK, sizes[1], generator=generator) * 0.2
        is_embedding = "embeddings" in name
        stored[f"{module}.parametrizations.weight.original"] = tensor
        stored[f"{module}.parametrizations.weight.0.lora_A"] = first if is_embedding else first.mT.contiguous()
        stored[f"{module}.parametrizations.weight.0.lora_B"] = second if is_embedding else second.mT.contiguous()
    save_file(stored, folder / "model.safetensors")
    return folder


def merged_by_hand(folder: Path, task: int) -> dict[str, Tensor]:
    """Each weight with its task's change, an output and an input at a time."""
    stored = load_file(folder / "model.safetensors")
    plain = {name: tensor for name, tensor in stored.items() if "parametrizations" not in name}
    for name in stored:
        module, _, part = name.partition(".parametrizations.weight.")
        if part == "original":
            first, second = (stored[f"{module}.parametrizations.weight.0.lora_{letter}"][task] for letter in "AB")
            way = "vr,rd->vd" if "embeddings" in module else "ri,or->oi"
            change = torch.einsum(way, first.double(), second.double()) * ALPHA / RANK
            plain[f"{module}.weight"] = (stored[name] + change).float()
    return plain


@pytest.mark.parametrize("task", TASKS)
def test_the_chosen_adapter_is_merged(adapted: Path, tmp_path: Path, task: str) -> None:
    reference = save(draw(MODEL), MODEL, tmp_path / "reference")
    save_file(merged_by_hand(adapted, TASKS.index(task)), reference / "model.safetensors", metadata={"format": "pt"})
    theirs = AutoModel.from_pretrained(reference, attn_implementation="eager")
    checkpoint = read(adapted, task)
    ids, _ = ids_and_types(MODEL, 2, 30)
    with torch.inference_mode():
        expected = theirs.eval()(ids).last_hidden_state
        found = checkpoint.encoder(ids, torch.tensor([30, 30])).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert checkpoint.source.adapter == task


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (None, "an adapter for each of retrieval.query, .*: choose one with --adapter"),
        ("separation", "'separation' is none of them"),
    ],
)
def test_one_of_the_adapters_has_to_be_named(adapted: Path, adapter: str | None, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(adapted, adapter)


def test_an_adapter_is_not_taken_for_a_network_without_any(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="--adapter x: the checkpoint has no adapters"):
        read(save(draw(MODEL), MODEL, tmp_path), "x")


def test_an_adapter_of_another_shape(adapted: Path) -> None:
    tensors = load_file(adapted / "model.safetensors")
    name = next(name for name in tensors if name.endswith("fc1.parametrizations.weight.0.lora_B"))
    save_file({**tensors, name: tensors[name][:, :-1].contiguous()}, adapted / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"fc1 has shape \(63, 32\), its weight \(64, 32\)"):
        read(adapted, TASKS[0])


def test_a_transformer_with_code_of_its_own_is_refused_elsewhere(adapted: Path) -> None:
    config: dict[str, Any] = json.loads((adapted / "config.json").read_text())
    del config["lora_adaptations"]
    (adapted / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="names custom_st.Transformer: a module with code of its own"):
        read(adapted, None)
