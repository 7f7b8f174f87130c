"""A checkpoint that is half known is refused with what is missing, never loaded in part."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint import read_checkpoint
from export.errors import SourceError, UnsupportedModel
from export.sources import Folder
from tests.family_models import MODELS, draw, read, save

NOMIC_OWN = {"rotary_emb_fraction": 1.0, "activation_function": "swiglu", "n_embd": 32}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets 64: 32 is supported"),
    ("mpnet", {"max_position_embeddings": 2}, "max_position_embeddings 2 leaves none after the 2 unread"),
    ("mpnet", {"hidden_act": "mish"}, "hidden_act 'mish': one of gelu"),
    ("mpnet", {"pruned_heads": {"0": [1]}}, "pruned_heads {'0': [1]}: None, {} is supported"),
    ("modernbert", {"layer_types": ["full_attention", "chunked_attention"] * 2}, "expected full_attention or sliding_"),
    ("modernbert", {"layer_types": ["full_attention"] * 3}, "for each of 4 layers"),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "rope_type 'longrope': d"),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "rope_theta -1: expected a positive"),
    ("modernbert", {"rope_parameters": {"chunked": {}}}, "rope_parameters has chunked: full_attention and sliding"),
    ("modernbert", {"rope_scaling": {"type": "ntk"}}, "rope_scaling {'type': 'ntk'}: None is supported"),
    ("modernbert", {"local_attention": None}, "does not say 'local_attention'"),
    ("modernbert", {"rope_parameters": None, "global_rope_theta": 9.0}, "does not say 'local_rope_theta'"),
    ("modernbert", {"hidden_activation": "softplus"}, "hidden_act 'softplus'"),
    ("modernbert", {"norm_bias": "no"}, "norm_bias is 'no': expected true or false"),
    ("nomic", {"prenorm": True}, "prenorm True: False is supported"),
    ("nomic", {"use_rms_norm": True}, "use_rms_norm True: False, None is supported"),
    ("nomic", {"moe_every_n_layers": 2}, "moe_every_n_layers 2: None, 0 is supported"),
    ("nomic", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved True"),
    ("nomic", {**NOMIC_OWN, "rotary_emb_fraction": 0.5}, "rotary_emb_fraction 0.5: 1 is supported"),
    ("nomic", {**NOMIC_OWN, "activation_function": "glu"}, "activation_function 'glu': one of swiglu, geglu"),
    ("nomic", NOMIC_OWN, "does not say 'qkv_proj_bias'"),
    ("nomic", {"rotary_emb_base": 10000}, "rotary_emb_base says 10000.0 and rope_parameters 1000.0"),
    ("nomic", {"rope_parameters": {"rope_theta": 10.0, "beta": 1}}, "rope_parameters of type default has beta"),
    (
        "nomic",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 2.0, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor 0.5: 1 is supported",
    ),
    ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm': 'layer_norm' is supported"),
    ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type 'absolute': 'rope' is supported"),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale True: False is supported"),
    ("gte", {"rope_parameters": None}, "does not say 'rope_theta'"),
    (
        "gte",
        {"rope_parameters": None, "rope_theta": 9.0, "rope_scaling": {"type": "yarn", "factor": 2}},
        "none, or type",
    ),
    ("gte", {"hidden_size": 33}, "hidden_size 33 is not a multiple of 4 heads"),
    ("gte", {"model_type": "gte2"}, "says model_type 'gte2': this version knows"),
    ("gte", {"num_hidden_layers": 4}, "expected (32,), found none"),
    ("gte", {"num_hidden_layers": 2}, "tensors do not fit the configuration, such as layers.2"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    chosen = [model for model in MODELS if model.name in ("mpnet", "modernbert", "nomic", "gte")]
    return {model.name: save(draw(model), model, tmp_path_factory.mktemp(model.name)) for model in chosen}


def changed(folder: Path, change: dict[str, Any], to: Path) -> Path:
    """The same files with another config.json; None takes a setting away."""
    settings = {**json.loads((folder / "config.json").read_text()), **change}
    (to / "config.json").write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))
    for name in ("model.safetensors", "tokenizer.json"):
        (to / name).symlink_to(folder / name)
    return to


@pytest.mark.parametrize(("name", "change", "message"), CASES, ids=lambda value: str(value)[:60])
def test_a_setting_that_is_not_reproduced(
    folders: dict[str, Path], tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        read(changed(folders[name], change, tmp_path))
    assert message in str(caught.value)


TENSORS: list[tuple[str, str | None, str | None, str]] = [
    (
        "mpnet",
        "encoder.relative_attention_bias.weight",
        None,
        "such as positions.bias.buckets.weight: expected (32, 4)",
    ),
    ("modernbert", "layers.2.attn.Wqkv.weight", None, "3 tensors do not fit the configuration, such as layers.2"),
    ("modernbert", "final_norm.weight", None, "such as final_norm.weight: expected (32,), found none"),
    ("modernbert", None, "layers.0.attn_norm.weight", "such as layers.0.attention_norm.weight: expected none"),
    ("modernbert", None, "layers.0.attn.adapter.weight", "1 tensors of an unknown part, such as layers.0.attn.adapter"),
    ("nomic", None, "encoder.layers.0.mlp.experts.mlp.w1", "unknown part, such as encoder.layers.0.mlp.experts.mlp.w1"),
    ("nomic", None, "encoder.layers.0.attn.Wqkv.bias", "expected none, found (11,)"),
    ("nomic", None, "layers.0.mlp.gate_proj.weight", "holds layers.0.feed_forward.gate.weight twice"),
    ("gte", "encoder.layer.1.mlp.up_gate_proj.weight", None, "2 tensors do not fit the configuration"),
]


@pytest.mark.parametrize(("name", "removed", "added", "message"), TENSORS, ids=str)
def test_tensors_that_are_missing_or_left_over(
    folders: dict[str, Path], tmp_path: Path, name: str, removed: str | None, added: str | None, message: str
) -> None:
    to = changed(folders[name], {}, tmp_path)
    tensors = load_file(to / "model.safetensors")
    if removed:
        del tensors[removed]
    if added:
        tensors[added] = torch.ones(33)
    (to / "model.safetensors").unlink()
    save_file(tensors, to / "model.safetensors")
    with pytest.raises(UnsupportedModel) as caught:
        read(to)
    assert message in str(caught.value)


def test_rows_that_do_not_divide(folders: dict[str, Path], tmp_path: Path) -> None:
    to = changed(folders["nomic"], {}, tmp_path)
    tensors = {**load_file(to / "model.safetensors"), "encoder.layers.0.attn.Wqkv.weight": torch.ones(97, 32)}
    (to / "model.safetensors").unlink()
    save_file(tensors, to / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="Wqkv.weight has 97 rows: expected a multiple of 3"):
        read(to)


@pytest.mark.parametrize(
    ("wanted", "message"), [(0, "a longest text of 0 tokens: expected 3 to 40"), (41, "a longest text of 41 tokens")]
)
def test_a_longest_text_that_the_network_does_not_take(folders: dict[str, Path], wanted: int, message: str) -> None:

    folder = Folder(folders["gte"], "gte")
    with pytest.raises(SourceError, match=message):
        read_checkpoint(folder, max_length=wanted)
    assert read_checkpoint(folder, max_length=17).max_sequence_length == 17
