"""Every family's encoder equals `transformers` on random weights, in every wording that its config.json comes in."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from export.errors import UnsupportedModel
from model.encoder import Encoder
from tests.family_models import (
    MODELS,
    NAMED,
    FamilyModel,
    Pair,
    compare_whole,
    draw,
    ids_and_types,
    project,
    read,
    run_ours,
    run_theirs,
    save,
)
from tests.jina_bert_reference import classify, compare, draw_tensors, encode
from tests.tokenizers import TOKENIZERS

TOLERANCE = 1e-5
BATCHES = [([1], 0), ([3, 9, 4], 5), ([40, 1], 0)]  # lengths, and tokens of padding behind the longest


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model: FamilyModel = request.param
    theirs = draw(model)
    return model, theirs, read(save(theirs, model, tmp_path_factory.mktemp(model.name))).encoder


@pytest.mark.parametrize(("lengths", "padding"), BATCHES, ids=str)
def test_hidden_states_and_attention_equal_transformers(pair: Pair, lengths: list[int], padding: int) -> None:
    model, theirs, ours = pair
    assert ours.config.max_positions == model.longest  # without those that are never read
    lengths = [min(length, model.longest) for length in lengths]
    ids, types = ids_and_types(model, len(lengths), min(max(lengths) + padding, model.longest))
    expected = run_theirs(theirs, ids, types, lengths, output_attentions=True)
    eager, sdpa = (run_ours(ours.use(name), ids, types, lengths) for name in ("eager", "sdpa"))
    for row, length in enumerate(lengths):
        for found in (eager, sdpa):
            hidden = project(ours, found.last_hidden_state)[row, :length], expected.last_hidden_state[row, :length]
            torch.testing.assert_close(*hidden, atol=TOLERANCE, rtol=0)
        for weights, reference in zip(eager.attentions, expected.attentions, strict=True):
            assert weights is not None
            torch.testing.assert_close(weights[row, :, :length], reference[row, :, :length], atol=TOLERANCE, rtol=0)


LONG = 320


def test_what_the_original_pads_at_the_left_is_padded_at_the_right_here(tmp_path: Path) -> None:
    model = NAMED["qwen3"]
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
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ],
    ids=str,
)
def test_scaled_rotary_positions_are_those_of_transformers(tmp_path: Path, parameters: dict[str, Any]) -> None:
    model = NAMED["eurobert"]
    theirs = draw(model, max_position_embeddings=LONG, head_dim=16, rope_parameters={"rope_theta": 5e3, **parameters})
    ours = read(save(theirs, model, tmp_path)).encoder
    compare_whole(theirs, ours, ids_and_types(model, 1, LONG)[0])


def test_the_text_part_of_a_network_for_images_and_sound_is_read(tmp_path: Path) -> None:
    places = {"image_token_id": 7, "audio_token_id": 9, "video_token_id": 11}
    model = NAMED["gemma2"]
    whole = replace(model, model_type="embedding_gemma2", settings={"text_config": model.settings, **places})
    theirs = draw(whole)
    ours = read(save(theirs, whole, tmp_path)).encoder
    ids = torch.tensor([[5, 7, 30, 9, 8, 11, 40]])
    with torch.inference_mode():
        expected = theirs(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        found = ours(ids, torch.tensor([7]))
    torch.testing.assert_close(project(ours, found.last_hidden_state), expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(found.pooled, expected.mean(dim=1), atol=TOLERANCE, rtol=0)


Settings = dict[str, Any]
Change = Callable[[Settings], Settings]


def said(**settings: Any) -> Change:
    """Other settings; None removes one."""
    return lambda config: {name: value for name, value in {**config, **settings}.items() if value is not None}


# Of `transformers` before 5.
older_modernbert = said(
    **dict.fromkeys(("layer_types", "rope_parameters")),
    global_attn_every_n_layers=3,
    global_rope_theta=160000.0,
    local_rope_theta=10000.0,
)


def own_nomic(config: Settings) -> Settings:
    """Of the model's own code, as nomic-embed-text-v1.5 has it."""
    return {
        "model_type": "nomic_bert",
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 3,
        "n_inner": 64,
        "n_positions": 40,
        "vocab_size": 385,
        "pad_vocab_size_multiple": 80,
        "type_vocab_size": 2,
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "max_trained_positions": 20,
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "causal"), False),
        **dict.fromkeys(("use_rms_norm", "rotary_emb_interleaved"), False),
        **dict.fromkeys(("rotary_emb_scale_base", "rotary_scaling_factor")),
    }


