"""NomicBERT (nomic-embed-text-v1 and v1.5): rotary positions, SwiGLU, hardly any bias, norms after.

config.json comes in the words of the model's own code (`n_embd`), in those of `transformers` 5 (`hidden_size`), or in
both. Frequencies that its code rescales for texts longer than it was trained on ("dynamic") are the plain ones up to
that length, so such a network is read with that length as its longest.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert
from export.families.naming import QKV, TRANSFORMERS_LAYER, rename
from export.families.rope import Rope, read_rope
from export.families.settings import require_settings
from export.families.task_layers import NORM, ReadSettings, TaskLayers
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("nomic_bert",)
REMOTE_CLASSES = ("NomicBert",)

NAMES: Mapping[str, str | tuple[str, ...]] = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "emb_ln": "embeddings.norm",
    "encoder.layers.{}.attn.Wqkv": QKV,
    "encoder.layers.{}.attn.out_proj": "layers.{}.attention.output",
    "encoder.layers.{}.norm1": "layers.{}.attention_norm",
    "encoder.layers.{}.mlp.fc11": "layers.{}.feed_forward.up",
    "encoder.layers.{}.mlp.fc12": "layers.{}.feed_forward.gate",
    "encoder.layers.{}.mlp.fc2": "layers.{}.feed_forward.down",
    "encoder.layers.{}.norm2": "layers.{}.feed_forward_norm",
    "embeddings.LayerNorm": "embeddings.norm",  # as `transformers` names it
    **TRANSFORMERS_LAYER,
}
PREFIXES = ("bert.", "nomic_bert.", "model.")
IGNORED = ("pooler.", "cls.", "classifier.")


def _in_words_of_transformers(read: ReadSettings) -> ReadSettings:
    """Refuses heads of the model's own code, which is never run: those of `transformers` are what these are held to."""

    def checked(config: Mapping[str, Any]) -> dict[str, Any]:
        if "n_embd" in config:
            raise UnsupportedModel(
                "layers for another task than embedding of NomicBERT's own code are not supported: those of "
                "transformers 5 are, whose config.json says hidden_size in place of n_embd"
            )
        return read(config)

    return checked


CLASSIFIER = TaskLayers(bert.CLASSIFIER.names, _in_words_of_transformers(bert.CLASSIFIER.read_settings))
MASKED_LM = TaskLayers(
    {**bert.MASKED_LM.names, "cls.predictions.transform.layer_norm": NORM},
    _in_words_of_transformers(bert.MASKED_LM.read_settings),
)

OWN_SETTINGS: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
}
BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
ACTIVATIONS: Mapping[str, str] = {"swiglu": "silu", "geglu": "gelu"}
REPRODUCED: Mapping[str, tuple[object, ...]] = {
    "prenorm": (False,),
    "parallel_block": (False,),
    "parallel_block_tied_norm": (False,),
    "use_rms_norm": (False, None),
    "causal": (False,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "moe_every_n_layers": (None, 0),
}


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a NomicBERT config.json, in either wording.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, REPRODUCED)
    settings = _own_settings(config) if "n_embd" in config else dict(config)
    read = bert.read_config(settings, pooling)
    head_size = settings.get("head_dim") or read.d_k
    rope = _read_rope(config)
    attention_bias, up_bias, down_bias = (settings.get(name, False) for name in BIASES)
    return replace(
        read,
        d_k=head_size,
        d_v=head_size,
        gated=True,
        attention_bias=attention_bias,
        output_bias=attention_bias,
        up_bias=up_bias,
        down_bias=down_bias,
        positions="none",
        attention_positions="rotary",
        **rope.settings(),
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors."""
    del config  # names are all there is to change
    return rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)


def _own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the model's own code in BERT's words; what that code has no default for must be there."""
    if config["rotary_emb_fraction"] != 1:
        raise UnsupportedModel(f"rotary_emb_fraction {config['rotary_emb_fraction']}: 1 is supported")
    activation = config["activation_function"]
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"activation_function {activation!r}: one of {', '.join(ACTIVATIONS)} is supported")
    multiple = config.get("pad_vocab_size_multiple", 1)
    return {
        **{name: config[name] for name in BIASES},  # absent, its code takes them for true
        **{ours: config[theirs] for ours, theirs in OWN_SETTINGS.items()},
        "hidden_act": ACTIVATIONS[activation],
        "vocab_size": -(-config["vocab_size"] // multiple) * multiple,
        "type_vocab_size": config["type_vocab_size"],
        "max_position_embeddings": config["max_trained_positions" if _is_dynamic(config) else "n_positions"],
    }


def _read_rope(config: Mapping[str, Any]) -> Rope:
    parameters = dict(config.get("rope_parameters") or {})
    if parameters.get("rope_type") == "dynamic":
        parameters = {name: value for name, value in parameters.items() if name not in ("rope_type", "type", "factor")}
    rope = read_rope(parameters, theta=config.get("rotary_emb_base")) if parameters else None
    own = read_rope({}, theta=config["rotary_emb_base"]) if "rotary_emb_base" in config else None
    if rope and own and rope != own:
        raise UnsupportedModel(
            f"rotary_emb_base says {own.theta} and rope_parameters {rope.theta}: which one is right?"
        )
    if found := rope or own:
        return found
    raise KeyError("rotary_emb_base")


def _is_dynamic(config: Mapping[str, Any]) -> bool:
    return bool(config.get("rotary_scaling_factor")) or (
        (config.get("rope_parameters") or {}).get("rope_type") == "dynamic"
    )
