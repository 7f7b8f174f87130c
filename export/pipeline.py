"""Reads what a checkpoint's folder says around the network: its task, modules.json, and the files that this names.

A folder without modules.json gets what sentence-transformers gives it: for an embedding mean pooling, no normalisation,
and nothing that other files of sentence-transformers say. A checkpoint of one task is never taken for another unasked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from torch import Tensor

from export.adapters import find_adapter
from export.errors import SourceError, UnsupportedModel
from export.families.family import require_settings
from export.late_interaction import (
    INLINE_DENSE,
    PYLATE,
    STANFORD,
    LateInteraction,
    read_late_interaction,
    read_stanford,
)
from export.modules import (
    MODULES,
    STATIC_TABLE,
    TOKENS,
    Dense,
    find_network,
    read_module_files,
    read_modules,
    require_modules,
)
from export.sources import read_json
from model.config import Pooling
from model.config_parts import Task

SETTINGS = tuple(  # sentence-transformers reads the first of these files that says anything
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
PROMPTS = "config_sentence_transformers.json"
REPRODUCED: Mapping[str, tuple[object, ...]] = {"processing_kwargs": ({}, None)}
BY_ROLE: Mapping[str, tuple[object, ...]] = dict.fromkeys(  # of late interaction alone
    ("query_length", "document_length", "query_expansion"), (None,)
)
ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
HARMLESS_ARGUMENTS = {  # how the original computes, not what
    *("trust_remote_code", "attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "use_fast"),
    *("use_memory_efficient_attention", "unpad_inputs", "safe_serialization", "low_cpu_mem_usage"),
}


def _network(task: str, output: str, features: str) -> Mapping[str, tuple[object, ...]]:
    """What the settings of the Transformer module have to say."""
    forward = {"text": {"method": "forward", "method_output_name": output}}
    return {"transformer_task": (task,), "module_output_name": (features,), "modality_config": (forward,)}


NETWORKS: Mapping[Task, Mapping[str, tuple[object, ...]]] = {
    "embedding": _network("feature-extraction", "last_hidden_state", TOKENS),
    "classification": _network("sequence-classification", "logits", "scores"),
    "token_classification": _network("token-classification", "logits", TOKENS),
    "sparse": _network("fill-mask", "logits", TOKENS),
    "multi_vector": _network("feature-extraction", "last_hidden_state", TOKENS),
}
BY_MODULE: Mapping[str, Mapping[str, tuple[object, ...]]] = {  # a classifier's, where its layers are modules
    "LogitScore": {"transformer_task": ("text-generation",)},
    "Pooling": NETWORKS["embedding"],
}
CLASSES: Mapping[Task, str] = {  # of sentence-transformers, which has none for labels on tokens
    "embedding": "SentenceTransformer",
    "classification": "CrossEncoder",
    "token_classification": "",
    "sparse": "SparseEncoder",
    "multi_vector": "MultiVectorEncoder",
}
ARCHITECTURES: Mapping[str, Task] = {  # endings of the class names that `transformers` writes into config.json
    "Model": "embedding",
    "Contriever": "embedding",  # BERT, as its authors' code names it
    "ForMaskedLM": "embedding",  # what nearly every encoder was trained as before it was anything else
    "ForPreTraining": "embedding",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "token_classification",
}
STATED: Mapping[str, Task] = {  # the module of modules.json that only one task has
    "SpladePooling": "sparse",
    "LogitScore": "classification",
    "Pooling": "embedding",
    STATIC_TABLE: "embedding",
    "MultiVectorMask": "multi_vector",
}
OTHER_TASKS = ("classifier.", "qa_outputs.", "score.")  # beginnings of tensor names that no embedding has


class Found(NamedTuple):
    """What a checkpoint says of its task, None for one that is not done here; `sign` is where that stands.

    It is stated if the checkpoint is whole as this task: its modules are listed, not only its network.
    """

    task: Task | None
    sign: str
    is_stated: bool


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What surrounds the network.

    Attributes:
        folder: that modules.json is in, or would be: the adapter's if that brings its own.
        is_table: whether a table of vectors stands for the network.
        transformer: folder of the network's own config.json, weights and tokenizer.
        modules: of modules.json behind the network, by the name of their class; none if they are another task's.
        dense: the dense layers after pooling, or on tokens.
        layer_norm: tensors of the LayerNorm between the two of a classifier; none without it.
        late: how queries and documents are read, of task multi_vector.
        inline: names of tensors among the network's that are the task's.
        normalize: whether the pipeline ends in an L2 normalisation.
        around: config_sentence_transformers.json; empty where it does not count.
        max_sequence_length: tokens at most, or None where the folder does not say.
        do_lower_case: whether texts are lowered before the tokenizer.
    """

    folder: Path
    transformer: Path
    is_table: bool = False
    task: Task = "embedding"
    found: Found
    modules: Mapping[str, Path] = field(default_factory=dict)
    pooling: Pooling = "mean"
    dense: tuple[Dense, ...] = ()
    layer_norm: Mapping[str, Tensor] = field(default_factory=dict)
    normalize: bool = False
    around: Mapping[str, Any] = field(default_factory=dict)
    max_sequence_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    late: LateInteraction = field(default_factory=LateInteraction)
    inline: tuple[str, ...] = ()
    allows_pickles: bool = False


