"""What a family is: how its config.json is read, and how its tensors get the encoder's names, all of them or none."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from export.errors import UnsupportedModel
from model.config import Activation, EncoderConfig, Pooling
from model.config_parts import MOST_LAYERS, require

Choice = TypeVar("Choice")
QKV = ("layers.{}.attention.query", "layers.{}.attention.key", "layers.{}.attention.value")
TRANSFORMERS_LAYER: Mapping[str, str] = {  # as `transformers` names modules where a family's own code named them first
    "layers.{}.self_attn.q_proj": QKV[0],
    "layers.{}.self_attn.k_proj": QKV[1],
    "layers.{}.self_attn.v_proj": QKV[2],
    "layers.{}.self_attn.o_proj": "layers.{}.attention.output",
    "layers.{}.post_attention_layernorm": "layers.{}.attention_norm",
    "layers.{}.mlp.up_proj": "layers.{}.feed_forward.up",
    "layers.{}.mlp.gate_proj": "layers.{}.feed_forward.gate",
    "layers.{}.mlp.down_proj": "layers.{}.feed_forward.down",
    "layers.{}.post_mlp_layernorm": "layers.{}.feed_forward_norm",
}
WHOLE_ROTATION: Mapping[str, tuple[object, ...]] = {"partial_rotary_factor": (None, 1)}  # every dimension is turned
ENCODER_ONLY: Mapping[str, tuple[object, ...]] = {"is_decoder": (False,), "add_cross_attention": (False,)}
ENCODER: Mapping[str, Any] = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": None}  # of `read_bert`
ACTIVATIONS: Mapping[str, Activation] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_accurate", "gelu_fast", "gelu_new", "gelu_python_tanh", "gelu_pytorch_tanh"), "gelu_tanh"),
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
FREQUENCIES = re.compile(r"(^|\.)rotary_emb\w*\.(\w*inv_freq|cos_cached|sin_cached)$")  # computed, not learned
OLD_NORM_NAMES: Mapping[str, str] = {"gamma": "weight", "beta": "bias"}  # TensorFlow's, in early conversions
GLOBAL, LOCAL = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class TaskLayers:
    """The layers of `...ForSequenceClassification`, `...ForTokenClassification` or `...ForMaskedLM`.

    Attributes:
        names: module name in the checkpoint -> layer (`model.tasks`); empty if the module itself holds the bias.
        read_settings: from config.json to what the settings of the task have to say about those layers.
    """

    names: Mapping[str, str]
    read_settings: Callable[[Mapping[str, Any]], dict[str, Any]]


def dense(activation: str | None, **more: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Settings of a task's layers with this activation between them, None for a single layer."""
    return lambda _: {"dense_activation": activation, **more}


