"""Language models as rerankers: asked whether a document answers a query, they say yes or no, or 1 or 0.

The score is the softmax of the two words' logits behind the last token: a classifier with one label, whose weights are
the difference of two rows of the language model's head. Each network has its own words around a pair: those of
Qwen3-Reranker's card (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B), and of mxbai-rerank-v2's package
(https://github.com/mixedbread-ai/mxbai-rerank).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import choose
from export.pipeline import Pipeline
from export.sources import CHAT_TEMPLATE, read_json
from export.tasks.definition import TaskSource
from export.tokenizer import read_tokenizer
from model.artifact import PairWording
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, ScoreActivation

LONGEST = 8192  # tokens of a row; both codes cut there
HEAD, EMBEDDINGS = "lm_head.weight", "embeddings.token.weight"
QUERY, DOCUMENT = "\ue000", "\ue001"  # in the place of the texts in a chat template; no template writes them


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a language model is asked, and what it answers.

    Words before, between and behind a pair are tokenised by themselves, those next to a query or a document with it.

    Attributes:
        model: that is asked so, for messages.
        yes: the answer that counts for a document; `no` is the one against it.
        instructed: in front of a query when there is an instruction.
        instruction: if the caller gives none.
        needed: tokens of their own, besides the answers.
        adds_words: whether the longest row is that of the two texts, the words around them not counted.
    """

    model: str
    yes: str
    no: str
    before: str
    behind: tuple[str, ...]
    query: str
    instructed: str
    document: str
    between: str = ""
    after_query: str = ""
    instruction: str = ""
    needed: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")
    adds_words: bool = False


QWEN3_RERANKER = Question(
    model="Qwen3-Reranker",
    yes="yes",
    no="no",
    before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    behind=("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",),
    query="<Query>: ",
    instructed="<Instruct>: {}\n<Query>: ",
    after_query="\n<Document>:",
    document=" ",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
    needed=("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
)
MXBAI_TASK = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment "
    "(0 for not relevant, 1 for relevant).\nRelevance:"
)
MXBAI_RERANK = Question(
    model="mxbai-rerank-v2",
    yes="1",
    no="0",
    before="<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n",
    between="\n",
    behind=("\n", MXBAI_TASK, "<|im_end|>\n<|im_start|>assistant\n"),
    query="query: ",
    instructed="instruction: {}\nquery: ",
    document="document: ",
    adds_words=True,
)
QUESTIONS: Mapping[str, Question] = {"qwen3": QWEN3_RERANKER, "qwen2": MXBAI_RERANK}  # by model_type


def is_language_model(described: Mapping[str, Any]) -> bool:
    """Whether config.json names a network that predicts the next token."""
    classes = described.get("architectures")
    return isinstance(classes, list) and bool(classes) and str(classes[0]).endswith("ForCausalLM")


def question_of(described: Mapping[str, Any]) -> Question:
    """What a network of this config.json is asked; an UnsupportedModel of a family without such models."""
    return choose(described, "model_type", QUESTIONS)


