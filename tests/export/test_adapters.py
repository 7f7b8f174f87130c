"""LoRA adapters as `peft` saves them, and jina-embeddings-v3's, against `transformers` with the merged weights.

The merge is written down here, an output and an input at a time.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel

from export.checkpoint import Checkpoint
from export.errors import ExportError, UnsupportedModel
from tests.export.conftest import change_json, write_json, write_modules
from tests.family_models import NAMED, FamilyModel, compare_whole, draw, ids_and_types, read, save
from tests.published.build import with_adapters

MODEL = NAMED["qwen3"]
MODULES = ("layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.2.mlp.down_proj", "embed_tokens")
CONFIG = {  # what a published file says besides
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": True,
    "init_lora_weights": True,
    "lora_dropout": 0.1,
    "r": 4,
    "lora_alpha": 6,
    "target_modules": ["q_proj", "down_proj"],
    "task_type": "FEATURE_EXTRACTION",
    "base_model_name_or_path": "owner/base",
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
}


def write_adapter(folder: Path, weights: dict[str, Tensor], **settings: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Saves an adapter of rank 3 for the modules; returns A and B of each."""
    write_json(folder / "adapter_config.json", {**CONFIG, **settings})
    generator = torch.Generator().manual_seed(1)
    pairs, stored = {}, {}
    for module in MODULES:
        outputs, inputs = weights[f"{module}.weight"].shape
        if module == "embed_tokens":
            outputs, inputs = inputs, outputs
        first, second = (torch.randn(*shape, generator=generator) * 0.3 for shape in ((3, inputs), (outputs, 3)))
        pairs[module] = first, second
        ending = "lora_embedding_{}" if module == "embed_tokens" else "lora_{}.weight"
        for letter, tensor in zip("AB", pairs[module], strict=True):
            stored[f"base_model.model.{module}.{ending.format(letter)}"] = tensor
    save_file(stored, folder / "adapter_model.safetensors")
    return pairs


def compare(model: FamilyModel, checkpoint: Checkpoint, merged: dict[str, Tensor], folder: Path) -> None:
    """Holds a network with an adapter against `transformers` with the merged weights."""
    save(draw(model), model, folder)
    save_file(merged, folder / "model.safetensors", metadata={"format": "pt"})
    theirs = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    compare_whole(theirs, checkpoint.encoder, ids_and_types(model, 2, 20)[0], 2e-5)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save(draw(MODEL), MODEL, tmp_path / "base")