def read_pipeline(
    folder: Path,
    wanted: Task | None = None,
    pooling: Pooling | None = None,
    *,
    adapter: str | None = None,
    allows_pickles: bool = False,
) -> Pipeline:
    """Reads modules.json and everything it names: the adapter's, where sentence-transformers saved one beside it.

    `wanted` is the task to export, None for the one that the checkpoint is for; `pooling` is for a folder that does not
    say, None for the mean; `adapter` is a name or a folder. Dense layers may be pickles if these are allowed.

    Raises:
        SourceError: a file is missing or no JSON.
        UnsupportedModel: a module or a setting that this version does not reproduce exactly, or a task that it does
            not know.
    """
    try:
        if adapter:
            network = find_network(folder)
            trained = find_adapter(network, adapter)
            if trained is not None and (trained / "modules.json").is_file():
                return replace(_read(trained, wanted, pooling, allows_pickles), transformer=network)
        return _read(folder, wanted, pooling, allows_pickles)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:  # a value of another type
        raise SourceError(f"{folder}: a file next to the network is malformed: {error!r:.200}") from error


def _read(folder: Path, wanted: Task | None, pooling: Pooling | None, allows_pickles: bool) -> Pipeline:
    modules = read_modules(folder)
    transformer = modules[0].folder if modules else folder
    described = read_json(transformer / "config.json", optional=True)
    around = read_json(folder / PROMPTS, optional=True)
    found = find_task([module.kind for module in modules], described, folder, around)
    task = wanted or found.task or _refuse_unknown_task(found.sign)
    values: dict[str, Any] = {"folder": folder, "transformer": transformer, "task": task, "found": found}
    values |= {"allows_pickles": allows_pickles, "is_table": bool(modules) and modules[0].kind == STATIC_TABLE}
    if pooling is not None and (modules or task != "embedding" or described.get("pooling")):
        raise UnsupportedModel(f"--pooling {pooling} is for embeddings of folders that do not say how: {found.sign}")
    if not modules:
        if task == found.task == "multi_vector" and described.get("model_type") != "polyhead":
            late = read_stanford(folder)
            values |= {"late": late, "prompts": late.prompts, "inline": (INLINE_DENSE,), "normalize": True}
        return Pipeline(**values, **_read_transformer_settings({}, transformer), pooling=pooling or "mean")
    settings = next(filter(None, (read_json(transformer / name, optional=True) for name in SETTINGS)), {})
    values |= _read_transformer_settings(settings, transformer, expands=task == found.task == "multi_vector")
    prompts = _read_prompts(around, folder / PROMPTS)
    kinds = [module.kind for module in modules]
    unknown = sorted(set(kinds).difference(*MODULES.values()))
    if unknown and task != found.task:  # the modules of another task are left out, but none that no one knows
        raise UnsupportedModel(
            f"{folder / 'modules.json'} lists module {unknown[0]}, which this version reproduces for no task"
        )
    if task == found.task:
        require_modules(modules, task, folder / "modules.json")
        by_module = BY_MODULE.get(kinds[1]) if task == "classification" and len(kinds) > 1 else None
        require_settings(_for_texts(settings), by_module or NETWORKS[task])
        classes = (CLASSES[task], PYLATE) if task == "multi_vector" else (CLASSES[task],)
        require_settings(around, {"model_type": classes, "max_active_dims": (None,)})
        if (fewer := around.get("truncate_dim")) is not None:
            raise UnsupportedModel(
                f"{folder / PROMPTS} says truncate_dim {fewer}: an artifact has all dimensions, and each request may "
                "ask for the first of them (dimensions). Set truncate_dim to null"
            )
        values |= read_module_files(modules, task, allows_pickles=allows_pickles)
        values["around"] = around
        if task == "multi_vector":
            late = read_late_interaction(around, settings, values["modules"].get("MultiVectorMask"))
            prompts["prompts"] |= late.prompts
            if not values.get("normalize") and around.get("model_type") != PYLATE:
                raise UnsupportedModel(
                    f"{folder / 'modules.json'} lists no Normalize: token vectors have to be of length 1"
                )
            values |= {"late": late, "normalize": True}
    return Pipeline(**values, **prompts)


