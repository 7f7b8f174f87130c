"""Encoders made from decoders: left padding, scaled rotary positions, older files, refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from export.checkpoint import read_checkpoint
from export.errors import UnsupportedModel
from export.sources import Folder
from tests.family_models import MODELS, FamilyModel, draw, ids_and_types, project, read, save

TOLERANCE = 1e-5
LONG = 320
Settings = dict[str, Any]


def model_named(name: str) -> FamilyModel:
    return next(model for model in MODELS if model.name == name)


def change(folder: Path, **settings: Any) -> Path:
    """Changes config.json; None removes a setting."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return folder


def test_what_the_original_pads_at_the_left_is_padded_at_the_right_here(tmp_path: Path) -> None:
    model = model_named("qwen3")
    theirs = draw(model)
    ours = read(save(theirs, model, tmp_path)).encoder
    ids, _ = ids_and_types(model, 3, 20)
    lengths = [20, 11, 1]
    mask = torch.arange(20) >= 20 - torch.tensor(lengths)[:, None]
    left = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        left[row, 20 - length :] = ids[row, :length]
    with torch.inference_mode():
        expected = theirs(left, attention_mask=mask.long()).last_hidden_state[:, -1]
        found = ours(ids, torch.tensor(lengths)).last_hidden_state
    last = torch.stack([found[row, length - 1] for row, length in enumerate(lengths)])
    torch.testing.assert_close(last, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 80},
        {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 64, "beta_fast": 4, "truncate": False},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 40, "attention_factor": 0.7},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=str,
)
def test_scaled_rotary_positions_are_those_of_transformers(tmp_path: Path, parameters: Settings) -> None:
    model = model_named("eurobert")
    theirs = draw(
        model, max_position_embeddings=LONG, head_dim=16, rope_parameters={"rope_theta": 5000.0, **parameters}
    )
    ours = read(save(theirs, model, tmp_path)).encoder
    ids, _ = ids_and_types(model, 1, LONG)
    with torch.inference_mode():
        expected = theirs(ids).last_hidden_state
        found = ours(ids, torch.tensor([LONG])).last_hidden_state
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_files_before_release_5_say_the_same(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    theirs = draw(model_named("qwen3"), rope_parameters={"rope_theta": 700.0, **scaling})
    folder = save(theirs, model_named("qwen3"), tmp_path)
    expected = read(folder).encoder.config
    older = change(folder, rope_parameters=None, rope_theta=700.0, rope_scaling=scaling, layer_types=None)
    assert read(older).encoder.config == expected


def test_older_files_of_gemma_say_the_same(tmp_path: Path) -> None:
    model = model_named("gemma3")
    period = ["sliding_attention", "full_attention", "sliding_attention"]
    folder = save(draw(model, layer_types=period), model, tmp_path)
    expected = read(folder).encoder.config
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2}
    assert read(change(folder, rope_parameters=None, layer_types=None, **older)).encoder.config == expected


