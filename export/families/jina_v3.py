"""jina-embeddings-v3: XLM-RoBERTa's network with rotary positions in place of learned ones, and adapters.

Its own files hold an adapter (LoRA) for each of five tasks beside the weights; one of them is merged at export
(`export.adapters`). config.json comes as the model's own code writes it, where only its `position_embedding_type` tells
it from XLM-RoBERTa, or as `transformers` does (`jina_embeddings_v3`). The single token type joins the tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import bert, roberta
from export.families.naming import QKV, TRANSFORMERS_LAYER, rename
from export.families.rope import read_rope
from export.families.settings import require_settings
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("jina_embeddings_v3",)
REMOTE_CLASSES = ("XLMRoberta",)

NAMES: Mapping[str, str | tuple[str, ...]] = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "emb_ln": "embeddings.norm",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layers.{}.mixer.Wqkv": QKV,
    "encoder.layers.{}.mixer.out_proj": "layers.{}.attention.output",
    "encoder.layers.{}.norm1": "layers.{}.attention_norm",
    "encoder.layers.{}.mlp.fc1": "layers.{}.feed_forward.up",
    "encoder.layers.{}.mlp.fc2": "layers.{}.feed_forward.down",
    "encoder.layers.{}.norm2": "layers.{}.feed_forward_norm",
    **{name: ours for name, ours in TRANSFORMERS_LAYER.items() if ".mlp." not in name},  # as `transformers` names them
    "layers.{}.mlp.fc1": "layers.{}.feed_forward.up",
    "layers.{}.mlp.fc2": "layers.{}.feed_forward.down",
}
PREFIXES = roberta.PREFIXES
IGNORED = ("pooler.", "lm_head.", "classifier.", "embeddings.position_ids")
REPRODUCED: Mapping[str, tuple[object, ...]] = {
    "type_vocab_size": (1,),
    "position_embedding_type": ("rotary",),
}
TOKENS, TYPES = "embeddings.token.weight", "embeddings.token_type.weight"


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads a jina-embeddings-v3 config.json, in either wording.

    Raises:
        UnsupportedModel: a setting that makes it another network than the one built here.
    """
    require_settings(config, REPRODUCED)
    read = bert.read_config({**config, "position_embedding_type": "absolute", "type_vocab_size": 0}, pooling)
    rope = read_rope(
        config.get("rope_parameters") or {}, theta=config.get("rotary_emb_base"), positions=read.max_positions
    )
    return replace(read, positions="none", attention_positions="rotary", **rope.settings())


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's state from a checkpoint's tensors.

    Raises:
        UnsupportedModel: a tensor of an unknown part, or a missing one that would join another.
    """
    del config  # names are all there is to change
    state = rename(tensors, NAMES, prefixes=PREFIXES, ignored=IGNORED)
    if TYPES not in state or TOKENS not in state:
        raise UnsupportedModel("the checkpoint has no word_embeddings.weight or no token_type_embeddings.weight")
    state[TOKENS] = state[TOKENS] + state.pop(TYPES)
    return state