def own_gte(config: Settings) -> Settings:
    """Of the model's own code."""
    theta = config.pop("rope_parameters")["rope_theta"]
    return {**config, "model_type": "new", "rope_theta": theta, "rope_scaling": None, "layer_norm_type": "layer_norm"}


def reword(folder: Path, change: Change) -> Encoder:
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return read(folder).encoder


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
PERIOD = ["sliding_attention", "full_attention", "sliding_attention"]
WORDINGS: list[tuple[str, Settings, Change]] = [  # network, how it is drawn, how its file is reworded
    ("bert", {}, lambda config: {**config, "position_embedding_type": None, "hidden_act": "gelu_python"}),
    ("modernbert", {}, older_modernbert),
    ("modernbert", {}, lambda config: older_modernbert({**config, "position_embedding_type": "sans_pos"})),  # Ettin's
    ("nomic", {}, own_nomic),
    ("nomic", {}, lambda config: {**own_nomic(config), **config}),  # both, as `transformers` saves an older checkpoint
    ("gte", {}, own_gte),
    (
        "qwen3",
        {"rope_parameters": {"rope_theta": 700.0, **YARN}},
        said(rope_parameters=None, rope_theta=700.0, rope_scaling=YARN, layer_types=None),
    ),
    (
        "gemma3",
        {"layer_types": PERIOD},
        said(
            rope_parameters=None, layer_types=None, sliding_window_pattern=2, rope_theta=1e6, rope_local_base_freq=1e4
        ),
    ),
    ("gemma2", {}, said(per_layer_config=None, global_head_dim=10, num_global_key_value_heads=1)),
    ("eurobert", {}, said(model_type="jina_embeddings_v5", is_decoder=False, task_names=["retrieval"])),
    ("qwen3", {}, said(model_type="jina_embeddings_v5", is_decoder=True, task_names=["retrieval"])),
    ("qwen3", {}, said(model_type="jina_embeddings_v5", is_decoder=None)),
]


@pytest.mark.parametrize(("name", "settings", "change"), WORDINGS, ids=[name for name, *_ in WORDINGS])
def test_describes_the_same_network(tmp_path: Path, name: str, settings: Settings, change: Change) -> None:
    expected = read(save(draw(NAMED[name], **settings), NAMED[name], tmp_path)).encoder
    found = reword(tmp_path, change)
    assert found.config == expected.config
    for tensor, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[tensor], value), tensor


def saved(name: str, folder: Path) -> PreTrainedModel:
    theirs = draw(NAMED[name])
    save(theirs, NAMED[name], folder)
    return theirs


NO_LOCAL_BASE = {"global_rope_theta": 10000.0, "local_rope_theta": None}


def test_local_layers_without_a_base_of_their_own_have_the_global_one(tmp_path: Path) -> None:
    saved("modernbert", tmp_path)
    config = reword(tmp_path, lambda config: {**older_modernbert(config), **NO_LOCAL_BASE}).config
    assert (config.rope_theta, config.local_rope_theta, config.local_layers) == (10000.0, 10000.0, (1, 2))


@pytest.mark.parametrize("name", ["nomic", "gte"])
def test_tensors_are_known_by_the_names_that_transformers_gives_them(tmp_path: Path, name: str) -> None:
    theirs = saved(name, tmp_path)
    expected = read(tmp_path).encoder.state_dict()
    theirs.save_pretrained(tmp_path, save_original_format=False)
    found = read(tmp_path).encoder.state_dict()
    assert all(torch.equal(found[tensor], value) for tensor, value in expected.items())


