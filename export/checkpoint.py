"""A checkpoint: everything an artifact is made from, read whole or refused.

It brings together where the files are, what surrounds the network, the family's tables and the tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from export.adapters import merge_adapter
from export.errors import SourceError, UnsupportedModel
from export.families import (
    albert,
    bert,
    distilbert,
    electra,
    eurobert,
    gemma3,
    gte,
    jina_bert,
    jina_v3,
    modernbert,
    mpnet,
    nomic_bert,
    polyhead,
    qwen3,
    roberta,
    t5,
)
from export.families.settings import refuse_remote_code
from export.json_files import read_json
from export.pairs import prepare_pairs
from export.pipeline import Pipeline, read_pipeline
from export.sources import Folder
from export.tasks import yes_no
from export.tasks.detection import refuse_other_tasks
from export.tasks.registry import read_task_layers
from export.tokenizer import read_tokenizer
from export.weights import read_weights
from model.artifact import MANIFEST
from model.config import EncoderConfig
from model.config_checks import LARGEST, ConfigError
from model.encoder import Encoder
from model.manifest import Defaults, Source
from model.pair_wording import PairWording
from model.tasks.settings import Task

ADAPTER = "adapter_config.json"  # sentence-transformers applies what it describes

FAMILIES: Mapping[str, ModuleType] = {
    model_type: family
    for family in (
        *(albert, bert, distilbert, electra, eurobert, gemma3, gte, jina_bert, jina_v3, modernbert, mpnet),
        *(nomic_bert, polyhead, qwen3, roberta, t5),
    )
    for model_type in family.MODEL_TYPES
}

RENAMED: Mapping[tuple[str, str], ModuleType] = {  # files that name another family: what tells them is their positions
    ("bert", "alibi"): jina_bert,
    ("xlm-roberta", "rotary"): jina_v3,
}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A network with its weights, and what surrounds it.

    Attributes:
        name: name to serve it under.
        source: where the weights came from.
        encoder: the network, in evaluation mode, float32.
        tokenizer: without truncation and padding.
        defaults: pooling, normalisation, prompts.
        max_sequence_length: tokens at most, special tokens included.
        stated_length: the longest text that the original takes, where that is longer; else None.
        pairs: whether the network takes pairs of texts, as the tokenizer makes them.
        pair_wording: what stands around the texts of a pair before the tokenizer reads them; None for nothing.
    """

    name: str
    source: Source
    encoder: Encoder
    tokenizer: Tokenizer
    defaults: Defaults
    max_sequence_length: int
    stated_length: int | None = None
    pairs: bool = False
    pair_wording: PairWording | None = None


def read_checkpoint(
    folder: Folder,
    *,
    name: str | None = None,
    max_length: int | None = None,
    task: Task | None = None,
    adapter: str | None = None,
    instruction: str | None = None,
) -> Checkpoint:
    """Reads a folder whole.

    Args:
        folder: where it is.
        name: name to serve it under; None for the folder's.
        max_length: the longest text to serve, in tokens; None for what the folder says.
        task: what to export; None for what the folder is for.
        adapter: which of the folder's adapters is merged into the weights; None where it has none.
        instruction: what a language model judges documents by; None for the usual one.

    Raises:
        SourceError: a file is missing, malformed, or not the one that was vouched for.
        UnsupportedModel: the network, or something around it, is not reproduced exactly by this version.
    """
    pipeline = read_pipeline(folder.path, task)
    described = _describe(pipeline.transformer)
    family, config = _read_config(described, pipeline)
    tensors, sha256 = read_weights(pipeline.transformer)
    if folder.sha256 and sha256 != folder.sha256:
        raise SourceError(f"the weights of {folder.id} have SHA-256 {sha256}, expected {folder.sha256}")
    tensors = merge_adapter(tensors, described, adapter)
    refuse_other_tasks(pipeline.found, task, tensors)
    config, task_state = read_task_layers(pipeline, described, family, tensors, config)
    encoder = build_encoder(config, {**family.read_state(tensors, described), **task_state})
    tokenizer = read_tokenizer(pipeline.transformer, do_lower_case=pipeline.do_lower_case)
    pairs, wording = False, None
    if config.task == "classification" and yes_no.is_language_model(described):
        (tokenizer, wording), pairs = yes_no.word_pairs(tokenizer, instruction), True
        pipeline = yes_no.limit_length(pipeline)
    elif instruction is not None:
        raise UnsupportedModel("an instruction is for language models that judge pairs of texts: this is none")
    elif config.task == "classification":
        tokenizer, pairs = prepare_pairs(tokenizer, pipeline.transformer, has_types=config.type_vocab_size > 1)
    _require_known_ids(tokenizer, config)
    return Checkpoint(
        name=name or folder.id,
        source=Source(id=folder.id, revision=folder.revision, sha256=sha256, adapter=adapter),
        encoder=encoder,
        tokenizer=tokenizer,
        defaults=Defaults(
            pooling=config.pooling,
            normalize=pipeline.normalize,
            prompts=dict(pipeline.prompts),
            default_prompt_name=pipeline.default_prompt_name,
        ),
        max_sequence_length=_longest(max_length, pipeline, tokenizer, config),
        stated_length=_beyond(pipeline, config) if max_length is None else None,
        pairs=pairs,
        pair_wording=wording,
    )


