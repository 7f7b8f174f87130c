"""Reads a checkpoint: everything an artifact is made from, whole or refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from export.adapters import hash_adapter, merge_adapter, require_chosen
from export.errors import SourceError, UnsupportedModel
from export.families.bert import ALBERT, BERT, DISTILBERT, ELECTRA, ERNIE
from export.families.deberta import DEBERTA
from export.families.decoder import (
    EUROBERT,
    JINA_V5,
    LLAMA,
    LLAMA_BIDIRECTIONAL,
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN3_BIDIRECTIONAL,
)
from export.families.family import Family, refuse_remote_code
from export.families.gemma import GEMMA2, GEMMA3, text_settings
from export.families.gte import GTE, JINA_BERT, NOMIC_BERT
from export.families.modernbert import MODERNBERT
from export.families.own import POLYHEAD, STATIC, describe_table, plain_tokenizer
from export.families.roberta import JINA_V3, MPNET, ROBERTA, XLM_ROBERTA_FLASH
from export.families.t5 import T5
from export.late_interaction import METADATA, keep_markers_whole
from export.pipeline import Pipeline, read_pipeline, refuse_other_tasks
from export.sources import CHAT_TEMPLATE, Folder, pickled_weights, read_json
from export.tasks import yes_no
from export.tasks.registry import read_task_layers
from export.tasks.sparse import read_query_weights
from export.tasks.vectors import read_token_outputs
from export.tokenizer import prepare_pairs, read_tokenizer, refuse_own_code, without_trailing
from export.weights import read_weights
from model.artifact import COSINE, DOT, MANIFEST, Defaults, PairWording, Source, hash_file
from model.config import EncoderConfig, Pooling
from model.config_parts import LARGEST, ConfigError, Task
from model.encoder import Encoder

FAMILIES: Mapping[str, Family] = {
    model_type: family
    for family in (
        *(ALBERT, BERT, DEBERTA, DISTILBERT, ELECTRA, ERNIE, EUROBERT, GEMMA2, GEMMA3, GTE, JINA_BERT, JINA_V3),
        *(JINA_V5[True], LLAMA, LLAMA_BIDIRECTIONAL, MISTRAL, MODERNBERT, MPNET, NOMIC_BERT, POLYHEAD, QWEN2, QWEN3),
        *(ROBERTA, STATIC, T5),
    )
    for model_type in family.model_types
}

RENAMED: Mapping[tuple[str, str], Family] = {  # files that name another family: what tells them is their positions
    ("bert", "alibi"): JINA_BERT,
    ("xlm-roberta", "rotary"): JINA_V3,
    ("XLMRobertaFlashConfig", "absolute"): XLM_ROBERTA_FLASH,  # no model_type, but a class of the model's own code
    ("XLMRobertaFlashConfig", "rotary"): JINA_V3,
}
OTHER_FILES = ("vocab.txt", "merges.txt", METADATA, CHAT_TEMPLATE)  # besides JSON


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A network with its weights, and what surrounds it.

    Attributes:
        encoder: the network, in evaluation mode, float32.
        tokenizer: without truncation and padding.
        defaults: what callers get without asking for anything else.
        max_sequence_length: tokens at most, special tokens included.
        stated_length: the longest text that the original accepts if that is longer; else None.
        pairs: whether the network takes pairs of texts, as the tokenizer makes them.
        pair_wording: the text around the texts of a pair before the tokenizer reads them; None for nothing.
        further_outputs: arrays outside the graph, by name: layers on the last hidden state for an embedder's further
            outputs, or a sparse model's weights of words in queries; empty for none.
        removed: what training left out of the network that it began with, and `before` out of that; empty for nothing.
        examples: texts that the network knows the words of, for whoever looks at it first; empty if it names none.
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
    further_outputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    removed: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


def read_checkpoint(
    folder: Folder,
    *,
    name: str | None = None,
    max_length: int | None = None,
    task: Task | None = None,
    adapter: str | None = None,
    instruction: str | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    compared: bool = False,
) -> Checkpoint:
    """Reads a folder whole; None leaves a choice to the folder.

    Args:
        folder: of the checkpoint.
        name: name to serve it under.
        max_length: the longest text to serve, in tokens.
        task: what to export.
        adapter: which of the folder's adapters is merged into the weights, or the folder of one; None for none.
        instruction: what a language model judges documents by; None for the usual one.
        pooling: how tokens become one vector, if the folder does not say; None for the mean.
        normalize: whether vectors are answered at length 1.
        compared: whether the network is compared with the original later: unknown settings are then let through.

    Raises:
        SourceError: a file is missing, malformed, or not the one that was vouched for.
        UnsupportedModel: the network, or something around it, is not reproduced exactly by this version.
    """
    pipeline = read_pipeline(folder.path, task, pooling, adapter=adapter, allows_pickles=folder.allows_pickles)
    require_chosen(pipeline.transformer, adapter)
    encoder, described, sha256 = _read_network(folder, pipeline, task, adapter, compared=compared)
    config, limit = encoder.config, encoder.config.max_positions
    tokenizer, stated, pairs, wording = _read_words(pipeline, described, config, instruction, compared=compared)
    longest = min(stated or limit, limit) if max_length is None else max_length
    is_longer = stated is not None and limit < stated <= LARGEST  # tokenizers without a limit say 1e30
    files = _hash_rest(folder, pipeline) | hash_adapter(pipeline.transformer, adapter)
    own = described if described.get("model_type") in POLYHEAD.model_types else {}
    return Checkpoint(
        name=name or folder.id,
        source=Source(id=folder.id, revision=folder.revision, sha256=sha256, adapter=adapter, files=files),
        encoder=encoder,
        tokenizer=tokenizer,
        defaults=Defaults(
            pooling=config.pooling,
            normalize=pipeline.normalize,
            prompts=dict(pipeline.prompts),
            default_prompt_name=pipeline.default_prompt_name,
            **_read_lengths(pipeline, normalize),
        ),
        max_sequence_length=_require_room(longest, tokenizer, limit),
        stated_length=stated if max_length is None and config.positions == "none" and is_longer else None,
        pairs=pairs,
        pair_wording=wording,
        further_outputs=read_token_outputs(pipeline, config.hidden_size)
        | read_query_weights(pipeline, config.vocab_size),
        removed=own.get("removed", {}),
        examples=_read_examples(own),
    )


def _read_examples(described: Mapping[str, Any]) -> tuple[str, ...]:
    examples = described.get("examples", [])
    if not isinstance(examples, list) or not all(isinstance(text, str) for text in examples):
        raise SourceError(f"config.json gives examples of {examples!r:.100}: expected a list of texts")
    return tuple(examples)


def _read_network(
    folder: Folder, pipeline: Pipeline, task: Task | None, adapter: str | None, *, compared: bool
) -> tuple[Encoder, dict[str, Any], str]:
    """The network with its task's layers, its settings as its family has them, and the SHA-256 of its weights."""
    place, allows_pickles = pipeline.transformer, folder.allows_pickles
    if pipeline.is_table:  # its sizes are known from its weights alone
        tensors, sha256 = read_weights(place, allows_pickles=allows_pickles)
        family, described, config = _read_config(describe_table(place, tensors), pipeline, compared=compared)
    else:  # a wrong size is refused before the weights take memory
        family, described, config = _read_config(_describe(place), pipeline, compared=compared)
        tensors, sha256 = read_weights(place, allows_pickles=allows_pickles)
    if folder.sha256 and sha256 != folder.sha256:
        raise SourceError(f"the weights of {folder.id} have SHA-256 {sha256}, expected {folder.sha256}")
    tensors = merge_adapter(
        tensors, described, adapter, network=place, prefixes=family.prefixes, allows_pickles=allows_pickles
    )
    refuse_other_tasks(pipeline.found, task, tensors)
    config, task_state = read_task_layers(pipeline, described, family, tensors, config)
    own = {name: tensor for name, tensor in tensors.items() if name not in pipeline.inline}
    return build_encoder(config, {**family.read_state(own, described), **task_state}), described, sha256


