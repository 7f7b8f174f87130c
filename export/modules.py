"""Reads modules.json: which modules a checkpoint has, in which order, and what the files of each say."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from export.adapters import ADAPTER, ADAPTERS
from export.errors import SourceError, UnsupportedModel
from export.sources import read_json
from export.weights import read_weights
from model.config import Pooling
from model.config_parts import LayerActivation, Projection, Task

TEXT, TOKENS = "sentence_embedding", "token_embeddings"  # what modules read and write: one vector a text, or a token
SCORES = "scores"  # what the last module of a classifier writes
STATIC_TABLE = "StaticEmbedding"  # stands for the network: a table of vectors
MODULES: Mapping[Task, tuple[str, ...]] = {
    "embedding": ("Transformer", "Pooling", "Dense", "Normalize", STATIC_TABLE),
    "classification": ("Transformer", "LogitScore", "Pooling", "Dense", "LayerNorm"),
    "token_classification": ("Transformer",),
    "sparse": ("Transformer", "MLMTransformer", "SpladePooling", "Router"),
    "multi_vector": ("Transformer", "Dense", "MultiVectorMask", "Normalize"),
}
CLASSIFIERS = [
    ["Transformer"],
    ["Transformer", "LogitScore"],
    ["Transformer", "Pooling", "Dense"],
    ["Transformer", "Pooling", "Dense", "Dense"],
    ["Transformer", "Pooling", "Dense", "LayerNorm", "Dense"],
]
POOLING_MODES: Mapping[str, Pooling] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
POOLING_FLAGS: Mapping[str, str] = {  # the names of releases before 6
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
PYLATE_DENSE = "pylate.models.Dense.Dense"
ROUTER = "Router"  # documents are read by a network, queries by a table of weights
QUERY_TABLE = "SparseStaticEmbedding"
DROPOUT = "Dropout"  # changes nothing outside training
MAY_REPEAT = {"Dense", "Normalize", DROPOUT}
ADAPTED = "custom_st.Transformer"
DEFAULT_ACTIVATION = "torch.nn.Tanh"  # of a Dense module that names none
Choice = TypeVar("Choice")
DENSE_ACTIVATIONS: Mapping[str, LayerActivation] = {
    "Tanh": "tanh",
    "Identity": "identity",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
}


class Module(NamedTuple):
    """One entry of modules.json: the name of its class, and where its files are."""

    kind: str
    folder: Path


class Dense(NamedTuple):
    """A dense layer: its settings, and its tensors `weight`, `bias`, and `residual.weight` if there is one."""

    settings: Projection
    state: Mapping[str, Tensor]


def find_network(folder: Path) -> Path:
    """Where a checkpoint's own config.json, weights and tokenizer are."""
    modules = read_modules(folder)
    return modules[0].folder if modules else folder


def read_modules(folder: Path) -> list[Module]:
    """The modules in order; none without modules.json. Class names moved between packages over the years.

    A `Router` becomes the modules that read documents, and behind them a `Router` with the folder of its query table.
    A `Dropout` is left out.

    Raises:
        SourceError: modules.json is malformed, or leads out of the folder.
        UnsupportedModel: a module with code of its own, or several of a kind that may not repeat.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        named = [(entry["type"], os.fspath(entry["path"])) for entry in json.loads(path.read_bytes())]
        routed = _read_routes(folder, named[0][1]) if named and _class(named[0][0]) == ROUTER else named[:1]
        named = [*routed, *named[1:]]
        kinds = [_class(kind) for kind, _ in named]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path} is malformed: {error!r:.200}") from error
    if outside := [place for _, place in named if Path(place).is_absolute() or ".." in Path(place).parts]:
        raise SourceError(f"{path} names {outside[0]}, which is outside the folder")
    if foreign := [kind for kind, place in named if not _is_known(kind, folder / place)]:
        raise UnsupportedModel(f"{path} names {foreign[0]}: a module with code of its own, which is never run")
    if repeated := {kind for kind in kinds if kinds.count(kind) > 1} - MAY_REPEAT:
        raise UnsupportedModel(f"{path} has several modules {', '.join(sorted(repeated))}: one of a kind is supported")
    return [Module(kind, folder / place) for kind, (_, place) in zip(kinds, named, strict=True) if kind != DROPOUT]


def _class(kind: str) -> str:
    return kind.rsplit(".", 1)[-1]


def _read_routes(folder: Path, place: str) -> list[tuple[str, str]]:
    """Types and paths of the modules that a router sends documents through, and of itself at its table for queries."""
    path = folder / place / "router_config.json"
    said = read_json(path)
    types, routes = said["types"], said["structure"]
    found = {route: [_class(types[name]) for name in names] for route, names in routes.items()}
    others = found.keys() - {"query", "document"}
    if others or found["query"] != [QUERY_TABLE] or (said.get("parameters") or {}).get("route_mappings"):
        raise UnsupportedModel(
            f"{path} has the routes {found}: supported are a network for documents and a {QUERY_TABLE} for queries"
        )
    documents = [(types[name], os.path.join(place, name)) for name in routes["document"]]
    return [*documents, (f"sentence_transformers.{ROUTER}", os.path.join(place, *routes["query"]))]


def _is_known(kind: str, folder: Path) -> bool:
    """One of sentence-transformers', PyLate's Dense, or the Transformer of jina-embeddings-v3 and -v5 with adapters."""
    if kind == ADAPTED:
        has_own = bool(read_json(folder / "config.json", optional=True).get("lora_adaptations"))
        return has_own or any(folder.glob(f"{ADAPTERS}/*/{ADAPTER}"))
    return kind.startswith("sentence_transformers.") or kind == PYLATE_DENSE


def require_modules(modules: list[Module], task: Task, path: Path) -> None:
    """Refuses, with an UnsupportedModel, modules in another order than a task's, or others; `path` lists them."""
    kinds, known = [module.kind for module in modules], MODULES[task]
    starts = (["Transformer", "Pooling"], [STATIC_TABLE], [STATIC_TABLE, "Normalize"])
    if kinds[0] not in (*known[:2], STATIC_TABLE) or (task == "embedding" and kinds[:2] not in starts):
        raise UnsupportedModel(f"{path} begins with {kinds[:2]}: expected {', '.join(known[:2])}")
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UnsupportedModel(f"module {unknown[0]} is not supported for task {task}: {', '.join(known)} are")
    if task == "classification" and kinds not in CLASSIFIERS:
        orders = "; ".join(map(", ".join, CLASSIFIERS))
        raise UnsupportedModel(f"{path} lists {', '.join(kinds)}: a classifier has the modules {orders}")
    if "Normalize" in kinds and "Dense" in kinds[kinds.index("Normalize") :]:
        raise UnsupportedModel("a Dense layer after Normalize is not supported: only before it")


