"""A checkpoint of an unknown or half-known family is refused with what is missing, never read in part."""

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.utils import logging

from export.checkpoint import FAMILIES
from export.errors import ExportError, UnsupportedModel
from export.families.family import REQUIRED
from tests.family_models import MODELS, NAMED, FamilyModel, draw, ids_and_types, project, read, save

FolderOf = Callable[[str], Path]
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
            UnsupportedModel, match="expected a whole number|is not a multiple of|buckets|: 1 is supported"
        ):
            read(tmp_path)


NOMIC_OWN = {"rotary_emb_fraction": 1.0, "activation_function": "swiglu", "n_embd": 32}
NO_BIAS = dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False)
BASE = {"rope_type": "default", "rope_theta": 1e4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 2.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("roberta", {"pad_token_id": None}, "config.json is malformed: TypeError"),
    ("roberta", {"max_position_embeddings": 2}, "max_positions is 0: expected a whole number"),
    ("distilbert", {"num_attention_heads": 8}, "says n_heads 4 and num_attention_heads 8: which is right"),
    ("distilbert", {"activation": "absent", "hidden_act": "relu"}, "says hidden_act, which may change the network"),
    ("deberta", {"conv_kernel_size": 3}, "conv_kernel_size 3: 0 is supported"),
    ("qwen3", {"use_bidirectional_attention": True}, "use_bidirectional_attention True: False, None is supported"),
    ("llama", {"use_bidirectional_attention": True}, "use_bidirectional_attention True: False, None is supported"),
    ("llama", {"model_type": "llama_bidirec", "pooling": "weighted_avg"}, "pooling 'weighted_avg': 'avg' is supported"),
    ("bert", {"model_type": "mamba"}, "says model_type 'mamba': this version knows albert, bert"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key': 'absolute', None"),
    ("bert", {"is_decoder": True}, "is_decoder True: False is supported"),
    ("bert", {"auto_map": {"AutoModel": "modeling.MyBert"}}, "auto_map names modeling.MyBert as AutoModel: code of a"),
    ("bert", {"auto_map": {"AutoTokenizer": [None, "mine.Fast"]}}, "auto_map names mine.Fast as AutoTokenizer"),
    ("bert", {"hidden_act": "tanh"}, "hidden_act 'tanh': one of gelu"),
    (
        "bert",
        {"quantization_config": {"bits": 4}},
        "its weights are quantised (quantization_config): name the checkpoint",
    ),
    ("bert", {"num_attention_heads": 5}, "hidden_size 32 is not a multiple of 5 heads"),
    ("bert", {"vocab_size": "absent"}, "embeddings.token.weight: expected (30522, 32), found"),
    ("bert", {"vocab_size": -1}, "vocab_size is -1"),
    ("bert", {"num_attention_heads": 0}, "config.json is malformed: ZeroDivisionError"),
    ("bert", {"num_hidden_layers": "3"}, "num_hidden_layers is '3': expected a whole number of at least 1"),
    ("bert", {"hidden_act": ["gelu"]}, "config.json is malformed: TypeError"),
    ("bert", {"pruned_heads": [1]}, "config.json is malformed: AttributeError"),
    ("bert", {"num_hidden_layers": 2}, "tensors do not fit the configuration, such as layers.2"),
    ("bert", {"intermediate_size": 63}, "expected (32, 63), found (32, 64)"),
    ("bert", {"surprise": 1, "another": 2}, "says another, surprise, which may change the network: install"),
    ("electra", {"embedding_size": -3}, "token_size is -3"),
    ("mpnet", {"pruned_heads": {"0": [1]}}, "pruned_heads {'0': [1]}: None, {} is supported"),
    ("modernbert", {"layer_types": ["full_attention", "chunked_attention"] * 2}, "expected full_attention or sliding_"),
    ("modernbert", {"layer_types": ["full_attention"] * 3}, "for each of 4 layers"),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "rope_type 'longrope': one of"),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "rope_theta is -1: expected a"),
    ("modernbert", {"rope_parameters": {"sliding_attention": {"rope_theta": None}}}, "rope_theta None: expected a"),
    ("modernbert", {"rope_parameters": {"chunked": {}}}, "rope_parameters has chunked: full_attention and sliding"),
    ("modernbert", {"rope_scaling": {"type": "ntk"}}, "rope_scaling {'type': 'ntk'}: None is supported"),
    ("modernbert", {"sliding_window": 5}, "says sliding_window 5 and half of local_attention 4.0: which"),
    ("modernbert", {"global_rope_theta": 9.0}, "rope_theta 9.0 and rope_theta of rope_parameters 160000.0: which"),
    ("modernbert", {"norm_bias": "no"}, "norm_bias is 'no': expected true or false"),
    ("nomic", {"prenorm": True}, "prenorm True: False is supported"),
    ("nomic", {"use_rms_norm": True}, "use_rms_norm True: False, None is supported"),
    ("nomic", {"moe_every_n_layers": 2}, "moe_every_n_layers 2: None, 0 is supported"),
    ("nomic", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved True"),
    ("nomic", {**NOMIC_OWN, "rotary_emb_fraction": 0.5}, "rotary_emb_fraction 0.5: 1 is supported"),
    ("nomic", {**NOMIC_OWN, **NO_BIAS, "activation_function": "glu"}, "activation_function 'glu': one of swiglu"),
    ("nomic", NOMIC_OWN, "does not say 'qkv_proj_bias'"),
    ("nomic", {"rotary_emb_base": 10000}, "rotary_emb_base 10000 and rope_theta 1000.0: which is"),
    ("nomic", {"n_embd": 32, "n_layer": 4, "rotary_emb_fraction": 1.0}, "n_layer 4 and num_hidden_layers 3: which is"),
    ("nomic", {"layer_norm_eps": "absent", "layer_norm_epsilon": 1e-5}, "rotary_emb_fraction 0: 1 is"),
    ("nomic", {"rope_scaling": {"factor": 2.0}}, "rope_scaling {'factor': 2.0}: None is supported"),
    ("nomic", {"rope_parameters": {"rope_theta": 10.0, "beta": 1}}, "rope_parameters of type default has beta"),
    ("nomic", {"rope_parameters": {**DYNAMIC, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5: 1 is"),
    ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm': 'layer_norm' is supported"),
    ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type 'absolute': 'rope' is supported"),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale True: False is supported"),
    ("gte", {"rope_parameters": "absent"}, "rope_theta is None: expected a positive"),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 2}}, "and rope_scaling {'type': 'ntk', 'factor': 2}: which is"),
    ("gte", {"rope_parameters": "absent", "rope_theta": 9.0, "rope_scaling": {"type": "yarn"}}, "none, or"),
    ("qwen3", {"num_key_value_heads": 3}, "expected a multiple of its 3 key and value heads"),
    ("qwen3", {"use_sliding_window": True, "sliding_window": "absent"}, "does not say 'sliding_window'"),
    ("deberta", {"norm_rel_ebd": ["layer_norm"]}, "config.json and the weights do not go together: AttributeError"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0: None is supported"),
    ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_parameters and rope_scaling: which is"),
    ("gemma3", {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": BASE}}, "scaled by different"),
    ("gemma2", {"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config has sliding_window: head_dim"),
    ("gemma2", {"per_layer_config": {"1": {"head_dim": 8}}}, "heads of sizes (6, 8, 6): one for each kind of"),
    ("gemma3", {"is_causal": False}, "is_causal False: True is supported"),
    ("t5", {"dense_act_fn": "silu"}, "dense_act_fn 'silu': 'relu' is supported"),
    ("t5", {"feed_forward_proj": "gated-swish2"}, "feed_forward_proj 'swish2': one of gelu"),
    ("jina-v3", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "'factor': 4.0}: None is supported"),
    ("albert", {"num_hidden_groups": 9}, "num_hidden_groups is 9: "),
]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """A folder of each network, drawn when a test asks for it."""
    return cache(lambda name: save(draw(NAMED[name]), NAMED[name], tmp_path_factory.mktemp(name)))


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
    folder_of: FolderOf, tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=re.escape(message)):
        read(changed(folder_of(name), change, tmp_path))


TENSORS: list[tuple[str, str, dict[str, tuple[int, ...]], str]] = [  # network, tensor taken out, shapes of those put in
    ("roberta", "", {"encoder.layer.0.attention.self.distance_embedding.weight": (33,)}, "of an unknown part"),
    ("roberta", "embeddings.position_embeddings.weight", {}, "no 'embeddings.position.weight', which joins other"),
    ("roberta", "embeddings.token_type_embeddings.weight", {}, "no 'embeddings.token_type.weight', which joins other"),
    ("deberta", "encoder.rel_embeddings.weight", {}, "no 'positions.table.weight', which joins other tensors"),
    ("electra", "embeddings_project.weight", {}, "such as embeddings.to_hidden.weight: expected"),
    ("electra-as-wide", "", {"embeddings_project.weight": (33,)}, "such as embeddings.to_hidden.weight: expected none"),
    ("modernbert", "", {"layers.0.attn_norm.weight": (33,)}, "such as layers.0.attention_norm.weight: expected none"),
    ("nomic", "", {"encoder.layers.0.attn.Wqkv.bias": (33,)}, "expected none, found (11,)"),
    ("nomic", "", {"encoder.layers.0.attn.Wqkv.weight": ()}, "config.json and the weights do not go together: Runtime"),
    ("nomic", "", {"encoder.layers.0.attn.Wqkv.weight": (97, 32)}, "expected (32, 32), found (33, 32)"),
    ("nomic", "", {"layers.0.mlp.gate_proj.weight": (33,)}, "holds layers.0.feed_forward.gate.weight twice"),
    ("gte", "encoder.layer.1.mlp.up_gate_proj.weight", {}, "2 tensors do not fit the configuration"),
]


def with_tensors(folder: Path, to: Path, added: dict[str, tuple[int, ...]], removed: str = "") -> Path:
    """The same files with tensors of ones put in, and one taken out."""
    path = changed(folder, {}, to) / "model.safetensors"
    tensors = {**load_file(path), **{name: torch.ones(shape) for name, shape in added.items()}}
    tensors.pop(removed, None)
    path.unlink()
    save_file(tensors, path)
    return to


@pytest.mark.parametrize("name", ["qwen3", "eurobert", "gemma3"])
def test_frequencies_in_old_files_are_no_weights(folder_of: FolderOf, tmp_path: Path, name: str) -> None:
    names = ("layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq", "rotary_emb_local.inv_freq")
    read(with_tensors(folder_of(name), tmp_path, dict.fromkeys(names, (4,))))


@pytest.mark.parametrize(("name", "removed", "added", "message"), TENSORS, ids=str)
def test_tensors_that_are_missing_or_left_over(
    folder_of: FolderOf, tmp_path: Path, name: str, removed: str, added: dict[str, tuple[int, ...]], message: str
) -> None:
    with_tensors(folder_of(name), tmp_path, added, removed)
    with pytest.raises(UnsupportedModel, match=re.escape(message)):
        read(tmp_path)


TOLERANCE = 2e-4
LONGEST = 24
SEED = int(os.environ.get("FIELDS_SEED", "0"))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
OTHERS: dict[str, Any] = {  # fields that no file of the family's own has
    "is_causal": False,
    "is_decoder": True,
    "rope_scaling": YARN,
    "rope_theta": 77.0,
    "sliding_window": 3,
    "dense_act_fn": "silu",
    "is_gated_act": True,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "head_dim": 4,
    "layer_norm_eps": 0.1,
    "rms_norm_eps": 0.1,
    "hidden_act": "relu",
    "global_attn_every_n_layers": 2,
    "partial_rotary_factor": 0.5,
    "local_rope_theta": 50.0,
    "position_embedding_type": "relative_key",
}
REMOVED = object()


def changes(config: dict[str, Any], generator: random.Random) -> Iterator[tuple[str, Any]]:
    """A field and its new value; removed, too."""
    for name, value in {**dict.fromkeys(OTHERS), **config}.items():
        if name in ("model_type", "architectures", "dtype", "transformers_version", "id2label", "label2id"):
            continue
        if name in config:
            yield name, REMOVED
        if name in OTHERS:
            yield name, OTHERS[name]
        elif isinstance(value, bool):
            yield name, not value
        elif isinstance(value, int | float):
            yield name, type(value)(value * 2 + generator.choice([0, 1, 2]))
        elif isinstance(value, str):
            yield name, generator.choice(["relu", "silu", "gelu", "gated-silu", "mean"])
        elif isinstance(value, list):
            yield name, value[::-1]
        elif isinstance(value, dict) and "rope_theta" in value:
            yield name, {**value, "rope_theta": 50.0}


def difference(folder: Path, model: FamilyModel) -> float | None:
    """Between the library's hidden states and ours; None if either refuses the folder."""
    try:
        ours = read(folder).encoder.use("eager")
    except ExportError:
        return None
    ids, types = ids_and_types(model, 1, LONGEST)
    inputs = {"token_type_ids": types} if ours.config.type_vocab_size else {}
    try:
        theirs = model.auto.from_pretrained(folder, attn_implementation="eager").eval()
        with torch.inference_mode():
            expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs)[0]
    except Exception:  # what the library refuses need not be the same
        return None
    with torch.inference_mode():
        found = ours(ids, torch.tensor([LONGEST]), token_type_ids=inputs.get("token_type_ids")).last_hidden_state
        found = project(ours, found)
    return float((expected - found).abs().max())


def check(model: FamilyModel, folder: Path, share: float) -> list[str]:
    """Changes that are neither refused nor reproduced."""
    logging.set_verbosity_error()
    save(draw(model), model, folder)
    path, generator = folder / "config.json", random.Random(SEED)  # noqa: S311 - no secret
    config = {**AutoConfig.for_model(model.model_type, **model.settings).to_dict(), **json.loads(path.read_text())}
    wrong = []
    for name, value in changes(config, generator):
        if generator.random() > share:
            continue
        changed = {key: kept for key, kept in config.items() if key != name}
        path.write_text(json.dumps(changed if value is REMOVED else {**changed, name: value}))
        found = difference(folder, model)
        if found is not None and not found <= TOLERANCE:
            wrong.append(f"{name} {'removed' if value is REMOVED else value}: {found:.2g}")
    return wrong


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "qwen3", "gemma3", "gemma2", "t5"])
def test_some_fields_are_reproduced_or_refused(name: str, tmp_path: Path) -> None:
    assert not check(NAMED[name], tmp_path, 0.1), f"FIELDS_SEED={SEED}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_field_is_reproduced_or_refused(model: FamilyModel, tmp_path: Path) -> None:
    assert not check(model, tmp_path, 1.0), f"FIELDS_SEED={SEED}"


@pytest.mark.parametrize("kind", sorted(FAMILIES.keys() & CONFIG_MAPPING.keys()))
def test_a_field_that_is_left_out_is_what_the_library_takes(kind: str) -> None:
    theirs, own = CONFIG_MAPPING[kind]().to_dict(), {name: alias for alias, name in FAMILIES[kind].aliases.items()}
    ours = {name: value for name, value in FAMILIES[kind].settings.items() if value not in (REQUIRED, None)}
    assert ours == {name: theirs.get(name, theirs.get(own.get(name), value)) for name, value in ours.items()}