def _read_words(
    pipeline: Pipeline, described: Mapping[str, Any], config: EncoderConfig, instruction: str | None, *, compared: bool
) -> tuple[Tokenizer, int | None, bool, PairWording | None]:
    """The tokenizer, the longest text that the folder states, whether pairs are taken, and the words around them."""
    network, stated, is_classifier = pipeline.transformer, pipeline.max_sequence_length, config.task == "classification"
    if pipeline.is_table:  # the original reads tokenizer.json alone, which `describe_table` took the limit from
        tokenizer, stated = plain_tokenizer(network), None
    else:
        refuse_own_code(network, compared=compared)
        tokenizer = keep_markers_whole(
            read_tokenizer(network, do_lower_case=pipeline.do_lower_case), pipeline.late.markers
        )
    if is_classifier and yes_no.is_language_model(described):
        question = yes_no.question_of_folder(yes_no.question_of(described), pipeline, tokenizer, instruction)
        tokenizer, wording, longest = yes_no.word_pairs(question, tokenizer, instruction)
        stated = min(stated or longest, longest)
        return _with_known_ids(tokenizer, config), stated, True, wording
    if instruction is not None:
        raise UnsupportedModel("an instruction is for language models that judge pairs of texts: this is none")
    pairs = False
    if is_classifier:
        tokenizer, pairs = prepare_pairs(tokenizer, network, types=config.type_vocab_size)
        if config.pooling == "last" and described.get("pad_token_id") is not None:
            # The original reads the last token that is not the padding's; in a causal network it sees none behind it.
            tokenizer, fewer = without_trailing(tokenizer, described["pad_token_id"])
            if fewer and not config.causal:
                raise UnsupportedModel("the tokenizer ends texts with the padding token, which the classifier skips")
            if fewer:  # the original's limit counts them
                stated = min(stated or config.max_positions, config.max_positions) - fewer
    return _with_known_ids(tokenizer, config), stated, pairs, None


