"""jina-embeddings-v3 with its adapters, as its own code stores them, against `transformers` with the merged weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel

from export.checkpoint import Checkpoint, read_checkpoint
from export.errors import UnsupportedModel
from export.sources import Folder
from tests.export.conftest import change_json, write_json, write_modules
from tests.family_models import NAMED, draw, ids_and_types, save

MODEL = NAMED["jina-v3"]
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


def read(folder: Path, adapter: str | None) -> Checkpoint:
    return read_checkpoint(Folder(folder, "jina"), adapter=adapter)


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """The network with an adapter a task on every matrix."""
    folder = save(draw(MODEL), MODEL, tmp_path / "adapted")
    change_json(folder / "config.json", rope_parameters=None, **OWN_WORDS)
    write_modules(folder, {"": "custom_st.Transformer", "1_Pooling": "Pooling"})
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    plain, stored = load_file(folder / "model.safetensors"), {}
    generator = torch.Generator().manual_seed(1)
    for name, tensor in plain.items():
        if tensor.ndim < 2:
            stored[name] = tensor
            continue
        outputs, inputs = tensor.shape
        shapes = (RANK, inputs), (outputs, RANK)
        if "embeddings" in name:
            shapes = (outputs, RANK), (RANK, inputs)
        module = f"{name.removesuffix('.weight')}.parametrizations.weight"
        stored[f"{module}.original"] = tensor
        for letter, shape in zip("AB", shapes, strict=True):
            stored[f"{module}.0.lora_{letter}"] = torch.randn(len(TASKS), *shape, generator=generator) * 0.2
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


@pytest.mark.parametrize("task", TASKS[:2])
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
    ("is_adapted", "adapter", "message"),
    [
        (True, None, "an adapter for each of retrieval.query, .*: choose one with --adapter"),
        (True, "separation", "'separation' is none of them"),
        (False, "x", "--adapter x: the checkpoint has no adapters"),
    ],
)
def test_one_of_the_adapters_has_to_be_named(
    adapted: Path, tmp_path: Path, is_adapted: bool, adapter: str | None, message: str
) -> None:
    folder = adapted if is_adapted else save(draw(MODEL), MODEL, tmp_path / "plain")
    with pytest.raises(UnsupportedModel, match=message):
        read(folder, adapter)


def test_an_adapter_of_another_shape(adapted: Path) -> None:
    tensors = load_file(adapted / "model.safetensors")
    name = next(name for name in tensors if name.endswith("fc1.parametrizations.weight.0.lora_B"))
    save_file({**tensors, name: tensors[name][:, :-1].contiguous()}, adapted / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"fc1 has shape \(63, 32\), its weight \(64, 32\)"):
        read(adapted, TASKS[0])


def test_a_transformer_with_code_of_its_own_is_refused_elsewhere(adapted: Path) -> None:
    change_json(adapted / "config.json", lora_adaptations=None)
    with pytest.raises(UnsupportedModel, match="names custom_st.Transformer: a module with code of its own"):
        read(adapted, None)