def dense_said(name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The same, with the activation that a setting of config.json names."""
    return lambda config: {"dense_activation": choose(config, name, ACTIVATIONS)}


TOKEN_CLASSIFIER = TaskLayers({"classifier": "output"}, dense(None))  # of most families
REQUIRED = ...  # instead of a default: config.json has to say it, or the family's code knows what to do without
# Settings that change no number of an encoder in evaluation, of any family: names, training, generation, the tokenizer.
UNREAD = frozenset(
    {
        *("_name_or_path", "architectures", "auto_map", "model_type", "name_or_path", "transformers_version"),
        *("tokenizer_class", "dtype", "torch_dtype", "torchscript", "use_bfloat16", "xla_device", "tf_legacy_loss"),
        *("gradient_checkpointing", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
        *("use_flash_attn", "_commit_hash", "id2label", "label2id", "num_labels", "_num_labels", "problem_type"),
        *("finetuning_task", "task_specific_params", "sbert_ce_default_activation_function", "sentence_transformers"),
        *("classifier_dropout", "tie_word_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("attention_dropout", "embedding_dropout", "mlp_dropout", "dropout", "dropout_rate", "hidden_dropout"),
        *("initializer_range", "initializer_factor", "tie_encoder_decoder", "initializer_cutoff_factor"),
        *("output_attentions", "output_hidden_states", "output_past", "output_scores", "return_dict"),
        *("return_dict_in_generate", "use_cache", "use_return_dict", "chunk_size_feed_forward", "prefix"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"),
        *("unk_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"),
        *("suppress_tokens", "begin_suppress_tokens", "max_length", "min_length", "do_sample", "early_stopping"),
        *("num_beams", "temperature", "num_beam_groups", "diversity_penalty", "top_k", "top_p", "typical_p"),
        *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("num_return_sequences", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("cross_attention_hidden_size", "generation_config", "model_max_length", "summary_type", "summary_use_proj"),
        *("summary_activation", "summary_last_dropout", "summary_first_dropout", "summary_proj_to_labels"),
        *("pretraining_tp", "emb_pooler", "language", "matryoshka_dimensions", "directionality", "pooler_fc_size"),
        *("pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_type", "pooler_size_per_head"),
        "is_encoder_decoder",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How checkpoints of one family are read.

    Attributes:
        model_types: what config.json calls the family.
        settings: the reproduced settings of config.json, by name: the default of `transformers`, or `REQUIRED`.
        requires: settings that must have one of these values, the first of them if config.json does not say.
        unread: settings of the family that change no number, besides `UNREAD`.
        aliases: other names of settings.
        read_config: the network that config.json describes, with a pooling; raises UnsupportedModel if it is another
            than those built here.
        names: see `rename`, as for `prefixes` and `ignored`; None if the tensors have the encoder's names already.
        prepare: what is done to the checkpoint's tensors before they get their names, given config.json.
        finish: what is done to the encoder's state behind that.
        classifier: the layers of the family's class for classification, as `token_classifier` and `masked_lm` of
            those for labels on tokens and for masked words; None if there is none, or it is not reproduced.
        remote_classes: beginnings of the names of classes, of a model's own code, that compute the same.
        own_setting: a setting that only the model's own code writes, whose layers for tasks are not reproduced.
    """

    model_types: tuple[str, ...]
    settings: Mapping[str, Any]
    read_config: Callable[[Mapping[str, Any], Pooling], EncoderConfig]
    requires: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str | tuple[str, ...]] | None = None
    prefixes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    prepare: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Mapping[str, Tensor]] | None = None
    finish: Callable[[dict[str, Tensor], Mapping[str, Any]], dict[str, Tensor]] | None = None
    classifier: TaskLayers | None = None
    token_classifier: TaskLayers | None = TOKEN_CLASSIFIER
    masked_lm: TaskLayers | None = None
    remote_classes: tuple[str, ...] = ()
    own_setting: str = ""

    def settle(self, config: Mapping[str, Any], *, compared: bool) -> dict[str, Any]:
        """config.json with one name for each setting, and the library's values for those that it leaves out.

        A network that is `compared` with the original later may have unknown settings.

        Raises:
            UnsupportedModel: two names of one setting contradict each other, a value is not reproduced, or a setting is
                unknown, so that it might change the network.
        """
        settled = {**config}
        for alias, name in self.aliases.items():
            if alias in settled:
                require_agreement({alias: settled[alias], name: settled.setdefault(name, settled[alias])})
        require_settings(settled, self.requires)
        if settled.get("quantization_config"):
            raise UnsupportedModel("its weights are quantised (quantization_config): name the checkpoint they are from")
        known = {*self.settings, *self.requires, *self.unread, *self.aliases, *UNREAD}
        if not compared and (unknown := sorted(settled.keys() - known)):
            raise UnsupportedModel(
                f"config.json says {', '.join(unknown)}, which may change the network: install the extra `verify`, so "
                "that the export is compared with the original, or take it out if it changes nothing"
            )
        return {**{name: value for name, value in self.settings.items() if value is not REQUIRED}, **settled}

    def read_state(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
        """The encoder's state from a checkpoint's tensors and its config.json.

        Raises:
            UnsupportedModel: a tensor of an unknown part, a missing one that would join another, or a size or a setting
                that does not fit the others.
        """
        try:
            given = self.prepare(tensors, config) if self.prepare else tensors
            named = dict(given)
            if self.names is not None:
                named = rename(given, self.names, prefixes=self.prefixes, ignored=self.ignored)
            return self.finish(named, config) if self.finish else named
        except KeyError as missing:
            raise UnsupportedModel(f"the checkpoint has no {missing}, which joins other tensors") from missing
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedModel(f"config.json and the weights do not go together: {error!r:.200}") from error


def rename(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str | tuple[str, ...]],
    *,
    prefixes: Sequence[str],
    ignored: Sequence[str],
) -> dict[str, Tensor]:
    """Renames a checkpoint's tensors by a table of module names, in which `{}` stands for the layer index.

    Args:
        tensors: by the checkpoint's names.
        names: a module's name there -> its name in the encoder; or several, whose rows stand one below the other in the
            checkpoint's tensor, equally many of each.
        prefixes: what a checkpoint may carry in front of all names, such as `bert.`.
        ignored: beginnings of names that have no part in an encoding (heads of the pre-training tasks).

    Raises:
        UnsupportedModel: a tensor is in neither table: the network has a part that this version does not know; or two
            tensors have one meaning.
    """
    rules = [(re.compile(re.escape(theirs).replace(r"\{\}", r"(\d+)")), ours) for theirs, ours in names.items()]
    renamed: dict[str, Tensor] = {}
    unknown: list[str] = []
    for full_name, tensor in tensors.items():
        name = strip_prefix(full_name, prefixes)
        if name.startswith(tuple(ignored)) or FREQUENCIES.search(name):
            continue
        module, _, parameter = name.rpartition(".")
        if not (modules := _ours(module, rules)):
            unknown.append(full_name)
            continue
        parts = [part.clone() for part in tensor.tensor_split(len(modules))] if len(modules) > 1 else [tensor]
        for ours, part in zip(modules, parts, strict=True):
            our_name = f"{ours}.{OLD_NORM_NAMES.get(parameter, parameter)}"
            if our_name in renamed:
                raise UnsupportedModel(f"the checkpoint holds {our_name} twice: the second is {full_name}")
            renamed[our_name] = part
    if unknown:
        raise UnsupportedModel(f"the checkpoint has {len(unknown)} tensors of an unknown part, such as {unknown[0]}")
    return renamed