def find_task(
    kinds: Sequence[str], described: Mapping[str, Any], folder: Path, around: Mapping[str, Any] | None = None
) -> Found:
    """Reads the task from the kinds of modules.json, or from the network's architecture if there is none.

    `described` is the network's config.json, `around` config_sentence_transformers.json; `folder` is for messages.
    """
    sign = f"{folder / 'modules.json'} lists {', '.join(kinds)}"
    saved = (around or {}).get("model_type")
    stated = next((task for kind, task in STATED.items() if kind in kinds), None)
    if stated == "embedding" and saved == CLASSES["classification"]:
        stated = "classification"
    if stated is None and kinds and saved == PYLATE:
        stated = "multi_vector"
    if stated is not None:
        return Found(stated, sign, is_stated=True)
    if described.get("model_type") == "polyhead":
        return Found(described.get("task", "embedding"), f"{folder / 'config.json'} names its task", is_stated=True)
    classes = described.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    if not name:
        return Found("embedding", f"{folder / 'config.json'} names no architecture", is_stated=False)
    if name == STANFORD and not kinds:
        return Found("multi_vector", f"{folder / 'config.json'} names the architecture {name}", is_stated=True)
    ending = next((ending for ending in ARCHITECTURES if name.endswith(ending)), None)
    task = None if ending is None else ARCHITECTURES[ending]
    return Found(task, f"{folder / 'config.json'} names the architecture {name}", is_stated=False)


def _refuse_unknown_task(sign: str) -> NoReturn:
    judge = "; --task classification exports it as a reranker that says yes or no, if that is what it was made for"
    raise UnsupportedModel(
        f"{sign}, which is for none of the tasks {', '.join(get_args(Task))}: --task embedding exports its encoder "
        f"without the layers of that architecture{judge if sign.endswith('ForCausalLM') else ''}"
    )


def refuse_other_tasks(found: Found, wanted: Task | None, tensors: Iterable[str]) -> None:
    """Refuses, with an UnsupportedModel, to leave out the layers of another task unless the task was named."""
    if wanted is not None or found.is_stated or found.task != "embedding":
        return
    if left_out := sorted(name for name in tensors if name.startswith(OTHER_TASKS)):
        raise UnsupportedModel(
            f"{found.sign}, and its weights hold {left_out[0]}, which no embedding uses: say --task classification to "
            "export what they are for, or --task embedding to leave them out"
        )


def _for_texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the Transformer module without those for images, video and sound, which change no text."""
    read = settings.get("modality_config")
    if not isinstance(read, dict):
        return dict(settings)
    return {**settings, "modality_config": {kind: read[kind] for kind in ("text", "message") if kind in read}}


def _read_transformer_settings(settings: Mapping[str, Any], folder: Path, *, expands: bool = False) -> dict[str, Any]:
    require_settings(settings, REPRODUCED if expands else {**REPRODUCED, **BY_ROLE})
    for name in ARGUMENTS:  # which sentence-transformers would hand on
        if changing := sorted(set(settings.get(name) or {}) - HARMLESS_ARGUMENTS):
            raise UnsupportedModel(f"{name} with {', '.join(changing)} is not supported: config.json and its kin count")
    tokenizer = read_json(folder / "tokenizer_config.json", optional=True)
    length = settings.get("max_seq_length") or tokenizer.get("model_max_length")
    return {
        "max_sequence_length": None if length is None else int(length),  # some files hold it as 512.0 or 1e30
        "do_lower_case": bool(settings.get("do_lower_case")),
    }


def _read_prompts(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    prompts = {name: text for name, text in prompts.items() if text is not None}
    if not all(isinstance(text, str) for text in prompts.values()):  # the service would refuse the artifact
        raise TypeError(f"prompts {prompts}: expected a text a name")
    if default is not None and default not in list(prompts):  # whatever it is
        raise SourceError(f"{path} has no prompt for its default_prompt_name {default!r:.100}: {list(prompts)}")
    return {"prompts": prompts, "default_prompt_name": default}
