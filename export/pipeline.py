"""Reads what a sentence-transformers folder says around the network: modules.json and the files it names.

A folder without modules.json gets what sentence-transformers gives it: mean pooling, no normalisation, and nothing that
other files of sentence-transformers say.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from export.errors import SourceError, UnsupportedModel
from export.families.settings import require_settings
from export.weights import read_weights
from model.config import Pooling, Projection, ProjectionActivation

POOLING_MODES: Mapping[str, Pooling] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
POOLING_FLAGS: Mapping[str, str] = {  # the names of releases before 6
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
SETTINGS = tuple(  # sentence-transformers reads the first of these files that says anything
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
DEFAULT_ACTIVATION = "torch.nn.Tanh"  # of a Dense module that names none
REPRODUCED: Mapping[str, tuple[object, ...]] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "processing_kwargs": ({}, None),
}
ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
HARMLESS_ARGUMENTS = {  # how the original computes, not what
    *("trust_remote_code", "attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "use_fast"),
    *("use_memory_efficient_attention", "unpad_inputs"),
}
WHOLE: Mapping[str, tuple[object, ...]] = {"model_type": ("SentenceTransformer",), "truncate_dim": (None,)}
PROJECTION_ACTIVATIONS: Mapping[str, ProjectionActivation] = {"Tanh": "tanh", "Identity": "identity"}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What surrounds the network.

    Attributes:
        transformer: folder of the network's own config.json, weights and tokenizer.
        pooling: how tokens become one vector.
        projection: the dense layer after pooling, or None.
        projection_state: its tensors, `projection.weight` [size, D] and `projection.bias` [size].
        normalize: whether the pipeline ends in an L2 normalisation.
        max_sequence_length: tokens at most, or None where the folder does not say.
        do_lower_case: whether texts are lowered before the tokenizer.
        prompts: by name.
        default_prompt_name: the prompt used when none is named, or None.
    """

    transformer: Path
    pooling: Pooling = "mean"
    projection: Projection | None = None
    projection_state: Mapping[str, Tensor] = field(default_factory=dict)
    normalize: bool = False
    max_sequence_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