@pytest.mark.parametrize(
    ("settings", "scales"),
    [
        ({}, [6 / 3] * 4),
        ({"use_rslora": True}, [6 / math.sqrt(3)] * 4),
        ({"alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 9, "q_proj": 1}}, [1 / 3, 9 / 3, 6 / 3, 6 / 3]),
    ],
    ids=["plain", "rank-stabilised", "by pattern"],
)
def test_an_adapter_is_merged(base: Path, tmp_path: Path, settings: dict[str, Any], scales: list[float]) -> None:
    weights = load_file(base / "model.safetensors")
    pairs = write_adapter(tmp_path / "lora", weights, **settings)
    for (module, (first, second)), scale in zip(pairs.items(), scales, strict=True):
        way = "ri,or->io" if module == "embed_tokens" else "ri,or->oi"
        weights[f"{module}.weight"] += (torch.einsum(way, first.double(), second.double()) * scale).float()
    checkpoint = read(base, adapter=str(tmp_path / "lora"))
    compare(MODEL, checkpoint, weights, tmp_path / "reference")
    assert checkpoint.source.files.keys() >= {"adapter_config.json", "adapter_model.safetensors"}


def test_adapters_in_the_networks_folder_are_named(base: Path) -> None:
    write_modules(base, {"": "custom_st.Transformer", "1_Pooling": "Pooling"})
    write_json(base / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    with pytest.raises(ExportError, match="names custom_st.Transformer: a module with code of its own"):
        read(base)
    weights = load_file(base / "model.safetensors")
    for name in ("retrieval", "clustering"):
        write_adapter(base / "adapters" / name, weights)
    with pytest.raises(ExportError, match="an adapter for each of clustering, retrieval: choose one with --adapter"):
        read(base)
    assert read(base, adapter="retrieval").source.adapter == "retrieval"
    with pytest.raises(ExportError, match="--adapter other: the checkpoint has no adapters"):
        read(base, adapter="other")


def test_modules_and_prompts_that_were_saved_with_an_adapter_count(base: Path, tmp_path: Path) -> None:
    lora = tmp_path / "lora"
    write_adapter(lora, load_file(base / "model.safetensors"))
    write_modules(lora, {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"})
    write_json(lora / "1_Pooling" / "config.json", {"pooling_mode": "lasttoken"})
    write_json(lora / "2_Dense" / "config.json", {"out_features": 5, "bias": False})
    save_file({"linear.weight": torch.ones(5, 32)}, lora / "2_Dense" / "model.safetensors")
    write_json(lora / "config_sentence_transformers.json", {"prompts": {"query": "find: "}})
    write_json(lora / "sentence_bert_config.json", {"max_seq_length": 17})
    checkpoint = read(base, adapter=str(lora))
    config, defaults = checkpoint.encoder.config, checkpoint.defaults
    assert (config.pooling, config.embedding_size, checkpoint.max_sequence_length) == ("last", 5, 17)
    assert (defaults.normalize, defaults.prompts) == (True, {"query": "find: "})
    beside = {"modules.json", "config_sentence_transformers.json", "2_Dense/model.safetensors"}
    assert {f"adapter/{name}" for name in beside} <= set(checkpoint.source.files)


@pytest.mark.parametrize(
    ("settings", "tensor", "message"),
    [
        ({"use_dora": True}, {}, "says use_dora: plain LoRA is merged, and nothing else"),
        (
            {"modules_to_save": ["norm"], "a_setting_to_come": 1},
            {},
            "says a_setting_to_come, modules_to_save: plain LoRA",
        ),
        ({"bias": "lora_only"}, {}, "bias 'lora_only': 'none' is supported"),
        ({"peft_type": "IA3"}, {}, "peft_type 'IA3': 'LORA' is supported"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights 'pissa': True, False, 'gaussian' is supported"),
        ({}, {"layers.9.self_attn.q_proj.lora_A.weight": (3, 32)}, "changes layers.9.self_attn.q_proj, which the"),
        ({}, {"layers.0.self_attn.q_proj.lora_A.weight": (3, 31)}, r"q_proj has shape \(48, 31\), its weight"),
        ({}, {"layers.0.self_attn.q_proj.lora_A.weight": (2, 32)}, "q_proj cannot be applied: mat1 and mat2"),
        ({}, {"layers.0.self_attn.k_proj.lora_A.weight": (3, 32)}, "k_proj cannot be applied: 'lora_B'"),
        ({}, {"layers.0.self_attn.q_proj.lora_magnitude_vector": (48,)}, "holds .*, which is no part of plain LoRA"),
    ],
)
def test_what_is_not_plain_or_misfits_is_refused_by_name(
    base: Path, tmp_path: Path, settings: dict[str, Any], tensor: dict[str, tuple[int, ...]], message: str
) -> None:
    write_adapter(tmp_path / "lora", load_file(base / "model.safetensors"), **settings)
    path = tmp_path / "lora" / "adapter_model.safetensors"
    added = {f"base_model.model.{name}": torch.ones(shape) for name, shape in tensor.items()}
    save_file({**load_file(path), **added}, path)
    with pytest.raises(ExportError, match=message):
        read(base, adapter=str(tmp_path / "lora"))


JINA_V3 = NAMED["jina-v3"]
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


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """The network with an adapter a task on every matrix."""
    folder = save(draw(JINA_V3), JINA_V3, tmp_path / "adapted")
    change_json(folder / "config.json", rope_parameters=None, **OWN_WORDS)
    write_modules(folder, {"": "custom_st.Transformer", "1_Pooling": "Pooling"})
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    generator, path = torch.Generator().manual_seed(1), folder / "model.safetensors"
    drawn = with_adapters(load_file(path), len(TASKS), lambda _, shape: torch.randn(shape, generator=generator) * 0.2)
    save_file(drawn, path)
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
    checkpoint = read(adapted, adapter=task)
    compare(JINA_V3, checkpoint, merged_by_hand(adapted, TASKS.index(task)), tmp_path / "reference")
    assert checkpoint.source.adapter == task


def test_one_of_the_adapters_has_to_be_named(adapted: Path) -> None:
    with pytest.raises(UnsupportedModel, match="an adapter for each of retrieval.query, .*: choose one with --adapter"):
        read(adapted)
    with pytest.raises(UnsupportedModel, match="'separation' is none of them"):
        read(adapted, adapter="separation")


@pytest.mark.parametrize("change", [{"lora_adaptations": TASKS[0]}, {"lora_alpha": None}, {"lora_rank": 0}], ids=str)
def test_settings_of_adapters_that_are_of_another_type(adapted: Path, change: dict[str, Any]) -> None:
    change_json(adapted / "config.json", **change)
    with pytest.raises(UnsupportedModel, match="expected a list of names and two numbers"):
        read(adapted, adapter=TASKS[0])


def test_an_adapter_of_another_shape(adapted: Path) -> None:
    tensors = load_file(adapted / "model.safetensors")
    name = next(name for name in tensors if name.endswith("fc1.parametrizations.weight.0.lora_B"))
    save_file({**tensors, name: tensors[name][:, :-1].contiguous()}, adapted / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"fc1 has shape \(63, 32\), its weight \(64, 32\)"):
        read(adapted, adapter=TASKS[0])
