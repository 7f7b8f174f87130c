"""How well documents fit a query, by whatever the artifact is.

A cross-encoder scores each pair; of an embedder it is the cosine, of a multi-vector model MaxSim of the two texts'
token vectors (Khattab and Zaharia 2020). All texts of a request run together, as in `service.operations.encode`. It
knows no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model.manifest import Manifest
from model.tasks.settings import MultiVectorSettings
from service.answers.pair_blocks import add_blocks
from service.context import RequestContext
from service.errors import Invalid, TooLarge, WrongTask
from service.inference.backend import Float32Array
from service.operations.encode import EncodeResult, run, run_prepared
from service.requests.attention_schemas import AttentionRequest
from service.requests.prompts import choose_prompt
from service.requests.schemas import EncodeRequest
from service.services import Services
from service.tokenization.inputs import InputNames, Inputs, refuse_long_texts
from service.tokenization.tokenize import Truncate
from service.tokenization.tokenized import TokenizedInput

QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")  # as sentence-transformers looks for


@dataclass(frozen=True, slots=True)
class Scoring:
    """What to compare.

    Attributes:
        queries: one for all documents, or one a document.
        documents: what is scored.
        names: what the caller calls the documents, for errors.
        truncate: what happens to texts that are too long.
        document_tokens: most tokens of a document, the rest is cut off; None for as many as the model takes.
        raw_scores: whether a cross-encoder's scores are logits.
        attention: what to answer of a cross-encoder's attention; None for nothing.
        head_mask: as of `POST /encode`.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    names: InputNames = field(default_factory=lambda: InputNames(listed="documents"))
    truncate: Truncate = True
    document_tokens: int | None = None
    raw_scores: bool = False
    attention: AttentionRequest | None = None
    head_mask: Any = None


@dataclass(frozen=True, slots=True)
class Scored:
    """What came of it.

    Attributes:
        model: its name.
        scores: [N], one a document, in their order.
        tokens: that were read.
        items: what became of each text or pair.
        attention: of each pair, where it was asked for.
        encoded: sizes of what was computed.
    """

    model: str
    scores: Float32Array
    tokens: int
    items: list[dict[str, Any]]
    attention: list[dict[str, Any]] | None
    encoded: EncodeResult


async def score(services: Services, context: RequestContext, wanted: Scoring) -> Scored:
    """Scores documents, one a document, in their order.

    Raises:
        WrongTask: the artifact gives no score of a pair.
        ServiceError: whatever keeps it from being answered.
    """
    runner, limit = services.readiness.runner(), services.settings.max_texts
    if len(wanted.documents) > limit:
        raise TooLarge(
            f"{wanted.names.listed}: {len(wanted.documents)} documents, at most {limit} a request are taken",
            param=wanted.names.listed,
        )
    manifest = runner.manifest
    if manifest.task == "classification":
        return await _score_pairs(services, context, wanted, manifest)
    if manifest.task == "sparse":
        raise WrongTask(f"{manifest.model} is a sparse model: it scores no pairs; POST /embed_sparse gives its vectors")
    if wanted.attention is not None:
        raise Invalid(
            f"attention: {manifest.model} reads query and document apart (its task is {manifest.task}), so neither "
            "looks at the other; a cross-encoder's attention can be asked for",
            param="attention",
        )
    return await _compare_vectors(services, context, wanted, manifest)


async def _score_pairs(services: Services, context: RequestContext, wanted: Scoring, manifest: Manifest) -> Scored:
    if len(manifest.labels) != 1 or not manifest.pairs:
        raise WrongTask(
            f"{manifest.model} is a classifier with {len(manifest.labels)} labels: it scores no pairs; POST /predict "
            "gives its labels"
        )
    pairs = [[query, document] for query, document in zip(_one_each(wanted), wanted.documents, strict=True)]
    request = EncodeRequest(
        pairs=pairs,
        raw_scores=wanted.raw_scores,
        truncate=wanted.truncate,
        attention=wanted.attention,
        head_mask=wanted.head_mask,
    )
    most = None if wanted.document_tokens is None else (None, wanted.document_tokens)
    encoded = await run(services, context, request, names=wanted.names, most_tokens=most)
    answer = encoded.answer
    attention = add_blocks(answer.get("attention"))
    scores: Float32Array = answer["scores"][:, 0]
    return Scored(manifest.model, scores, answer["usage"]["tokens"], answer["items"], attention, encoded)


