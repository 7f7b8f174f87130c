"""Reads modules.json of a sentence-transformers folder, and what its modules say."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from export.errors import SourceError, UnsupportedModel
from export.json_files import read_json
from export.weights import read_weights
from model.config import Pooling
from model.config_parts import ProjectionActivation

TEXT, TOKENS = "sentence_embedding", "token_embeddings"  # what modules read and write: one vector a text, or a token
POOLING_MODES: Mapping[str, Pooling] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
POOLING_FLAGS: Mapping[str, str] = {  # the names of releases before 6
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ADAPTED = "custom_st.Transformer"
DEFAULT_ACTIVATION = "torch.nn.Tanh"  # of a Dense module that names none
DENSE_ACTIVATIONS: Mapping[str, ProjectionActivation] = {"Tanh": "tanh", "Identity": "identity"}


class Module(NamedTuple):
    """One entry of modules.json: the name of its class, and where its files are."""

    kind: str
    folder: Path


class Dense(NamedTuple):
    """A dense layer: its settings, and its tensors `weight` and `bias`."""

    size: int
    bias: bool
    activation: ProjectionActivation
    state: Mapping[str, Tensor]


def read_modules(folder: Path) -> list[Module]:
    """The modules in order; none where there is no modules.json. Class names moved between packages over the years.

    Raises:
        SourceError: modules.json is malformed, or leads out of the folder.
        UnsupportedModel: a module with code of its own, or several of a kind other than Dense.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        named = [(entry["type"], os.fspath(entry["path"])) for entry in json.loads(path.read_bytes())]
        kinds = [kind.rsplit(".", 1)[-1] for kind, _ in named]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path} is malformed: {error!r:.200}") from error
    if outside := [place for _, place in named if Path(place).is_absolute() or ".." in Path(place).parts]:
        raise SourceError(f"{path} names {outside[0]}, which is outside the folder")
    if foreign := [kind for kind, place in named if not _is_known(kind, folder / place)]:
        raise UnsupportedModel(f"{path} names {foreign[0]}: a module with code of its own, which is never run")
    if repeated := {kind for kind in kinds if kinds.count(kind) > 1 and kind != "Dense"}:
        raise UnsupportedModel(f"{path} has several modules {', '.join(sorted(repeated))}: one of a kind is supported")
    return [Module(kind, folder / place) for kind, (_, place) in zip(kinds, named, strict=True)]


def _is_known(kind: str, folder: Path) -> bool:
    """One of sentence-transformers', or the Transformer of jina-embeddings-v3, which adds the choice of an adapter."""
    if kind == ADAPTED:
        return bool(read_json(folder / "config.json", optional=True).get("lora_adaptations"))
    return kind.startswith("sentence_transformers.")


def read_pooling(folder: Path) -> Pooling:
    """How tokens become one vector.

    Raises:
        UnsupportedModel: in a way that is not reproduced.
    """
    config = read_json(folder / "config.json")
    flags = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)]
    modes = config.get("pooling_mode") or flags or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) > 1 or modes[0] not in POOLING_MODES:
        raise UnsupportedModel(f"pooling {'+'.join(modes)} is not supported: one of {', '.join(POOLING_MODES)} is")
    if config.get("include_prompt") is False:
        raise UnsupportedModel("pooling that leaves out the prompt (include_prompt: false) is not supported")
    return POOLING_MODES[modes[0]]


def read_dense(folder: Path, features: str) -> Dense:
    """A dense layer on these features.

    Raises:
        UnsupportedModel: another activation than is reproduced, a residual, or other features.
    """
    config = read_json(folder / "config.json")
    named = str(config.get("activation_function", DEFAULT_ACTIVATION))
    activation = named.rpartition(".")[-1]
    if activation not in DENSE_ACTIVATIONS or not named.startswith("torch."):
        raise UnsupportedModel(f"dense activation {named} is not supported: torch's Tanh and Identity are")
    _require_features(config, features, "a dense layer")
    if config.get("use_residual"):
        raise UnsupportedModel("a dense layer with a residual is not supported")
    tensors, _ = read_weights(folder)
    state = {name.removeprefix("linear."): tensor for name, tensor in tensors.items()}
    return Dense(config["out_features"], config.get("bias", True), DENSE_ACTIVATIONS[activation], state)


def require_normalize(folder: Path, features: str) -> None:
    """Refuses a normalisation of other features than these."""
    _require_features(read_json(folder / "config.json", optional=True), features, "a Normalize module")


def _require_features(config: Mapping[str, Any], features: str, what: str) -> None:
    names = {config.get(name) or TEXT for name in ("module_input_name", "module_output_name")}
    if config.get("module_output_name") is None:
        names = {config.get("module_input_name") or TEXT}  # written where it was read
    if names != {features}:
        vector = "the pooled vector" if features == TEXT else "tokens' vectors"
        raise UnsupportedModel(f"{what} on anything but {vector} is not supported")