def read_pipeline(folder: Path) -> Pipeline:
    """Reads modules.json and everything it names.

    Raises:
        SourceError: a file is missing or no JSON.
        UnsupportedModel: a module or a setting that this version does not reproduce exactly.
    """
    modules = _read_modules(folder)
    if not modules:
        return Pipeline(transformer=folder, **_read_transformer_settings({}, folder))
    transformer = folder / modules[0][1]
    values: dict[str, Any] = {"transformer": transformer}
    for kind, path in modules[1:]:
        try:
            values.update(_read_module(kind, folder / path))
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{folder / path} is malformed: {error!r}") from error
    if "projection" in values and modules[-1][0] == "Dense" and values.get("normalize"):
        raise UnsupportedModel("a Dense layer after Normalize is not supported: only before it")
    settings = next(filter(None, (read_json(transformer / name, optional=True) for name in SETTINGS)), {})
    values.update(_read_transformer_settings(settings, transformer))
    values.update(_read_prompts(folder / "config_sentence_transformers.json"))
    return Pipeline(**values)


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Reads a JSON object; an empty one where an optional file is missing.

    Raises:
        SourceError: the file is missing, or holds something else.
    """
    if optional and not path.is_file():
        return {}
    try:
        data = json.loads(path.read_bytes())
    except (OSError, RecursionError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{path} holds a {type(data).__name__}, expected an object")
    return data


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Kinds and paths of the modules; kinds are class names, which moved between packages over the years."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        named = [(entry["type"], entry["path"]) for entry in json.loads(path.read_bytes())]
        modules = [(kind.rsplit(".", 1)[-1], os.fspath(subfolder)) for kind, subfolder in named]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path} is malformed: {error!r:.200}") from error
    if outside := [place for _, place in modules if Path(place).is_absolute() or ".." in Path(place).parts]:
        raise SourceError(f"{path} names {outside[0]}, which is outside the folder")
    if foreign := [kind for kind, _ in named if not kind.startswith("sentence_transformers.")]:
        raise UnsupportedModel(f"{path} names {foreign[0]}: a module with code of its own, which is never run")
    if [kind for kind, _ in modules[:2]] != ["Transformer", "Pooling"]:
        raise UnsupportedModel(f"{path} begins with {[kind for kind, _ in modules[:2]]}: expected Transformer, Pooling")
    kinds = [kind for kind, _ in modules]
    if repeated := {kind for kind in kinds if kinds.count(kind) > 1}:
        raise UnsupportedModel(f"{path} has several modules {', '.join(sorted(repeated))}: one of a kind is supported")
    return modules


def _read_module(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "Normalize":
        _require_pooled(read_json(folder / "config.json", optional=True), "a Normalize module")
        return {"normalize": True}
    if kind == "Pooling":
        return {"pooling": _read_pooling(read_json(folder / "config.json"))}
    if kind == "Dense":
        return _read_dense(folder)
    raise UnsupportedModel(f"module {kind} is not supported: Transformer, Pooling, Dense and Normalize are")


def _read_pooling(config: Mapping[str, Any]) -> Pooling:
    flags = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)]
    modes = config.get("pooling_mode") or flags or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) > 1 or modes[0] not in POOLING_MODES:
        raise UnsupportedModel(f"pooling {'+'.join(modes)} is not supported: one of {', '.join(POOLING_MODES)} is")
    if config.get("include_prompt") is False:
        raise UnsupportedModel("pooling that leaves out the prompt (include_prompt: false) is not supported")
    return POOLING_MODES[modes[0]]


def _read_dense(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    named = str(config.get("activation_function", DEFAULT_ACTIVATION))
    activation = named.rpartition(".")[-1]
    if activation not in PROJECTION_ACTIVATIONS or not named.startswith("torch."):
        raise UnsupportedModel(f"dense activation {named} is not supported: torch's Tanh and Identity are")
    _require_pooled(config, "a dense layer")
    if config.get("use_residual"):
        raise UnsupportedModel("a dense layer with a residual is not supported")
    tensors, _ = read_weights(folder)
    projection = Projection(
        size=config["out_features"], bias=config.get("bias", True), activation=PROJECTION_ACTIVATIONS[activation]
    )
    state = {name.replace("linear.", "projection."): tensor for name, tensor in tensors.items()}
    return {"projection": projection, "projection_state": state}


def _require_pooled(config: Mapping[str, Any], what: str) -> None:
    """Refuses a module that reads or writes something else than the pooled vector."""
    names = {config.get(name) or "sentence_embedding" for name in ("module_input_name", "module_output_name")}
    if names != {"sentence_embedding"}:
        raise UnsupportedModel(f"{what} on anything but the pooled vector is not supported")


def _read_transformer_settings(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    require_settings(settings, REPRODUCED)
    _refuse_arguments(settings)
    tokenizer = read_json(folder / "tokenizer_config.json", optional=True)
    length = settings.get("max_seq_length") or tokenizer.get("model_max_length")
    return {
        "max_sequence_length": None if length is None else _whole(length, folder),
        "do_lower_case": bool(settings.get("do_lower_case")),
    }


def _refuse_arguments(settings: Mapping[str, Any]) -> None:
    """Refuses what sentence-transformers would hand on, and what would change the network, the tokens or the length."""
    for name in ARGUMENTS:
        if not isinstance(settings.get(name) or {}, dict):
            raise SourceError(f"{name} is {settings[name]!r:.100}: expected an object")
        if changing := sorted(set(settings.get(name) or {}) - HARMLESS_ARGUMENTS):
            raise UnsupportedModel(f"{name} with {', '.join(changing)} is not supported: config.json and its kin count")


def _read_prompts(path: Path) -> dict[str, Any]:
    settings = read_json(path, optional=True)
    require_settings(settings, WHOLE)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise SourceError(f"{path} gives prompts of {prompts!r:.100}: expected an object, a text a name")
    prompts = {name: text for name, text in prompts.items() if text is not None}
    if default is not None and default not in list(prompts):  # whatever it is
        raise SourceError(f"{path} has no prompt for its default_prompt_name {default!r:.100}: {list(prompts)}")
    return {"prompts": prompts, "default_prompt_name": default}


def _whole(length: object, folder: Path) -> int:
    """A number of tokens; some files hold it as 512.0 or 1e30."""
    if isinstance(length, bool) or not isinstance(length, int | float) or length % 1:
        raise SourceError(f"{folder} gives a longest text of {length!r} tokens: expected a whole number")
    return int(length)