def _read_lengths(pipeline: Pipeline, normalize: bool | None) -> dict[str, Any]:
    """Whether vectors are answered at length 1, and what compares them: the option, else what the folder says.

    A folder that neither normalises nor names a similarity is served at length 1, as other servers do.

    Raises:
        UnsupportedModel: `normalize` does not fit the folder or its task, or the folder names another similarity.
    """
    named = pipeline.around.get("similarity_fn_name")
    if pipeline.task != "embedding":
        if normalize is not None:
            raise UnsupportedModel(f"--normalize is for embeddings, and the task is {pipeline.task}")
        return {}
    if normalize is None and named not in (None, COSINE, DOT):
        raise UnsupportedModel(
            f"similarity_fn_name {named!r}: {COSINE}, {DOT} are supported; --normalize yes compares by cosines, and "
            "--normalize no by dot products"
        )
    if pipeline.normalize and normalize is False:
        raise UnsupportedModel("--normalize no: the checkpoint normalises its vectors itself (modules.json)")
    unit = normalize if normalize is not None else pipeline.normalize or named != DOT
    similarity = named if named in (COSINE, DOT) else COSINE if unit else DOT
    return {"unit_length": unit, "similarity": similarity}


def _hash_rest(folder: Folder, pipeline: Pipeline) -> dict[str, str]:
    """SHA-256 of settings, tokenizer, modules' weights and pickles, by path in the folder.

    What was saved with an adapter that lies elsewhere has a path in the adapter's folder, behind `adapter/`.
    """
    modules, whole = list(pipeline.modules.values()), folder.path
    places = {place for place in (whole, pipeline.folder, pipeline.transformer, *modules) if place.is_dir()}
    found = {path for place in places for path in place.glob("*.json")}
    if folder.allows_pickles:
        found |= {place / name for place in places for name in pickled_weights(path.name for path in place.iterdir())}
    found |= {path for name in OTHER_FILES if (path := pipeline.transformer / name).is_file()}
    found |= {path for place in modules if place != pipeline.transformer for path in place.glob("*.safetensors")}
    hashes = {}
    for path in sorted(found):
        is_own = path.is_relative_to(whole)
        name = path.relative_to(whole) if is_own else "adapter" / path.relative_to(pipeline.folder)
        hashes[name.as_posix()] = hash_file(path)
    return hashes


