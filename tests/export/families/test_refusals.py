"""A checkpoint of an unknown or half-known family is refused with what is missing, never read in part."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from export.errors import UnsupportedModel
from tests.family_models import MODELS, FamilyModel, draw, read, save
from tests.networks import TINY

SIZE_NAMES = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "head_dim"),
    *("dim", "n_layers", "hidden_dim", "type_vocab_size", "embedding_size", "relative_attention_num_buckets"),
}


def write_config(model: FamilyModel, folder: Path, change: dict[str, Any]) -> Path:
    """A folder with nothing but config.json: a refusal comes before weights are opened."""
    settings = AutoConfig.for_model(model.model_type, **model.settings).to_dict()
    kept = {name: value for name, value in {**settings, **change}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize("size", [10**7, 10**9, 10**30])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_monstrous_size_is_refused_before_memory_is_taken(model: FamilyModel, size: int, tmp_path: Path) -> None:
    settings = AutoConfig.for_model(model.model_type, **model.settings).to_dict()
    bounded = {"max_position_embeddings"} if model.model_type == "embedding_gemma2_text" else set()  # to 8,192
    for name in (settings.keys() & SIZE_NAMES) - bounded:
        write_config(model, tmp_path, {name: size})
        with pytest.raises(
            UnsupportedModel, match="expected a whole number|is not a multiple of|leaves none|buckets|: 1 is supported"
        ):
            read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "unknown fields surprise"),
        ({"num_heads": "absent"}, "incomplete encoder configuration"),
        ({"num_heads": [1] * 10**6}, "num_heads has 1000000 layers"),
        ({"original_heads": 10**10, "kept_heads": [[0]]}, "original_heads is 10000000000"),
        ({"attention_positions": "rotary", "max_positions": 10**6, "d_k": 1024}, "1024000000 values in a table"),
        ({"positions": "sinusoidal", "max_positions": 10**6, "hidden_size": 1024}, "1024000000 values in a table"),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*: expected a positive number"),
        ({"num_heads": [1, 1], "value_residual": [[0, 1], [10**400, 1]]}, r"value_residual\[1\] is"),
        ({"projection": {"size": 10**9}}, "projections.size is 1000000000"),
    ],
)
def test_settings_of_our_own_networks(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"model_type": "polyhead", **TINY.to_dict(), "num_heads": [1], **change}
    kept = {name: value for name, value in settings.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path)


NOMIC_OWN = {"rotary_emb_fraction": 1.0, "activation_function": "swiglu", "n_embd": 32}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
    ("roberta", {"is_decoder": True}, "a decoder is no encoder"),
    ("roberta", {"pad_token_id": None}, "pad_token_id None: positions are counted"),
    ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings 2 leaves none after the 2 unread"),
    ("camembert", {"hidden_act": "tanh"}, "hidden_act 'tanh': one of gelu"),
    ("xlm-roberta", {"model_type": "xlm-roberta-xl"}, "model_type 'xlm-roberta-xl': this version knows albert"),
    ("distilbert", {"activation": "tanh"}, "hidden_act 'tanh': one of gelu"),
    ("distilbert", {"num_attention_heads": 8}, "says num_attention_heads 8 and n_heads 4: which is right"),
    ("distilbert", {"n_heads": 5}, "hidden_size 32 is not a multiple of 5 heads"),
    ("electra", {"is_causal": True}, "is_causal True: False, None is supported"),
    ("deberta", {"conv_kernel_size": 3}, "conv_kernel_size 3: a convolution behind the first layer"),
    ("deberta", {"embedding_size": 16}, "embedding_size 16: 32 is supported"),
    ("bert", {"surprise": 1, "another": 2}, "says another, surprise, which may change the network: install"),
    ("electra", {"embedding_size": -3}, "token_size is -3"),
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
    ("modernbert", {"sliding_window": 5}, "says sliding_window 5 and local_attention 8: which is right?"),
    ("modernbert", {"global_rope_theta": 9.0}, "says rope_theta 9.0 and another in rope_parameters, 160000.0"),
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
    ("nomic", {"n_embd": 32, "n_layer": 4, "rotary_emb_fraction": 1.0}, "num_hidden_layers 3 and n_layer 4: which is"),
    ("nomic", {"rope_scaling": {"factor": 2.0}}, "rope_scaling {'factor': 2.0}: None is supported"),
    ("nomic", {"rope_parameters": {"rope_theta": 10.0, "beta": 1}}, "rope_parameters of type default has beta"),
    (
        "nomic",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 2.0, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor 0.5: 1 is supported",
    ),
    ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm': 'layer_norm' is supported"),
    ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type 'absolute': 'rope' is supported"),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale True: False is supported"),
    ("gte", {"rope_parameters": "absent"}, "does not say 'rope_theta'"),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 2}}, "and rope_scaling {'type': 'ntk', 'factor': 2}: which is"),
    (
        "gte",
        {"rope_parameters": "absent", "rope_theta": 9.0, "rope_scaling": {"type": "yarn", "factor": 2}},
        "none, or type",
    ),
    ("gte", {"hidden_size": 33}, "hidden_size 33 is not a multiple of 4 heads"),
    ("gte", {"model_type": "gte2"}, "says model_type 'gte2': this version knows"),
    ("gte", {"num_hidden_layers": 4}, "expected (32,), found none"),
    ("gte", {"num_hidden_layers": 2}, "tensors do not fit the configuration, such as layers.2"),
]


class Folders(dict[str, Path]):
    """A folder of each network, drawn when a test asks for it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._factory = factory

    def __missing__(self, name: str) -> Path:
        model = next(model for model in MODELS if model.name == name)
        self[name] = save(draw(model), model, self._factory.mktemp(name))
        return self[name]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory)


def changed(folder: Path, change: dict[str, Any], to: Path) -> Path:
    """The same files with another config.json."""
    settings = {**json.loads((folder / "config.json").read_text()), **change}
    kept = {name: value for name, value in settings.items() if value != "absent"}
    (to / "config.json").write_text(json.dumps(kept))
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
    ("roberta", None, "encoder.layer.0.attention.self.distance_embedding.weight", "of an unknown part, such as enc"),
    ("roberta", "embeddings.position_embeddings.weight", None, "such as embeddings.position.weight: expected"),
    ("roberta", "embeddings.token_type_embeddings.weight", None, "of a single token type"),
    ("distilbert", None, "transformer.layer.1.adapter.weight", "of an unknown part, such as transformer.layer.1"),
    ("distilbert", "transformer.layer.2.ffn.lin1.bias", None, "such as layers.2.feed_forward.up.bias: expected"),
    ("deberta", "encoder.rel_embeddings.weight", None, "no positions.table.weight, which its distances need"),
    ("electra", "embeddings_project.weight", None, "such as embeddings.to_hidden.weight: expected"),
    ("electra-as-wide", None, "embeddings_project.weight", "such as embeddings.to_hidden.weight: expected none"),
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