def read(
    source: TaskSource, config: EncoderConfig, activation: ScoreActivation
) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network as a classifier with one label, and its weights: the row of yes less the row of no.

    Raises:
        UnsupportedModel: a family without such models, a tokenizer without their tokens, or no weights of the head.
    """
    question = question_of(source.described)
    tokenizer = read_tokenizer(source.pipeline.transformer)
    needed = (*question.needed, question.yes, question.no)
    if missing := [token for token in needed if tokenizer.token_to_id(token) is None]:
        raise UnsupportedModel(
            f"the tokenizer has no token {' or '.join(missing)}: a language model of this type is read as a reranker "
            f"of {question.model}'s kind, which is asked in these"
        )
    if source.described.get("tie_word_embeddings", False):
        rows = source.family.read_state(source.tensors, source.described)[EMBEDDINGS]  # [vocabulary, D]
    else:
        rows = source.tensors[HEAD]
    weight = rows[tokenizer.token_to_id(question.yes)] - rows[tokenizer.token_to_id(question.no)]  # [D]
    settings = ClassificationSettings(
        labels=(question.yes,), activation=activation, dense_activation=None, output_bias=False
    )
    read_config = replace(config, task="classification", task_settings=settings, pooling="last")
    return read_config, {"task_layers.output.weight": weight[None]}


def question_of_folder(
    question: Question, pipeline: Pipeline, tokenizer: Tokenizer, instruction: str | None
) -> Question:
    """The question, in the words that sentence-transformers' files ask in, if the folder has a LogitScore module.

    The chat template may say another usual instruction, and go on otherwise behind the document.

    Raises:
        UnsupportedModel: the module scores other tokens, or other words stand before or between the texts.
    """
    folder = pipeline.modules.get("LogitScore")
    if folder is None:
        return question
    said = read_json(folder / "config.json")
    found = tuple(said.get(name) for name in ("true_token_id", "false_token_id"))
    expected = tokenizer.token_to_id(question.yes), tokenizer.token_to_id(question.no)
    if found != expected or said.get("module_input_name", "causal_logits") != "causal_logits":
        named = [None if index is None else tokenizer.id_to_token(index) for index in found]
        raise UnsupportedModel(
            f"{folder} scores by the tokens {named[0]!r} and {named[1]!r}: only {question.yes!r} less {question.no!r}, "
            f"as {question.model} does, is reproduced"
        )
    prompts, default = pipeline.around.get("prompts") or {}, pipeline.default_prompt_name
    network = pipeline.transformer
    before, between, behind = _rendered(network, instruction or prompts.get(default))
    start, end = (question.before + question.instructed).split("{}")
    asks = before.removeprefix(question.before)
    usual = before[len(start) : -len(end)] if before.startswith(start) and before.endswith(end) else ""
    if (
        asks not in (question.query, question.instructed.format(usual))
        or between != question.after_query + question.between + question.document
        or not (behind == "".join(question.behind) or behind.startswith(question.needed))  # tokens that part words
    ):
        raise UnsupportedModel(
            f"the chat template of {network} asks in other words than {question.model}'s, which are reproduced: "
            f"{f'{before}QUERY{between}DOCUMENT{behind}'!r:.400}"
        )
    if instruction is not None and instruction != usual:
        raise UnsupportedModel(f"the chat template of {network} has no place for this instruction")
    if behind != "".join(question.behind):
        question = replace(question, behind=(behind,))
    return replace(question, instruction=usual, query=asks if not usual else question.query)


def _rendered(network: Path, instruction: str | None) -> tuple[str, str, str]:
    """What a folder's chat template writes before a query, between it and a document, and behind that."""
    settings = read_json(network / "tokenizer_config.json", optional=True)
    template = settings.get("chat_template")
    if (network / CHAT_TEMPLATE).is_file():
        template = (network / CHAT_TEMPLATE).read_text(encoding="utf-8")
    if isinstance(template, list):
        template = next((named.get("template") for named in template if named.get("name") == "default"), None)
    if not isinstance(template, str):
        raise UnsupportedModel(f"{network} has no chat template, and a LogitScore module asks in its words")
    texts = {"system": instruction, "query": QUERY, "document": DOCUMENT}
    tokens = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in settings.items()
        if name.endswith("_token") and token
    }
    environment = ImmutableSandboxedEnvironment(  # as `transformers` has it
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    for is_flat in (True, False):
        messages = [
            {"role": role, "content": text if is_flat else [{"type": "text", "text": text}]}
            for role, text in texts.items()
            if text is not None
        ]
        try:
            made = environment.from_string(template).render(messages=messages, add_generation_prompt=False, **tokens)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise UnsupportedModel(f"the chat template of {network} fails: {error}") from error
        before, query, rest = made.partition(QUERY)
        between, document, behind = rest.partition(DOCUMENT)
        if query and document and not {QUERY, DOCUMENT} & {*before, *between, *behind}:
            return before, between, behind
    raise UnsupportedModel(f"the chat template of {network} does not hold query and document once each, in this order")


def word_pairs(question: Question, tokenizer: Tokenizer, instruction: str | None) -> tuple[Tokenizer, PairWording, int]:
    """The tokenizer with the words around a pair in its template, the words next to the texts, and the longest row.

    A text of Qwen3-Reranker begins with the space before it, where a byte-level tokenizer parts words anyway, so both
    are the original's tokens. Without an instruction documents are judged by the usual one.
    """
    around = tokenizer.encode("a", add_special_tokens=True)
    place = next(place for place, special in enumerate(around.special_tokens_mask) if not special)
    single = tokenizer.encode("a", add_special_tokens=False)
    first, last = around.ids[:place], around.ids[place + len(single.ids) :]
    before, between, *behind = (
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in (question.before, question.between, *question.behind)
    )
    parts = {"before": [*before, *first], "between": between, "behind": [*last, *chain(*behind)]}
    instruction = instruction or question.instruction
    query = question.instructed.format(instruction) if instruction else question.query
    wording = PairWording(before=(query, question.document), after=(question.after_query, ""))
    words = sum(map(len, parts.values())) - len(between) if question.adds_words else 0
    return _with_template(tokenizer, parts), wording, LONGEST + words


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
    before, between, behind = ([{"SpecialToken": {"id": one, "type_id": 0}}] if one in added else [] for one in parts)
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template = {
        "type": "TemplateProcessing",
        "single": [*before, a, *behind],
        "pair": [*before, a, *between, b, *behind],
        "special_tokens": added,
    }
    described["post_processor"] = {"type": "Sequence", "processors": [*kept, template]}
    return Tokenizer.from_str(json.dumps(described))
