"""Small random models of every family, as `transformers` builds and saves them, each with a tokenizer of its kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel

from export.checkpoint import Checkpoint, read_checkpoint
from export.sources import Folder
from model.encoder import Encoder, EncoderOutput
from tests.tokenizers import TOKENIZERS

VOCABULARY = 400
Pair = tuple["FamilyModel", PreTrainedModel, Encoder]  # a network, by `transformers` and by the exporter


@dataclass(frozen=True)
class FamilyModel:
    """One network of a family, as `transformers` is asked to build it."""

    name: str
    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = "wordpiece"  # of `tests.tokenizers.TOKENIZERS`
    longest: int = 40  # tokens of a text
    spread: float = 0.3  # deviation of its matrices; smaller where products of activations would blow rounding up
    auto: Any = AutoModel


SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
ROBERTA: Mapping[str, Any] = {**SIZES, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}
DISTILBERT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_heads": 4,
    "n_layers": 3,
    "hidden_dim": 64,
    "max_position_embeddings": 40,
}
MPNET: Mapping[str, Any] = {**SIZES, "max_position_embeddings": 202, "pad_token_id": 1}
MODERNBERT: Mapping[str, Any] = {
    **SIZES,
    "num_hidden_layers": 4,  # global, local, local, global
    "local_attention": 8,
    **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
}
BIASES: Mapping[str, Any] = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), True)
NOMIC: Mapping[str, Any] = {**SIZES, "type_vocab_size": 2}
GTE: Mapping[str, Any] = {**SIZES, "type_vocab_size": 1, "pad_token_id": 0}
ALBERT: Mapping[str, Any] = {**SIZES, "embedding_size": 12, "num_hidden_layers": 5, "num_hidden_groups": 2}
DECODER: Mapping[str, Any] = {**SIZES, "num_key_value_heads": 2, **dict.fromkeys(("pad_token_id", "bos_token_id"), 0)}
QWEN3: Mapping[str, Any] = {**DECODER, "head_dim": 12}  # heads together wider than the network, as in Qwen3-0.6B
WINDOWS: Mapping[str, Any] = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
FULL, LOCAL = "full_attention", "sliding_attention"
GEMMA3: Mapping[str, Any] = {
    **DECODER,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "query_pre_attn_scalar": 17,
    "layer_types": [LOCAL, FULL, LOCAL],
    "sliding_window": 8,
    "use_bidirectional_attention": True,
    "eos_token_id": 1,
}
GEMMA2: Mapping[str, Any] = {  # of EmbeddingGemma 2
    **DECODER,
    "head_dim": 6,
    "per_layer_config": {
        "01": {"head_dim": 10, "num_key_value_heads": 1},
        "02": {"head_dim": 10, "num_key_value_heads": 1},
    },
    "layer_types": [LOCAL, FULL, FULL],
    "sliding_window": 3,
    "hidden_size_per_layer_input": 12,
    "embedding_dim": 20,
    "eos_token_id": 1,
}
GLOBAL: Mapping[str, Any] = {"layer_types": [FULL] * 3, "per_layer_config": {}}
T5: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 10,
    "d_ff": 40,
    "num_layers": 3,
    "num_heads": 3,
    "n_positions": 200,
}
GATED: Mapping[str, Any] = {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8}
DEBERTA: Mapping[str, Any] = {  # as v3
    **SIZES,
    "relative_attention": True,
    "position_buckets": 8,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
ONE_TERM: Mapping[str, Any] = {"pos_att_type": "c2p", "position_biased_input": True, "max_relative_positions": 20}
SEPARATE: Mapping[str, Any] = {"share_att_key": False, "position_buckets": -1, "norm_rel_ebd": "none"}
MODELS = (
    FamilyModel("bert", "bert", SIZES),
    FamilyModel("ernie", "ernie", {**SIZES, "type_vocab_size": 4, "use_task_id": True}),
    FamilyModel("ernie-without-tasks", "ernie", SIZES),
    FamilyModel("roberta", "roberta", ROBERTA, "bpe"),
    FamilyModel("roberta-with-types", "roberta", {**ROBERTA, "type_vocab_size": 2, "pad_token_id": 0}, "bpe", 41),
    FamilyModel("xlm-roberta", "xlm-roberta", ROBERTA, "unigram"),
    FamilyModel("camembert", "camembert", {**ROBERTA, "hidden_act": "relu"}, "unigram"),
    FamilyModel("electra", "electra", {**SIZES, "embedding_size": 12}),
    FamilyModel("electra-as-wide", "electra", {**SIZES, "embedding_size": 32}),
    FamilyModel("distilbert", "distilbert", DISTILBERT),
    FamilyModel("distilbert-sinusoidal", "distilbert", {**DISTILBERT, "sinusoidal_pos_embds": True}),
    FamilyModel("mpnet", "mpnet", MPNET, "bpe", longest=200),
    FamilyModel("modernbert", "modernbert", MODERNBERT, "bpe"),
    FamilyModel("modernbert-with-biases", "modernbert", {**MODERNBERT, **BIASES, "hidden_activation": "silu"}, "bpe"),
    FamilyModel("nomic", "nomic_bert", NOMIC, spread=0.2),
    FamilyModel("gte", "gte", GTE, "unigram", spread=0.2),
    FamilyModel("gte-without-types", "gte", {**GTE, "type_vocab_size": 0}, spread=0.2),
    FamilyModel("albert", "albert", ALBERT, "unigram"),
    FamilyModel("albert-inner-layers", "albert", {**ALBERT, "num_hidden_layers": 2, "inner_group_num": 2}, "unigram"),
    FamilyModel("jina-v3", "jina_embeddings_v3", {**SIZES, "type_vocab_size": 1, "pad_token_id": 1}, "unigram"),
    FamilyModel("eurobert", "eurobert", {**DECODER, "eos_token_id": 0, "mask_token_id": 4}, "llama3", spread=0.2),
    FamilyModel("qwen3", "qwen3", QWEN3, "qwen", spread=0.2),
    FamilyModel("qwen3-windows", "qwen3", {**QWEN3, **WINDOWS, "attention_bias": True}, "qwen", spread=0.2),
    FamilyModel("qwen2", "qwen2", {**DECODER, "is_causal": False}, "qwen", spread=0.2),
    FamilyModel("qwen2-causal", "qwen2", {**DECODER, "tie_word_embeddings": True}, "qwen", spread=0.2),
    FamilyModel("llama", "llama", {**DECODER, "mlp_bias": True, "attention_bias": True}, "llama3", spread=0.2),
    FamilyModel("mistral", "mistral", {**DECODER, "head_dim": 12, "sliding_window": None}, "llama3", spread=0.2),
    FamilyModel("mistral-windows", "mistral", {**DECODER, "sliding_window": 5}, "llama3", spread=0.2),
    FamilyModel("gemma3", "gemma3_text", GEMMA3, "gemma", spread=0.15),
    FamilyModel("gemma3-causal", "gemma3_text", {**GEMMA3, "use_bidirectional_attention": False}, "gemma", spread=0.15),
    FamilyModel("gemma2", "embedding_gemma2_text", GEMMA2, "gemma", spread=0.15),
    FamilyModel("gemma2-global", "embedding_gemma2_text", {**GEMMA2, **GLOBAL}, "gemma"),
    FamilyModel("deberta", "deberta-v2", DEBERTA, "deberta", spread=0.2),
    FamilyModel("deberta-separate", "deberta-v2", {**DEBERTA, **SEPARATE, "type_vocab_size": 2}, spread=0.2),
    FamilyModel("deberta-one-term", "deberta-v2", {**DEBERTA, **ONE_TERM}, spread=0.2),
    FamilyModel("t5", "t5", T5, "t5", 200, auto=AutoModelForTextEncoding),
    FamilyModel("t5-gated", "t5", {**T5, **GATED}, "t5", 200, spread=0.2, auto=AutoModelForTextEncoding),
)
NAMED: Mapping[str, FamilyModel] = {model.name: model for model in MODELS}
SERVED = (
    *("roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "modernbert", "nomic", "gte"),
    *("albert", "deberta", "jina-v3", "eurobert", "qwen3", "gemma3", "gemma2", "t5"),
)
"""Those that are exported and served too: one for each network."""


def draw(model: FamilyModel, seed: int = 0, *, auto: Any = None, **settings: Any) -> PreTrainedModel:
    """The network in evaluation mode, with biases and norms away from their neutral values.

    `auto` builds it if it must have the layers of a task; `settings` are of config.json, besides the network's own.
    """
    config = AutoConfig.for_model(model.model_type, **{**model.settings, **settings})
    made: PreTrainedModel = (auto or model.auto).from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        scalars = [(name, buffer) for name, buffer in made.named_buffers() if name.endswith("scalar")]
        for name, parameter in (*made.named_parameters(), *scalars):
            neutral = 1.0 if ("norm" in name.lower() and name.endswith("weight")) or name.endswith("scalar") else 0.0
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(neutral + noise * (model.spread if parameter.ndim > 1 else 0.1))
    made.train(False)
    return made


def save(theirs: PreTrainedModel, model: FamilyModel, folder: Path) -> Path:
    """A Hugging Face folder of the network."""
    theirs.save_pretrained(folder)
    tokenizer: Tokenizer = TOKENIZERS[model.tokenizer]()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def read(folder: Path, *, allows_pickles: bool = False, **choices: Any) -> Checkpoint:
    """What the exporter makes of a folder, with the choices of its command."""
    return read_checkpoint(Folder(folder, folder.name, allows_pickles=allows_pickles), **choices)


def ids_and_types(model: FamilyModel, rows: int, sequence: int) -> tuple[Tensor, Tensor]:
    """Random ids [rows, sequence], none of them the padding's, and token types."""
    generator = torch.Generator().manual_seed(sequence)
    ids = torch.randint(3, VOCABULARY, (rows, sequence), generator=generator)
    types = model.settings.get("type_vocab_size", 2)
    return ids, torch.randint(0, max(types, 1), ids.shape, generator=generator)


