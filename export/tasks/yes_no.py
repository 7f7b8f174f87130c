"""Language models as rerankers: asked whether a document answers a query, they say yes or no (Qwen3-Reranker).

The score is the softmax of the two words' logits behind the last token: a classifier with one label, whose weights are
the difference of two rows of the language model's head. The words around a pair are those of the model's card,
https://huggingface.co/Qwen/Qwen3-Reranker-0.6B.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from export.errors import UnsupportedModel
from export.pipeline import Pipeline
from export.sources import read_json
from export.tasks.definition import TaskSource
from export.tokenizer import read_tokenizer
from model.artifact import PairWording
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, ScoreActivation

YES, NO = "yes", "no"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
ASKED = (  # parts of the words, as a chat template has them
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided.",
    *("<Instruct>: ", "<Query>: ", "<Document>: ", "<think>"),
)
NEEDED = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", YES, NO)  # tokens of their own
LONGEST = 8192  # tokens of a row; the card cuts there
EMBEDDINGS = "embeddings.token.weight"


def is_language_model(described: Mapping[str, Any]) -> bool:
    """Whether config.json names a network that predicts the next token."""
    classes = described.get("architectures")
    return isinstance(classes, list) and bool(classes) and str(classes[0]).endswith("ForCausalLM")


def read(
    source: TaskSource, config: EncoderConfig, activation: ScoreActivation
) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network as a classifier with one label, and its weights: the row of yes less the row of no.

    Raises:
        UnsupportedModel: a family without such models, a tokenizer without their tokens, no weights of the head, or a
            LogitScore module that scores other tokens or asks in other words.
    """
    head = source.family.language_model_head
    if head is None:
        kind = source.described.get("model_type")
        raise UnsupportedModel(f"language models of model_type {kind!r} are not read as rerankers: only Qwen3's are")
    tokenizer = read_tokenizer(source.pipeline.transformer)
    _require_tokens(tokenizer)
    _require_same_question(source, tokenizer)
    rows = _head_rows(source, head)
    weight = rows[tokenizer.token_to_id(YES)] - rows[tokenizer.token_to_id(NO)]  # [D]
    settings = ClassificationSettings(labels=(YES,), activation=activation, dense_activation=None, output_bias=False)
    read_config = replace(config, task="classification", task_settings=settings, pooling="last")
    return read_config, {"task_layers.output.weight": weight[None]}


def _head_rows(source: TaskSource, head: str) -> Tensor:
    """The head's weights [vocabulary, D], which are the token embeddings if they are tied."""
    if source.described.get("tie_word_embeddings", False):
        state: Mapping[str, Tensor] = source.family.read_state(source.tensors, source.described)
        return state[EMBEDDINGS]
    if head not in source.tensors:
        raise UnsupportedModel(f"the checkpoint has no {head}, and tie_word_embeddings does not say that it needs none")
    return source.tensors[head]


def _require_tokens(tokenizer: Tokenizer) -> None:
    if missing := [token for token in NEEDED if tokenizer.token_to_id(token) is None]:
        raise UnsupportedModel(
            f"the tokenizer has no token {' or '.join(missing)}: a language model is read as a reranker of "
            "Qwen3-Reranker's kind, which is asked in these"
        )


def _require_same_question(source: TaskSource, tokenizer: Tokenizer) -> None:
    """Refuses what sentence-transformers' files say of the tokens and the words, unless it is what the card has."""
    folder = source.pipeline.modules.get("LogitScore")
    if folder is None:
        return
    said = read_json(folder / "config.json")
    found = tuple(said.get(name) for name in ("true_token_id", "false_token_id"))
    expected = tokenizer.token_to_id(YES), tokenizer.token_to_id(NO)
    if found != expected or said.get("module_input_name", "causal_logits") != "causal_logits":
        named = [None if index is None else tokenizer.id_to_token(index) for index in found]
        raise UnsupportedModel(
            f"{folder} scores by the tokens {named[0]!r} and {named[1]!r}: only {YES!r} less {NO!r}, as Qwen3-Reranker "
            "does, is reproduced"
        )
    prompts, default = source.pipeline.around.get("prompts") or {}, source.pipeline.default_prompt_name
    if default is not None and prompts.get(default) != INSTRUCTION:
        raise UnsupportedModel(
            f"{folder.parent} has the default prompt {prompts.get(default)!r:.80}: name it as --instruction"
        )
    place = source.pipeline.transformer
    template = read_json(place / "tokenizer_config.json", optional=True).get("chat_template")
    if (place / "chat_template.jinja").is_file():
        template = (place / "chat_template.jinja").read_text(encoding="utf-8")
    if missing := [part for part in ASKED if part not in str(template)]:
        raise UnsupportedModel(
            f"the chat template of {place} does not say {missing[0]!r}: only Qwen3-Reranker's words around a pair are "
            "reproduced"
        )


def limit_length(pipeline: Pipeline) -> Pipeline:
    """The pipeline of texts that are no longer than the card has them."""
    longest = pipeline.max_sequence_length
    return replace(pipeline, max_sequence_length=min(longest or LONGEST, LONGEST))


def word_pairs(tokenizer: Tokenizer, instruction: str | None) -> tuple[Tokenizer, PairWording]:
    """Returns the tokenizer with the words before and after the texts in its template, and the words next to the texts.

    The words before and after are tokenised by themselves, as on the card; the rest together with the texts. A text
    begins with the space before it, where a byte-level tokenizer parts words anyway, so both are the card's tokens.

    Args:
        tokenizer: of the checkpoint.
        instruction: what the documents are judged by; None for the card's.
    """
    around = tokenizer.encode("a", add_special_tokens=True)
    place = next(place for place, special in enumerate(around.special_tokens_mask) if not special)
    single = tokenizer.encode("a", add_special_tokens=False)
    first, last = around.ids[:place], around.ids[place + len(single.ids) :]
    before, behind = (tokenizer.encode(text, add_special_tokens=False).ids for text in (BEFORE, BEHIND))
    parts = {"before": [*before, *first], "behind": [*last, *behind]}
    wording = PairWording(
        before=(f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: ", " "), after=("\n<Document>:", "")
    )
    return _with_template(tokenizer, parts), wording


def _with_template(tokenizer: Tokenizer, parts: Mapping[str, list[int]]) -> Tokenizer:
    """The tokenizer with these tokens around one text or two; its byte-level part, which knows offsets, stays."""
    described = json.loads(tokenizer.to_str())
    processor = described["post_processor"] or {}
    kept = [part for part in processor.get("processors", [processor]) if part.get("type") == "ByteLevel"]
    added = {
        name: {"id": name, "ids": ids, "tokens": [tokenizer.id_to_token(index) for index in ids]}
        for name, ids in parts.items()
        if ids
    }
    before, behind = ([{"SpecialToken": {"id": name, "type_id": 0}}] if name in added else [] for name in parts)
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template = {
        "type": "TemplateProcessing",
        "single": [*before, a, *behind],
        "pair": [*before, a, b, *behind],
        "special_tokens": added,
    }
    described["post_processor"] = {"type": "Sequence", "processors": [*kept, template]}
    return Tokenizer.from_str(json.dumps(described))
