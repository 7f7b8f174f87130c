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

BY_NAME = {model.name: model for model in MODELS}
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


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ("roberta", {"is_decoder": True}, "a decoder is no encoder"),
        ("roberta", {"pad_token_id": None}, "pad_token_id None: positions are counted"),
        ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings 2 leaves none after the 2 unread"),
        ("camembert", {"hidden_act": "tanh"}, "hidden_act 'tanh': one of gelu"),
        ("xlm-roberta", {"model_type": "xlm-roberta-xl"}, "model_type 'xlm-roberta-xl': this version knows albert"),
        ("distilbert", {"activation": "tanh"}, "hidden_act 'tanh': one of gelu"),
        ("distilbert", {"dim": "absent"}, "does not say 'dim'"),
        ("distilbert", {"n_heads": 5}, "hidden_size 32 is not a multiple of 5 heads"),
        ("electra", {"embedding_size": "absent"}, "does not say 'embedding_size'"),
        ("electra", {"embedding_size": -3}, "token_size is -3"),
    ],
)
def test_settings(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(write_config(BY_NAME[name], tmp_path, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"surprise": 1}, "unknown fields surprise"), ({"num_heads": "absent"}, "incomplete encoder configuration")],
)
def test_settings_of_our_own_networks(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"model_type": "polyhead", "num_heads": [1], **change}
    kept = {name: value for name, value in settings.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "add", "remove", "message"),
    [
        ("roberta", "encoder.layer.0.attention.self.distance_embedding.weight", "", "of an unknown part, such as enc"),
        ("roberta", "", "embeddings.position_embeddings.weight", "such as embeddings.position.weight: expected"),
        ("roberta", "", "embeddings.token_type_embeddings.weight", "of a single token type"),
        ("distilbert", "transformer.layer.1.adapter.weight", "", "of an unknown part, such as transformer.layer.1"),
        ("distilbert", "", "transformer.layer.2.ffn.lin1.bias", "such as layers.2.feed_forward.up.bias: expected"),
        ("electra", "", "embeddings_project.weight", "such as embeddings.to_hidden.weight: expected"),
        ("electra-as-wide", "embeddings_project.weight", "", "such as embeddings.to_hidden.weight: expected none"),
    ],
)
def test_tensors(name: str, add: str, remove: str, message: str, tmp_path: Path) -> None:
    folder = save(draw(BY_NAME[name]), BY_NAME[name], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    if add:
        tensors[add] = torch.ones(1)
    tensors.pop(remove, None)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=message):
        read(folder)


@pytest.mark.parametrize("size", [10**7, 10**9, 10**30])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_monstrous_size_is_refused_before_memory_is_taken(model: FamilyModel, size: int, tmp_path: Path) -> None:
    settings = AutoConfig.for_model(model.model_type, **model.settings).to_dict()
    for name in settings.keys() & SIZE_NAMES:
        write_config(model, tmp_path, {name: size})
        with pytest.raises(
            UnsupportedModel, match="expected a whole number|is not a multiple of|leaves none|buckets|: 1 is supported"
        ):
            read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": [1] * 10**6}, "num_heads has 1000000 layers"),
        ({"original_heads": 10**10, "kept_heads": [[0]]}, "original_heads is 10000000000"),
        ({"attention_positions": "rotary", "max_positions": 10**6, "d_k": 1024}, "1024000000 values in a table"),
        ({"positions": "sinusoidal", "max_positions": 10**6, "hidden_size": 1024}, "1024000000 values in a table"),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*: expected a positive number"),
        ({"num_heads": [1, 1], "value_residual": [[0, 1], [10**400, 1]]}, r"value_residual\[1\] is"),
        ({"projection": {"size": 10**9}}, "projections.size is 1000000000"),
    ],
)
def test_a_monstrous_size_of_our_own_networks(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"model_type": "polyhead", **TINY.to_dict(), "num_heads": [1], **change}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path)
