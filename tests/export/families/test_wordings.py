"""config.json in every wording that a family's checkpoints come in describes one network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from model.encoder import Encoder
from tests.family_models import MODELS, FamilyModel, draw, ids_and_types, read, save

Settings = dict[str, Any]


def older_modernbert(config: Settings) -> Settings:
    """Of `transformers` before 5."""
    del config["layer_types"], config["rope_parameters"]
    return {**config, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}


def ettin(config: Settings) -> Settings:
    """Of Ettin and mmBERT, whose files name their positions otherwise."""
    return {**older_modernbert(config), "position_embedding_type": "sans_pos"}


def modernbert_without_local_base(config: Settings) -> Settings:
    """No base of their own for local layers: they have the global one."""
    return {**older_modernbert(config), "global_rope_theta": 10000.0, "local_rope_theta": None}


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
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "causal": False,
        "use_rms_norm": False,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "max_trained_positions": 20,
    }


def both_nomic(config: Settings) -> Settings:
    """Both wordings at once, as `transformers` leaves it after saving an older checkpoint."""
    return {**own_nomic(config), **config}


def own_gte(config: Settings) -> Settings:
    """Of the model's own code."""
    theta = config.pop("rope_parameters")["rope_theta"]
    return {**config, "model_type": "new", "rope_theta": theta, "rope_scaling": None, "layer_norm_type": "layer_norm"}


def saved(name: str, folder: Path) -> tuple[FamilyModel, PreTrainedModel]:
    model = next(model for model in MODELS if model.name == name)
    theirs = draw(model)
    save(theirs, model, folder)
    return model, theirs


def reword(folder: Path, change: Callable[[Settings], Settings]) -> Encoder:
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return read(folder).encoder


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("modernbert", older_modernbert),
        ("modernbert", ettin),
        ("nomic", own_nomic),
        ("nomic", both_nomic),
        ("gte", own_gte),
    ],
)
def test_describes_the_same_network(tmp_path: Path, name: str, change: Callable[[Settings], Settings]) -> None:
    saved(name, tmp_path)
    expected = read(tmp_path).encoder
    found = reword(tmp_path, change)
    assert found.config == expected.config
    for tensor, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[tensor], value), tensor


def test_local_layers_without_a_base_of_their_own_have_the_global_one(tmp_path: Path) -> None:
    saved("modernbert", tmp_path)
    config = reword(tmp_path, modernbert_without_local_base).config
    assert (config.rope_theta, config.local_rope_theta, config.local_layers) == (10000.0, 10000.0, (1, 2))


@pytest.mark.parametrize("name", ["nomic", "gte"])
def test_tensors_are_known_by_the_names_that_transformers_gives_them(tmp_path: Path, name: str) -> None:
    _, theirs = saved(name, tmp_path)
    expected = read(tmp_path).encoder.state_dict()
    theirs.save_pretrained(tmp_path, save_original_format=False)
    found = read(tmp_path).encoder.state_dict()
    assert all(torch.equal(found[tensor], value) for tensor, value in expected.items())


def test_dynamic_frequencies_are_plain_up_to_the_trained_length(tmp_path: Path) -> None:
    saved("nomic", tmp_path)
    config = reword(tmp_path, lambda config: {**own_nomic(config), "rotary_scaling_factor": 2}).config
    assert (config.max_positions, config.rope_theta, config.rope_divisor) == (20, 1000.0, 1.0)


def test_dynamic_frequencies_are_plain_in_the_words_of_transformers_too(tmp_path: Path) -> None:
    saved("nomic", tmp_path)
    parameters = {"rope_type": "dynamic", "type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}
    config = reword(tmp_path, lambda config: {**config, "rope_parameters": parameters}).config
    assert (config.rope_theta, config.rope_divisor) == (1000.0, 1.0)


def test_ntk_scaling_of_gte_is_that_of_its_source(tmp_path: Path) -> None:
    """kexue.fm/archives/9706, equation 6: frequency i is theta^(-2i/K) f^(-2(i+1)/K); the lowest is divided by f."""
    model, theirs = saved("gte", tmp_path)
    theta, factor, size = 500.0, 4.0, 8
    scaled = {"rope_theta": theta, "rope_scaling": {"type": "ntk", "factor": factor}}
    ours = reword(tmp_path, lambda config: {**own_gte(config), **scaled})
    pairs = torch.arange(size // 2, dtype=torch.float64)
    frequencies = theta ** (-2 * pairs / size) * factor ** (-2 * (pairs + 1) / size)
    setattr(theirs.rotary_emb, "inv_freq", frequencies.float())  # noqa: B010 - torch types attributes as tensors
    ids, _ = ids_and_types(model, 1, 40)
    with torch.inference_mode():
        expected = theirs(ids).last_hidden_state
        found = ours.use("eager")(ids, torch.tensor([40])).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_linear_scaling_divides_every_frequency(tmp_path: Path) -> None:
    model, theirs = saved("gte", tmp_path)
    scaled = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    ours = reword(tmp_path, lambda config: {**config, "rope_parameters": scaled})
    theirs = type(theirs).from_pretrained(tmp_path, attn_implementation="eager")
    ids, _ = ids_and_types(model, 1, 40)
    with torch.inference_mode():
        expected = theirs(ids).last_hidden_state
        found = ours.use("eager")(ids, torch.tensor([40])).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