def require_embedding(checkpoint: Checkpoint, purpose: str) -> None:
    """Refuses another task than an embedding where embeddings are what is measured.

    Raises:
        UnsupportedModel: names the task.
    """
    if (task := checkpoint.encoder.config.task) != "embedding":
        raise UnsupportedModel(
            f"{checkpoint.name} is for task {task}, and {purpose} by embeddings: name an embedding model"
        )


def _require_known_ids(tokenizer: Tokenizer, config: EncoderConfig) -> None:
    around = tokenizer.encode("").ids
    largest = max([*tokenizer.get_vocab().values(), *around], default=0)  # not the count: ids may have gaps
    if largest >= config.vocab_size:
        raise SourceError(f"tokenizer.json has ids up to {largest}, the network {config.vocab_size} tokens")


def _describe(folder: Path) -> dict[str, Any]:
    if (folder / ADAPTER).is_file():
        raise UnsupportedModel(
            f"{folder} holds {ADAPTER}: an adapter is not applied here. Merge it into the model first "
            "(merge_and_unload of `peft`), and save that without it"
        )
    if not (folder / "config.json").is_file():
        hint = ", and is an artifact already" if (folder / MANIFEST).is_file() else ""
        raise SourceError(f"{folder} holds no config.json{hint}: name a sentence-transformers or Hugging Face folder")
    return read_json(folder / "config.json")


def _longest(wanted: int | None, pipeline: Pipeline, tokenizer: Tokenizer, config: EncoderConfig) -> int:
    """The longest text to serve, in tokens: room for the special ones and one more, and no more than positions."""
    shortest = tokenizer.num_special_tokens_to_add(is_pair=False) + 1
    if wanted is None:
        wanted = min(pipeline.max_sequence_length or config.max_positions, config.max_positions)
    if not shortest <= wanted <= config.max_positions:
        raise SourceError(f"a longest text of {wanted} tokens: expected {shortest} to {config.max_positions}")
    return wanted


def _beyond(pipeline: Pipeline, config: EncoderConfig) -> int | None:
    """The longest text that the folder states, where it is longer than the positions reproduced here."""
    stated = pipeline.max_sequence_length
    if stated is None or stated > LARGEST or config.positions != "none":  # tokenizers without a limit say 1e30
        return None
    return stated if stated > config.max_positions else None


def build_encoder(config: EncoderConfig, state: Mapping[str, Tensor]) -> Encoder:
    """An encoder in evaluation mode with exactly these weights.

    Raises:
        UnsupportedModel: a tensor is missing, left over, of another shape, or none of floating-point numbers.
    """
    with torch.device("meta"):
        encoder = Encoder(config)
    expected = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise UnsupportedModel(
            f"{len(wrong)} tensors do not fit the configuration, such as {wrong[0]}: "
            f"expected {expected.get(wrong[0], 'none')}, found {found.get(wrong[0], 'none')}"
        )
    if odd := [name for name, tensor in state.items() if not tensor.is_floating_point()]:
        raise UnsupportedModel(f"{odd[0]} is made of {state[odd[0]].dtype}: weights are floating-point numbers")
    encoder.load_state_dict(dict(state), assign=True)
    return encoder.share_weights().eval().requires_grad_(False)


def _read_config(described: Mapping[str, Any], pipeline: Pipeline) -> tuple[ModuleType, EncoderConfig]:
    """The family that config.json names, and the network it describes."""
    path = pipeline.transformer / "config.json"
    kind = str(described.get("model_type"))
    family = RENAMED.get((kind, str(described.get("position_embedding_type")))) or FAMILIES.get(kind)
    if family is None:
        raise UnsupportedModel(
            f"{path} says model_type {described.get('model_type')!r}: this version knows {', '.join(FAMILIES)}"
        )
    try:
        refuse_remote_code(described, getattr(family, "REMOTE_CLASSES", ()))
        return family, family.read_config(described, pipeline.pooling)
    except KeyError as error:
        raise UnsupportedModel(f"{path} does not say {error}: the network cannot be built from it") from error
    except ConfigError as error:
        raise UnsupportedModel(f"{path}: {error}") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:  # a value of another type, or a zero
        raise UnsupportedModel(f"{path} is malformed: {error!r}") from error