DYNAMIC = {"rope_type": "dynamic", "type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("change", "longest"),
    [(lambda config: {**own_nomic(config), "rotary_scaling_factor": 2}, 20), (said(rope_parameters=DYNAMIC), 40)],
    ids=["own", "transformers"],
)
def test_dynamic_frequencies_are_plain_up_to_the_trained_length(tmp_path: Path, change: Change, longest: int) -> None:
    saved("nomic", tmp_path)
    config = reword(tmp_path, change).config
    assert (config.max_positions, config.rope_theta, config.rope_divisor) == (longest, 1000.0, 1.0)


def test_ntk_scaling_of_gte_is_that_of_its_source(tmp_path: Path) -> None:
    """kexue.fm/archives/9706, equation 6: frequency i is theta^(-2i/K) f^(-2(i+1)/K); the lowest is divided by f."""
    theirs = saved("gte", tmp_path)
    theta, factor, size = 500.0, 4.0, 8
    scaled = {"rope_theta": theta, "rope_scaling": {"type": "ntk", "factor": factor}}
    ours = reword(tmp_path, lambda config: {**own_gte(config), **scaled})
    pairs = torch.arange(size // 2, dtype=torch.float64)
    frequencies = theta ** (-2 * pairs / size) * factor ** (-2 * (pairs + 1) / size)
    setattr(theirs.rotary_emb, "inv_freq", frequencies.float())  # noqa: B010 - torch types attributes as tensors
    compare_whole(theirs, ours.use("eager"), ids_and_types(NAMED["gte"], 1, 40)[0])


JINA_BERT: Settings = {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "vocab_size": 400,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 60,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
NORMED = {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}}


def write(folder: Path, config: Settings) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(draw_tensors(config), folder / "model.safetensors")
    TOKENIZERS["wordpiece"]().save(str(folder / "tokenizer.json"))
    return folder


OWN = {"AutoConfig": "jinaai/x--configuration_bert.JinaBertConfig", "AutoModel": "jinaai/x--modeling.JinaBertModel"}
CHANGES: tuple[Settings, ...] = ({}, {"num_attention_heads": 12}, {"num_attention_heads": 3}, NORMED, {"auto_map": OWN})


@pytest.mark.parametrize("change", [*CHANGES, {"feed_forward_type": "reglu"}], ids=str)
def test_equals_its_publications_written_out(tmp_path: Path, change: Settings) -> None:
    config = {**JINA_BERT, **change}
    encoder = read(write(tmp_path, config)).encoder
    for lengths, sequence in (([7], 7), ([1], 1), ([5, 2, 1], 5), ([3, 9, 4], 14), ([50, 1], 60)):
        compare(encoder, config, draw_tensors(config), lengths, sequence)


def test_a_reranker_scores_by_berts_layers(tmp_path: Path) -> None:
    config = {
        **JINA_BERT,
        **NORMED,
        "architectures": ["JinaBertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
    }
    encoder, ids, types = read(write(tmp_path, config)).encoder, [2, 9, 3, 7, 3], [0, 0, 0, 1, 1]
    hidden, _ = encode(config, draw_tensors(config), ids, types)
    with torch.inference_mode():
        found = encoder(torch.tensor([ids]), torch.tensor([5]), token_type_ids=torch.tensor([types]))
    np.testing.assert_allclose(found.task_output[0], classify(draw_tensors(config), hidden), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_type": "original"}, "feed_forward_type 'original': one of geglu, reglu is supported"),
        ({"pruned_heads": {"0": [1], "1": [1], "2": [1]}}, "pruned_heads .* None, {} is supported"),
        ({"position_embedding_type": "rope"}, "says feed_forward_type, which may change the network"),
    ],
)
def test_refuses_settings_it_would_not_reproduce(tmp_path: Path, change: Settings, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**JINA_BERT, **change}))
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path)


def test_refuses_the_norms_of_a_variant_that_no_code_names(tmp_path: Path) -> None:
    (tmp_path / "normed").mkdir()
    folder = write(tmp_path / "normed", JINA_BERT | NORMED)
    (folder / "config.json").write_text(json.dumps(JINA_BERT))
    with pytest.raises(UnsupportedModel, match="do not fit the configuration, such as layers.0.attention.key_norm"):
        read(folder)