def test_the_text_part_of_a_network_for_images_and_sound_is_read(tmp_path: Path) -> None:
    places = {"image_token_id": 7, "audio_token_id": 9, "video_token_id": 11}
    model = model_named("gemma2")
    whole = replace(model, model_type="embedding_gemma2", settings={"text_config": model.settings, **places})
    theirs = draw(whole)
    ours = read(save(theirs, whole, tmp_path)).encoder
    ids = torch.tensor([[5, 7, 30, 9, 8, 11, 40]])
    with torch.inference_mode():
        expected = theirs(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        found = ours(ids, torch.tensor([7]))
    torch.testing.assert_close(project(ours, found.last_hidden_state), expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(found.pooled, expected.mean(dim=1), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("name", "is_decoder"), [("eurobert", False), ("qwen3", True), ("qwen3", None)])
def test_jina_v5_is_one_of_two_networks(tmp_path: Path, name: str, is_decoder: bool | None) -> None:
    model = model_named(name)
    folder = save(draw(model), model, tmp_path)
    expected = read(folder).encoder.config
    said = {"model_type": "jina_embeddings_v5", "is_decoder": is_decoder, "task_names": ["retrieval"]}
    assert read(change(folder, **said)).encoder.config == expected


def test_gemma2_without_a_setting_for_each_layer_has_wider_global_layers(tmp_path: Path) -> None:
    model = model_named("gemma2")
    folder = save(draw(model), model, tmp_path)
    expected = read(folder).encoder.config
    wider = {"global_head_dim": 10, "num_global_key_value_heads": 1}
    assert read(change(folder, per_layer_config=None, **wider)).encoder.config == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("qwen3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}, "rope_type 'longrope': default"),
        ("qwen3", {"rope_parameters": {"rope_theta": 9.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ("qwen3", {"rope_parameters": {"rope_theta": 9.0, "mscale": 2}}, "type default has mscale"),
        ("qwen3", {"hidden_act": "tanh"}, "hidden_act 'tanh'"),
        ("qwen3", {"num_key_value_heads": 3}, "expected a multiple of its 3 key and value heads"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0: None is supported"),
        ("gemma3", {"layer_types": ["full_attention", "mamba", "full_attention"]}, "layer_types .*mamba"),
        ("t5", {"feed_forward_proj": "gated-swish2"}, "feed_forward_proj 'gated-swish2'"),
        ("t5", {"is_decoder": True}, "is_decoder True: False is supported"),
        ("t5", {"dense_act_fn": "silu"}, "says dense_act_fn 'silu' and feed_forward_proj 'relu': which is right"),
        ("t5", {"hidden_size": 25}, "says hidden_size 25 and d_model 24: which is right"),
        (
            "qwen3",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope_parameters .* and rope_scaling .*: which",
        ),
        ("eurobert", {"rope_theta": 9.0}, "rope_theta 9.0 and another in rope_parameters, 10000.0"),
        (
            "gemma3",
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            "rope_parameters and rope_scaling: which is",
        ),
        ("gemma2", {"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config has sliding_window: head_dim"),
        ("gemma2", {"per_layer_config": {"1": {"head_dim": 8}}}, "heads of sizes .6, 8, 6.: one for each kind of"),
        ("gemma3", {"is_causal": False}, "is_causal False: True is supported"),
        ("jina-v3", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling .*: None is supported"),
        ("albert", {"num_hidden_groups": 9}, "num_hidden_groups is 9: .* at most 5"),
        ("jina-v3", {"type_vocab_size": 2}, "type_vocab_size 2: 1 is supported"),
    ],
)
def test_settings_that_are_not_reproduced_are_refused_by_name(
    tmp_path: Path, name: str, settings: Settings, message: str
) -> None:
    model = model_named(name)
    with pytest.raises(UnsupportedModel, match=message):
        read(change(save(draw(model), model, tmp_path), **settings))


def test_a_chat_model_is_no_embedding_unless_asked_for(tmp_path: Path) -> None:
    model = model_named("qwen3")
    folder = change(save(draw(model), model, tmp_path), architectures=["Qwen3ForCausalLM"])
    with pytest.raises(UnsupportedModel, match="Qwen3ForCausalLM, which is for none of the tasks .*--task embedding"):
        read(folder)
    assert read_checkpoint(Folder(folder, "chat"), task="embedding").encoder.config.causal


@pytest.mark.parametrize("name", ["qwen3", "eurobert", "albert"])
def test_classifiers_give_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model = model_named(name)
    more: Settings = {"classifier_pooling": "mean"} if name == "eurobert" else {}
    theirs = draw(model, auto=AutoModelForSequenceClassification, num_labels=3, pad_token_id=0, **more)
    encoder = read(save(theirs, model, tmp_path)).encoder
    ids, _ = ids_and_types(model, 2, 12)
    mask = torch.arange(12) < torch.tensor([12, 7])[:, None]
    with torch.inference_mode():
        expected = theirs(ids * mask, attention_mask=mask.long()).logits
        found = encoder(ids, torch.tensor([12, 7])).task_output
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