def pick(tensors: Mapping[str, Tensor], names: Mapping[str, str], *, prefixes: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of a task's layers, as a table of `TaskLayers` names them; all others are left out."""
    modules = {name: strip_prefix(name, prefixes).rpartition(".")[0] for name in tensors}
    chosen = {name: tensor for name, tensor in tensors.items() if modules[name] in names}
    renamed = rename(chosen, names, prefixes=prefixes, ignored=())
    return {f"task_layers.{name.removeprefix('.')}": tensor for name, tensor in renamed.items()}


def _ours(module: str, rules: Iterable[tuple[re.Pattern[str], str | tuple[str, ...]]]) -> list[str]:
    """Our names of a module; empty where no rule knows it."""
    for pattern, ours in rules:
        if match := pattern.fullmatch(module):
            return [name.format(*match.groups()) for name in ((ours,) if isinstance(ours, str) else ours)]
    return []


def strip_prefix(name: str, prefixes: Sequence[str]) -> str:
    """A tensor's or a module's name without the first of the prefixes that it has."""
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def share_layers(state: Mapping[str, Tensor], firsts: Sequence[int]) -> dict[str, Tensor]:
    """A state in which layers of one weight all have it (`EncoderConfig.shared_layers`); the tensors are shared."""
    whole = dict(state)
    for layer, first in enumerate(firsts):
        for name in [name for name in state if layer != first and name.startswith(f"layers.{first}.")]:
            whole.setdefault(f"layers.{layer}.{name.removeprefix(f'layers.{first}.')}", state[name])
    return whole


def require_settings(config: Mapping[str, Any], known: Mapping[str, tuple[object, ...]]) -> None:
    """Refuses, with an UnsupportedModel, values other than those known by name; the first holds if none is said."""
    for name, values in known.items():
        if config.get(name, values[0]) not in values:
            supported = ", ".join(repr(value) for value in values)
            raise UnsupportedModel(f"{name} {config[name]!r}: {supported} is supported")


def refuse_remote_code(config: Mapping[str, Any], reproduced: tuple[str, ...]) -> None:
    """Refuses a network whose `auto_map` names classes of the model's own code that do not begin as `reproduced`.

    Raises:
        UnsupportedModel: names the first other class.
    """
    for role, named in (config.get("auto_map") or {}).items():
        for name in named if isinstance(named, list) else [named]:
            if name is not None and not name.rpartition(".")[-1].startswith(reproduced):
                raise UnsupportedModel(f"auto_map names {name} as {role}: code of a model's own is never run")


def require_agreement(said: Mapping[str, Any]) -> None:
    """Refuses two settings of one meaning that differ: an UnsupportedModel names both."""
    first, *others = said.values()
    if any(other != first for other in others):
        both = " and ".join(f"{name} {value!r}" for name, value in said.items())
        raise UnsupportedModel(f"config.json says {both}: which is right?")


def choose(config: Mapping[str, Any], name: str, known: Mapping[str, Choice]) -> Choice:
    """What a setting's value stands for; a KeyError if it is not there, an UnsupportedModel if its value is unknown."""
    if config[name] not in known:
        raise UnsupportedModel(f"{name} {config[name]!r}: one of {', '.join(known)} is supported")
    return known[config[name]]


def count_layers(config: Mapping[str, Any], name: str = "num_hidden_layers") -> int:
    """The number of layers, checked before anything of that size is made."""
    require(name, config[name], minimum=1, maximum=MOST_LAYERS)
    layers: int = config[name]
    return layers


def local_layers(kinds: Sequence[str], layers: int) -> tuple[int, ...]:
    """The layers that `layer_types` says see a window; an UnsupportedModel of another kind, or number of layers."""
    if len(kinds) != layers or not set(kinds) <= {GLOBAL, LOCAL}:
        raise UnsupportedModel(f"layer_types {kinds}: expected {GLOBAL} or {LOCAL} for each of {layers} layers")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == LOCAL)