def require_embedding(checkpoint: Checkpoint, purpose: str) -> None:
    """Refuses another task than an embedding if embeddings are measured: an UnsupportedModel names the task."""
    if (task := checkpoint.encoder.config.task) != "embedding":
        raise UnsupportedModel(
            f"{checkpoint.name} is for task {task}, and {purpose} by embeddings: name an embedding model"
        )


def _with_known_ids(tokenizer: Tokenizer, config: EncoderConfig) -> Tokenizer:
    """The tokenizer without added tokens that have no row in the network: a text that holds one is read as its letters.

    EmbeddingGemma's has one for images. The original fails on such a text.
    """
    described = json.loads(tokenizer.to_str())
    kept = [token for token in described["added_tokens"] if token["id"] < config.vocab_size]
    if len(kept) < len(described["added_tokens"]):
        tokenizer = Tokenizer.from_str(json.dumps({**described, "added_tokens": kept}))
    around = tokenizer.encode("").ids
    largest = max([*tokenizer.get_vocab().values(), *around], default=0)  # not the count: ids may have gaps
    if largest >= config.vocab_size:
        raise SourceError(f"tokenizer.json has ids up to {largest}, the network {config.vocab_size} tokens")
    return tokenizer


def _describe(folder: Path) -> dict[str, Any]:
    if (folder / "gliner_config.json").is_file():
        raise UnsupportedModel(
            f"{folder} holds gliner_config.json: GLiNER labels spans by a network of its own behind the encoder, which "
            "is not built. Models of ...ForTokenClassification are exported, and POST /zero-shot ranks labels of yours"
        )
    if not (folder / "config.json").is_file():
        hint = ", and is an artifact already" if (folder / MANIFEST).is_file() else ""
        raise SourceError(f"{folder} holds no config.json{hint}: name a sentence-transformers or Hugging Face folder")
    return text_settings(read_json(folder / "config.json"))


def _require_room(longest: int, tokenizer: Tokenizer, limit: int) -> int:
    """The longest text to serve, in tokens: room for the special ones and one more, and at most positions."""
    shortest = tokenizer.num_special_tokens_to_add(is_pair=False) + 1
    if not shortest <= longest <= limit:
        raise SourceError(f"a longest text of {longest} tokens: expected {shortest} to {limit}")
    return longest


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


def find_family(described: Mapping[str, Any]) -> Family | None:
    """The family of a config.json, by its `model_type`, or by positions and names of a model's own code; or None."""
    own = described.get("auto_map") or {}
    code, network = (str(own.get(name)).rpartition(".")[-1] for name in ("AutoConfig", "AutoModel"))
    kind = str(described.get("model_type") or code)
    if kind in JINA_V5[False].model_types and described.get("is_decoder") is False:
        return JINA_V5[False]
    if kind in QWEN3.model_types and network.startswith(QWEN3_BIDIRECTIONAL.remote_classes):
        return QWEN3_BIDIRECTIONAL
    return RENAMED.get((kind, str(described.get("position_embedding_type")))) or FAMILIES.get(kind)


def _read_config(
    described: Mapping[str, Any], pipeline: Pipeline, *, compared: bool
) -> tuple[Family, dict[str, Any], EncoderConfig]:
    """The family that config.json names, its settings as `Family.settle` has them, and the network it describes."""
    path, family = pipeline.transformer / "config.json", find_family(described)
    if family is None:
        raise UnsupportedModel(
            f"{path} says model_type {described.get('model_type')!r}: this version knows {', '.join(FAMILIES)}"
        )
    try:
        refuse_remote_code(described, family.remote_classes)
        settled = dict(described) if family is POLYHEAD else family.settle(described, compared=compared)
        return family, settled, family.read_config(settled, pipeline.pooling)
    except KeyError as error:
        raise UnsupportedModel(f"{path} does not say {error}: the network cannot be built from it") from error
    except ConfigError as error:
        raise UnsupportedModel(f"{path}: {error}") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:  # a value of another type, or a zero
        raise UnsupportedModel(f"{path} is malformed: {error!r}") from error