def mask_of(ids: Tensor, lengths: list[int]) -> Tensor:
    """1 for the tokens of right-padded rows, 0 for what is behind them, [rows, sequence]."""
    return (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()


def run_theirs(theirs: PreTrainedModel, ids: Tensor, types: Tensor, lengths: list[int], **options: Any) -> Any:
    """`transformers` on right-padded rows; padding has the padding's own id, as its tokenizers write it."""
    mask = mask_of(ids, lengths)
    padded = ids.masked_fill(mask == 0, theirs.config.pad_token_id or 0)
    named = {"token_type_ids": types} if getattr(theirs.config, "type_vocab_size", 0) > 1 else {}
    with torch.inference_mode():
        return theirs(padded, attention_mask=mask, **named, **options)


def run_ours(encoder: Encoder, ids: Tensor, types: Tensor, lengths: list[int]) -> EncoderOutput:
    """The exporter's network on the same rows."""
    named = types if encoder.config.type_vocab_size else None
    with torch.inference_mode():
        output: EncoderOutput = encoder(ids, torch.tensor(lengths), token_type_ids=named)
    return output


def compare_whole(theirs: PreTrainedModel, ours: Encoder, ids: Tensor, tolerance: float = 1e-5) -> None:
    """Holds the hidden states of rows without padding against `transformers`."""
    with torch.inference_mode():
        expected = theirs(ids).last_hidden_state
        found = ours(ids, torch.full((len(ids),), ids.shape[1])).last_hidden_state
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


def project(encoder: Encoder, hidden: Tensor) -> Tensor:
    """Hidden states as `transformers` gives them: EmbeddingGemma 2 projects tokens, before they are pooled."""
    for projection in encoder.task_layers.get_submodule("projections").children():
        hidden = projection(hidden)
    return hidden
