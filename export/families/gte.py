"""BERT's network with other positions and a gated feed-forward, norms after: GTE, NomicBERT and JinaBERT v2.

GTE of 2024 and later (gte-base-en-v1.5, gte-multilingual-base): rotary positions, GeGLU. config.json comes as the
model's own code writes it (model type `new`) or as `transformers` 5 does (`gte`).

NomicBERT (nomic-embed-text-v1 and v1.5): rotary positions, SwiGLU, hardly any bias. config.json comes in the words of
the model's own code (`n_embd`), in those of `transformers` 5 (`hidden_size`), or in both. Frequencies that its code
rescales for texts longer than it was trained on ("dynamic") are the plain ones up to that length, the longest here.

JinaBERT v2 (jina-embeddings-v2-small-en and -base-en): ALiBi in both directions. Only its `position_embedding_type`
tells it from BERT. Its variant jina-bert-v2-qk-post-norm (jina-embeddings-v2-base-code) norms queries and keys, and has
a third norm a layer; only the name of its code tells it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.errors import UnsupportedModel
from export.families.bert import (
    BERT_CLASSIFIER,
    BERT_IGNORED,
    BERT_MASKED_LM,
    BERT_NAMES,
    BERT_PREFIXES,
    CAUSAL,
    COMMON,
    read_bert,
)
from export.families.family import (
    ENCODER,
    QKV,
    REQUIRED,
    TRANSFORMERS_LAYER,
    WHOLE_ROTATION,
    Family,
    TaskLayers,
    choose,
    dense,
    require_agreement,
    require_settings,
)
from export.families.rope import Rope, find_rope, read_rope
from model.config import EncoderConfig, Pooling

GTE_NAMES: Mapping[str, str | tuple[str, ...]] = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer.{}.attention.qkv_proj": QKV,
    "encoder.layer.{}.attention.q_proj": QKV[0],
    "encoder.layer.{}.attention.k_proj": QKV[1],
    "encoder.layer.{}.attention.v_proj": QKV[2],
    "encoder.layer.{}.attention.o_proj": "layers.{}.attention.output",
    "encoder.layer.{}.attn_ln": "layers.{}.attention_norm",
    "encoder.layer.{}.mlp.up_gate_proj": ("layers.{}.feed_forward.up", "layers.{}.feed_forward.gate"),
    "encoder.layer.{}.mlp.down_proj": "layers.{}.feed_forward.down",
    "encoder.layer.{}.mlp_ln": "layers.{}.feed_forward_norm",
    **TRANSFORMERS_LAYER,
}
BERT_WORDS: Mapping[str, Any] = {  # both codes of these families have defaults, and not the same ones
    **dict.fromkeys((*COMMON, "vocab_size", "type_vocab_size"), REQUIRED),
    **ENCODER,
}


def _read_gte_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    read = read_bert({**config, "position_embedding_type": "absolute"}, pooling)
    rope = _gte_read_rope(config, read.d_k)
    return replace(read, gated=True, up_bias=False, positions="none", attention_positions="rotary", **rope.settings())


def _gte_read_rope(config: Mapping[str, Any], d_k: int) -> Rope:
    """`rope_parameters`, or `rope_theta` with `rope_scaling`.

    Fixed NTK scaling by a factor f is theta * f, and frequencies divided by f^(2/K) (kexue.fm/archives/9706, equation
    6; so that the lowest frequency is divided by f, and the highest hardly changes).
    """
    if config.get("rope_parameters") is not None:
        return find_rope(config)
    theta, scaling = config["rope_theta"], config.get("rope_scaling")
    if scaling is None:
        return Rope(theta)
    if set(scaling) - {"type", "factor", "mixed_b"} or scaling.get("type") != "ntk" or scaling.get("mixed_b"):
        raise UnsupportedModel(f"rope_scaling {scaling}: none, or type ntk with a factor, is supported")
    return Rope(theta * scaling["factor"], scaling["factor"] ** (2 / d_k))


GTE = Family(
    model_types=("new", "gte"),
    settings={**BERT_WORDS, **dict.fromkeys(("rope_parameters", "rope_theta", "rope_scaling"))},
    requires={
        **CAUSAL,
        **WHOLE_ROTATION,
        "layer_norm_type": ("layer_norm",),
        "position_embedding_type": ("rope",),
        **dict.fromkeys(("logn_attention_scale", "logn_attention_clip1"), (False,)),
    },
    unread=("pack_qkv", "unpad_inputs", "use_memory_efficient_attention"),
    remote_classes=("New", "Gte"),
    names=GTE_NAMES,
    prefixes=("new.", "gte.", "model."),
    ignored=("pooler.", "lm_head.", "classifier.", "embeddings.rotary_emb.", "embeddings.position_ids"),
    classifier=BERT_CLASSIFIER,
    masked_lm=TaskLayers(
        {"lm_head.dense": "dense", "lm_head.layer_norm": "norm", "lm_head.norm": "norm", "lm_head.decoder": "decoder"},
        dense("gelu"),
    ),
    read_config=_read_gte_config,
)


NOMIC_BERT_NAMES: Mapping[str, str | tuple[str, ...]] = {
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


NOMIC_BERT_OWN: Mapping[str, str] = {  # names of the model's own code, which `transformers` does not read
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
}
NOMIC_BERT_BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
NOMIC_BERT_ACTIVATIONS: Mapping[str, str] = {"swiglu": "silu", "geglu": "gelu"}
NOMIC_BERT_REQUIRES: Mapping[str, tuple[object, ...]] = {
    **CAUSAL,
    **WHOLE_ROTATION,
    **dict.fromkeys(("prenorm", "parallel_block", "parallel_block_tied_norm", "causal"), (False,)),
    **dict.fromkeys(("rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx"), (False,)),
    **dict.fromkeys(("rope_scaling", "rotary_emb_scale_base"), (None,)),
    "position_embedding_type": (None, "absolute"),
    "use_rms_norm": (False, None),
    "scale_attn_weights": (True,),
    "moe_every_n_layers": (None, 0),
}


def _read_nomic_bert_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    settings = {**config, **_own_settings(config)} if NOMIC_BERT_OWN.keys() & config.keys() else dict(config)
    read = read_bert(settings, pooling)
    head_size = config["head_dim"] or read.d_k
    rope = _nomic_bert_read_rope(config)
    attention_bias, up_bias, down_bias = (settings.get(name, False) for name in NOMIC_BERT_BIASES)
    return replace(
        read,
        d_k=head_size,
        d_v=head_size,
        gated=True,
        **dict.fromkeys(("attention_bias", "output_bias"), attention_bias),
        up_bias=up_bias,
        down_bias=down_bias,
        positions="none",
        attention_positions="rotary",
        **rope.settings(),
    )


def _own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the model's own code in BERT's words; what that code has no default for must be there."""
    require_settings({"rotary_emb_fraction": 0, **config}, {"rotary_emb_fraction": (1,)})  # 0, absent, for its code
    multiple = config.get("pad_vocab_size_multiple", 1)
    kind = (config.get("rope_parameters") or {}).get("rope_type")
    is_dynamic = bool(config.get("rotary_scaling_factor")) or kind == "dynamic"
    return {
        **{name: config[name] for name in NOMIC_BERT_BIASES},  # absent, its code takes them for true
        "hidden_act": choose(config, "activation_function", NOMIC_BERT_ACTIVATIONS),
        "vocab_size": -(-config["vocab_size"] // multiple) * multiple,
        **{ours: config[theirs] for theirs, ours in NOMIC_BERT_OWN.items()},
        "max_position_embeddings": config["max_trained_positions" if is_dynamic else "n_positions"],
    }


def _nomic_bert_read_rope(config: Mapping[str, Any]) -> Rope:
    parameters = dict(config.get("rope_parameters") or {})
    if parameters.get("rope_type") == "dynamic":
        parameters = {name: value for name, value in parameters.items() if name not in ("rope_type", "type", "factor")}
    rope = read_rope(parameters, theta=config.get("rotary_emb_base")) if parameters else None
    own = read_rope({}, theta=config["rotary_emb_base"]) if "rotary_emb_base" in config else None
    if rope and own:
        require_agreement({"rotary_emb_base": own.theta, "rope_theta": rope.theta})
    if found := rope or own:
        return found
    raise KeyError("rotary_emb_base")


NOMIC_BERT = Family(
    model_types=("nomic_bert",),
    settings={
        **BERT_WORDS,
        **dict.fromkeys((*NOMIC_BERT_BIASES, "activation_function", "n_positions"), REQUIRED),
        **dict.fromkeys(("pad_vocab_size_multiple", "max_trained_positions"), REQUIRED),
        **dict.fromkeys(("rotary_emb_base", "rotary_emb_fraction"), REQUIRED),
        **dict.fromkeys(("head_dim", "rope_parameters", "rotary_scaling_factor")),
    },
    requires=NOMIC_BERT_REQUIRES,
    aliases=NOMIC_BERT_OWN,
    unread=(
        *("attn_pdrop", "embd_pdrop", "resid_pdrop", "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln"),
        *("last_layer_subset", "reorder_and_upcast_attn", "use_xentropy", "n_ctx", "num_experts"),
        *("add_moe_fusion", "expert_choice_router", "ffn_div", "moe_impl", "moe_resid_pdrop", "moe_top_k"),
        *("moe_normalize_expert_weights", "router_aux_loss_coef"),  # of a mixture of experts, which is refused
    ),
    remote_classes=("NomicBert",),
    names=NOMIC_BERT_NAMES,
    prefixes=("bert.", "nomic_bert.", "model."),
    ignored=("pooler.", "cls.", "classifier."),
    classifier=BERT_CLASSIFIER,
    masked_lm=TaskLayers(
        {**BERT_MASKED_LM.names, "cls.predictions.transform.layer_norm": "norm"}, BERT_MASKED_LM.read_settings
    ),
    own_setting="n_embd",
    read_config=_read_nomic_bert_config,
)


JINA_BERT_FEED_FORWARDS: Mapping[str, str] = {"geglu": "gelu", "reglu": "relu"}
JINA_BERT_NAMES: Mapping[str, str | tuple[str, ...]] = {
    **{theirs: ours for theirs, ours in BERT_NAMES.items() if ".attention." in theirs or theirs.startswith("emb")},
    "encoder.layer.{}.mlp.gated_layers": ("layers.{}.feed_forward.gate", "layers.{}.feed_forward.up"),
    "encoder.layer.{}.mlp.wo": "layers.{}.feed_forward.down",
    "encoder.layer.{}.mlp.layernorm": "layers.{}.feed_forward_norm",
    "encoder.layer.{}.attention.self.layer_norm_q": "layers.{}.attention.query_norm",
    "encoder.layer.{}.attention.self.layer_norm_k": "layers.{}.attention.key_norm",
    "encoder.layer.{}.layer_norm_1": "layers.{}.attention_residual_norm",
    "encoder.layer.{}.layer_norm_2": "layers.{}.feed_forward_norm",
    "encoder.layer.{}.mlp.up_gated_layer": ("layers.{}.feed_forward.up", "layers.{}.feed_forward.gate"),
    "encoder.layer.{}.mlp.down_layer": "layers.{}.feed_forward.down",
}
JINA_BERT_NORMED = "jinaai/jina-bert-v2-qk-post-norm--"


def _read_jina_bert_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    activation = choose(config, "feed_forward_type", JINA_BERT_FEED_FORWARDS)
    read = read_bert({**config, "position_embedding_type": "absolute", "hidden_act": activation}, pooling)
    is_normed = any(str(named).startswith(JINA_BERT_NORMED) for named in (config.get("auto_map") or {}).values())
    return replace(
        read,
        gated=True,
        up_bias=False,
        positions="none",
        attention_positions="alibi",
        query_key_layer_norm=is_normed,
        attention_residual_norm=is_normed,
    )


JINA_BERT = Family(
    model_types=("jina_bert",),
    settings={
        **{name: value for name, value in BERT_WORDS.items() if name not in ("pruned_heads", "hidden_act")},
        "feed_forward_type": REQUIRED,
    },
    requires={**CAUSAL, "position_embedding_type": ("alibi",), "pruned_heads": (None, {})},
    unread=("hidden_act",),
    remote_classes=("JinaBert",),
    names=JINA_BERT_NAMES,
    classifier=BERT_CLASSIFIER,
    token_classifier=None,
    prefixes=BERT_PREFIXES,
    ignored=BERT_IGNORED,
    read_config=_read_jina_bert_config,
)