async def _compare_vectors(services: Services, context: RequestContext, wanted: Scoring, manifest: Manifest) -> Scored:
    """Scores by vectors: each query and each document is read once."""
    runner, deadline = services.readiness.runner(), context.deadline(services.settings.request_timeout)
    queries = list(dict.fromkeys(wanted.queries))
    added = runner.tokenizer.num_special_tokens
    longest = [None if length is None else max(1, length - added) for length in _longest(manifest)]
    tokenized: list[TokenizedInput] = []
    for texts, prompts, most in (
        (queries, QUERY_PROMPTS, longest[0]),
        (wanted.documents, DOCUMENT_PROMPTS, _least(longest[1], wanted.document_tokens)),
    ):
        inputs = Inputs(texts=_prompted(texts, prompts, manifest))
        refuse_long_texts(inputs, services.settings.max_text_characters, names=wanted.names)
        tokenized += await runner.tokenize(
            inputs,
            truncate=wanted.truncate,
            names=wanted.names,
            ids_only=True,
            deadline=deadline,
            most_tokens=None if most is None else (most,),
        )
    request = EncodeRequest(prompt="", head_mask=wanted.head_mask)
    encoded = await run_prepared(services, context, request, tokenized, names=wanted.names)
    vectors = encoded.answer["embeddings"]
    of_query = {query: vectors[place] for place, query in enumerate(queries)}
    documents = vectors[len(queries) :]
    if manifest.task == "embedding":
        rows = np.stack([of_query[query] for query in _one_each(wanted)])
        scores = np.einsum("nd,nd->n", rows, documents).clip(-1, 1)
    else:
        skipped = _skipped_ids(manifest)
        kept = [~np.isin(item.input_ids, skipped) for item in tokenized[len(queries) :]]
        scores = np.array(
            [
                max_sim(of_query[query], document[mask])
                for query, document, mask in zip(_one_each(wanted), documents, kept, strict=True)
            ],
            dtype=np.float32,
        )
    answer = encoded.answer
    items = answer["items"][len(queries) :]
    return Scored(manifest.model, scores, answer["usage"]["tokens"], items, None, encoded)


def max_sim(query: Float32Array, document: Float32Array) -> float:
    """The sum over a query's vectors [n, D'] of the largest product with a document's vectors [m, D']."""
    return float((query @ document.T).max(axis=1).sum()) if len(document) else 0.0


def _one_each(wanted: Scoring) -> Sequence[str]:
    return wanted.queries if len(wanted.queries) == len(wanted.documents) else [*wanted.queries] * len(wanted.documents)


def _prompted(texts: Sequence[str], names: Sequence[str], manifest: Manifest) -> list[str]:
    """Texts behind the prompt that the model has for them, as sentence-transformers reads queries and documents."""
    defaults = manifest.defaults
    name = next((name for name in names if name in defaults.prompts), None)
    prompt = choose_prompt(defaults, name=name, text=None)
    return list(texts) if prompt is None else prompt.before(texts)


def _longest(manifest: Manifest) -> tuple[int | None, int | None]:
    """The longest query and the longest document in tokens, where the model has limits of its own for them."""
    settings = manifest.config.task_settings
    if not isinstance(settings, MultiVectorSettings):
        return None, None
    return settings.query_length, settings.document_length


def _least(first: int | None, second: int | None) -> int | None:
    given = [number for number in (first, second) if number is not None]
    return min(given) if given else None


def _skipped_ids(manifest: Manifest) -> Sequence[int]:
    settings = manifest.config.task_settings
    is_skipping = isinstance(settings, MultiVectorSettings) and "document" in settings.skipped_in
    return settings.skipped_ids if is_skipping and isinstance(settings, MultiVectorSettings) else ()
