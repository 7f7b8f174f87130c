"""Reads what a sentence-transformers folder says around the network: modules.json and the files it names.

A folder without modules.json gets what sentence-transformers gives it: for an embedding mean pooling, no normalisation,
and nothing that other files of sentence-transformers say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export.errors import SourceError, UnsupportedModel
from export.families.settings import require_settings
from export.json_files import read_json
from export.modules import TEXT, TOKENS, Dense, Module, read_dense, read_modules, read_pooling, require_normalize
from export.tasks.detection import Found, choose_task, find_task
from model.config import Pooling
from model.tasks.settings import Task

SETTINGS = tuple(  # sentence-transformers reads the first of these files that says anything
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
PROMPTS = "config_sentence_transformers.json"
REPRODUCED: Mapping[str, tuple[object, ...]] = {"processing_kwargs": ({}, None), "query_expansion": (None,)}
ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
HARMLESS_ARGUMENTS = {  # how the original computes, not what
    *("trust_remote_code", "attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "use_fast"),
    *("use_memory_efficient_attention", "unpad_inputs"),
}


def _network(task: str, output: str, features: str) -> Mapping[str, tuple[object, ...]]:
    """What the settings of the Transformer module have to say."""
    forward = {"text": {"method": "forward", "method_output_name": output}}
    return {"transformer_task": (task,), "module_output_name": (features,), "modality_config": (forward,)}


NETWORKS: Mapping[Task, Mapping[str, tuple[object, ...]]] = {
    "embedding": _network("feature-extraction", "last_hidden_state", TOKENS),
    "classification": _network("sequence-classification", "logits", "scores"),
    "sparse": _network("fill-mask", "logits", TOKENS),
    "multi_vector": _network("feature-extraction", "last_hidden_state", TOKENS),
}
CLASSES: Mapping[Task, str] = {  # of sentence-transformers
    "embedding": "SentenceTransformer",
    "classification": "CrossEncoder",
    "sparse": "SparseEncoder",
    "multi_vector": "MultiVectorEncoder",
}
MODULES: Mapping[Task, tuple[str, ...]] = {
    "embedding": ("Transformer", "Pooling", "Dense", "Normalize"),
    "classification": ("Transformer",),
    "sparse": ("Transformer", "MLMTransformer", "SpladePooling"),
    "multi_vector": ("Transformer", "Dense", "MultiVectorMask", "Normalize"),
}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What surrounds the network.

    Attributes:
        transformer: folder of the network's own config.json, weights and tokenizer.
        task: what is exported.
        found: what the folder says of its task.
        modules: those of modules.json behind the network, by the name of their class; none where they are another
            task's.
        pooling: how tokens become one vector.
        dense: the dense layers after pooling, or the one on tokens.
        normalize: whether the pipeline ends in an L2 normalisation.
        settings: of the Transformer module; empty where there are none.
        around: config_sentence_transformers.json; empty where it does not count.
        max_sequence_length: tokens at most, or None where the folder does not say.
        do_lower_case: whether texts are lowered before the tokenizer.
        prompts: by name.
        default_prompt_name: the prompt used when none is named, or None.
    """

    transformer: Path
    task: Task = "embedding"
    found: Found
    modules: Mapping[str, Path] = field(default_factory=dict)
    pooling: Pooling = "mean"
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    around: Mapping[str, Any] = field(default_factory=dict)
    max_sequence_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


def read_pipeline(folder: Path, wanted: Task | None = None) -> Pipeline:
    """Reads modules.json and everything it names.

    Args:
        folder: of the checkpoint.
        wanted: the task to export; None for the one that the checkpoint is for.

    Raises:
        SourceError: a file is missing or no JSON.
        UnsupportedModel: a module or a setting that this version does not reproduce exactly, or a task that it does
            not know.
    """
    modules = read_modules(folder)
    transformer = modules[0].folder if modules else folder
    described = read_json(transformer / "config.json", optional=True)
    found = find_task([module.kind for module in modules], described, folder)
    task = choose_task(found, wanted)
    values: dict[str, Any] = {"transformer": transformer, "task": task, "found": found}
    if not modules:
        return Pipeline(**values, **_read_transformer_settings({}, transformer))
    settings = next(filter(None, (read_json(transformer / name, optional=True) for name in SETTINGS)), {})
    values |= _read_transformer_settings(settings, transformer)
    around = read_json(folder / PROMPTS, optional=True)
    if task == found.task:
        _require_modules(modules, task, folder / "modules.json")
        require_settings(settings, NETWORKS[task])
        require_settings(around, {"model_type": (CLASSES[task],), "truncate_dim": (None,)})
        values |= _read_modules(modules, task) | {"settings": settings, "around": around}
    return Pipeline(**values, **_read_prompts(around, folder / PROMPTS))


def _require_modules(modules: list[Module], task: Task, path: Path) -> None:
    kinds, known = [module.kind for module in modules], MODULES[task]
    if kinds[0] not in known[:2] or (task == "embedding" and kinds[:2] != ["Transformer", "Pooling"]):
        raise UnsupportedModel(f"{path} begins with {kinds[:2]}: expected {', '.join(known[:2])}")
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UnsupportedModel(f"module {unknown[0]} is not supported for task {task}: {', '.join(known)} are")
    if "Normalize" in kinds and "Dense" in kinds[kinds.index("Normalize") :]:
        raise UnsupportedModel("a Dense layer after Normalize is not supported: only before it")


def _read_modules(modules: list[Module], task: Task) -> dict[str, Any]:
    features = TEXT if task == "embedding" else TOKENS
    values: dict[str, Any] = {"modules": {module.kind: module.folder for module in modules[1:]}, "dense": ()}
    for kind, folder in modules[1:]:
        try:
            if kind == "Normalize":
                require_normalize(folder, features)
                values["normalize"] = True
            elif kind == "Pooling":
                values["pooling"] = read_pooling(folder)
            elif kind == "Dense":
                values["dense"] += (read_dense(folder, features),)
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{folder} is malformed: {error!r}") from error
    return values


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


def _read_prompts(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
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