def read_module_files(modules: list[Module], task: Task, *, allows_pickles: bool) -> dict[str, Any]:
    """What the modules behind the network say, by the names of `Pipeline`.

    Raises:
        SourceError: a file is malformed.
        UnsupportedModel: a setting that is not reproduced.
    """
    features = TEXT if task in ("embedding", "classification") else TOKENS
    values: dict[str, Any] = {"modules": {module.kind: module.folder for module in modules[1:]}, "dense": ()}
    for place, (kind, folder) in enumerate(modules[1:], start=2):
        written = SCORES if task == "classification" and place == len(modules) else features
        try:
            if kind == "Normalize":
                _require_features(read_json(folder / "config.json", optional=True), features, "a Normalize module")
                values["normalize"] = True
            elif kind == "Pooling":
                values["pooling"] = read_pooling(folder)
            elif kind == "Dense":
                values["dense"] += (read_dense(folder, features, written, allows_pickles=allows_pickles),)
            elif kind == "LayerNorm":
                values["layer_norm"] = _read_layer(folder, "norm.", allows_pickles=allows_pickles)
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{folder} is malformed: {error!r}") from error
    return values


def read_pooling(folder: Path) -> Pooling:
    """How tokens become one vector, or an UnsupportedModel."""
    config = read_json(folder / "config.json")
    flags = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)]
    modes = config.get("pooling_mode") or flags or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) > 1 or modes[0] not in POOLING_MODES:
        raise UnsupportedModel(f"pooling {'+'.join(modes)} is not supported: one of {', '.join(POOLING_MODES)} is")
    if config.get("include_prompt") is False:
        raise UnsupportedModel("pooling that leaves out the prompt (include_prompt: false) is not supported")
    return POOLING_MODES[modes[0]]


def read_dense(folder: Path, features: str, written: str, *, allows_pickles: bool) -> Dense:
    """A dense layer on these features, which writes those.

    Raises:
        UnsupportedModel: another activation than is reproduced, a residual, or other features.
    """
    config = read_json(folder / "config.json")
    activation = read_torch_class(config.get("activation_function", DEFAULT_ACTIVATION), DENSE_ACTIVATIONS)
    if features == TOKENS:  # what a dense layer reads if it does not say
        config = {"module_input_name": TOKENS, **config}
    _require_features(config, features, "a dense layer", written)
    residual = bool(config.get("use_residual"))
    if residual and features != TOKENS:
        raise UnsupportedModel("a dense layer with a residual is not supported behind pooling")
    state = _read_layer(folder, "linear.", allows_pickles=allows_pickles)
    size, bias = config["out_features"], config.get("bias", True)
    return Dense(Projection(size=size, bias=bias, activation=activation, residual=residual), state)


def _read_layer(folder: Path, prefix: str, *, allows_pickles: bool) -> dict[str, Tensor]:
    tensors, _ = read_weights(folder, allows_pickles=allows_pickles)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def read_torch_class(name: object, known: Mapping[str, Choice]) -> Choice:
    """What one of torch's classes stands for, such as `torch.nn.modules.activation.Tanh`, or an UnsupportedModel."""
    package, _, kind = str(name).rpartition(".")
    if kind not in known or package.partition(".")[0] != "torch":
        raise UnsupportedModel(f"{name} is not supported: {', '.join(known)} of torch are")
    return known[kind]


def _require_features(config: Mapping[str, Any], features: str, what: str, written: str = "") -> None:
    read = config.get("module_input_name") or TEXT
    if (read, config.get("module_output_name") or read) != (features, written or features):
        vector = "the pooled vector" if features == TEXT else "tokens' vectors"
        raise UnsupportedModel(f"{what} on anything but {vector} is not supported")
