"""A query, documents, and what the model has to read to score them. Nothing has run yet.

A cross-encoder reads each pair; an embedder and a multi-vector model read each query and each document once, behind the
prompts that they have for these. It knows the model's manifest, neither HTTP nor threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from model.manifest import Manifest
from model.tasks.settings import MultiVectorSettings
from service.errors import Invalid, WrongTask
from service.requests.attention_schemas import AttentionRequest
from service.requests.prompts import choose_prompt
from service.requests.schemas import EncodeRequest
from service.tokenization.inputs import InputNames, Inputs
from service.tokenization.tokenize import Truncate

QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")  # as sentence-transformers looks for


@dataclass(frozen=True, slots=True)
class Scoring:
    """What to compare.

    Attributes:
        queries: one for all documents, or one a document.
        documents: what is scored.
        names: what the caller calls the documents, for errors.
        query_name: what the caller calls the queries.
        truncate: what happens to texts that are too long.
        document_tokens: most tokens of a document, the rest is cut off; None for as many as the model takes.
        raw_scores: whether a cross-encoder's scores are logits.
        attention: what to answer of a cross-encoder's attention; None for nothing.
        head_mask: as of `POST /encode`.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    names: InputNames = field(default_factory=lambda: InputNames(listed="documents"))
    query_name: str = "query"
    truncate: Truncate = True
    document_tokens: int | None = None
    raw_scores: bool = False
    attention: AttentionRequest | None = None
    head_mask: Any = None

    @property
    def query_names(self) -> InputNames:
        """What errors call the queries, each of them once: one by its name alone."""
        if len(self.queries) == 1:
            return InputNames("", singles=(self.query_name,))
        first = {query: place for place, query in reversed(list(enumerate(self.queries)))}
        return InputNames(self.query_name, places=sorted(first.values()))

    def each_query_once(self) -> list[str]:
        """The queries without those that came before."""
        return list(dict.fromkeys(self.queries))

    def one_each(self) -> Sequence[str]:
        """A query for each document."""
        return self.queries if len(self.queries) == len(self.documents) else [*self.queries] * len(self.documents)

    def pair_request(self) -> EncodeRequest:
        """What a cross-encoder is asked."""
        return EncodeRequest(
            pairs=[[query, document] for query, document in zip(self.one_each(), self.documents, strict=True)],
            raw_scores=self.raw_scores,
            truncate=self.truncate,
            attention=self.attention,
            head_mask=self.head_mask,
        )

    @property
    def most_tokens_of_pair(self) -> tuple[None, int] | None:
        """How many tokens the two texts of a pair may have, special tokens left out."""
        return None if self.document_tokens is None else (None, self.document_tokens)

    def vector_request(self) -> EncodeRequest:
        """What a model is asked that reads one text at a time, prompts in front."""
        return EncodeRequest(prompt="", truncate=self.truncate, head_mask=self.head_mask)


@dataclass(frozen=True, slots=True)
class ScoredTexts:
    """Texts of one kind, queries or documents, that a model reads one at a time.

    Attributes:
        inputs: the texts behind their prompt.
        names: what the caller calls them.
        most_tokens: of each text, special tokens left out; None for no limit.
    """

    inputs: Inputs
    names: InputNames
    most_tokens: tuple[int] | None


def reads_pairs(scoring: Scoring, manifest: Manifest) -> bool:
    """Whether the model scores by reading pairs; else it compares vectors.

    Raises:
        WrongTask: it gives no score of two texts.
        Invalid: attention is asked for of a model that reads each text apart.
    """
    if manifest.task == "classification":
        _refuse_classifier(manifest)
        return True
    if manifest.task == "sparse":
        raise WrongTask(f"{manifest.model} is a sparse model: it scores no pairs; POST /embed_sparse gives its vectors")
    if scoring.attention is not None:
        raise Invalid(
            f"attention: {manifest.model} reads query and document apart (its task is {manifest.task}), so neither "
            "looks at the other; a cross-encoder's attention can be asked for",
            param="attention",
        )
    return False


def texts_to_compare(scoring: Scoring, manifest: Manifest, added: int) -> tuple[ScoredTexts, ScoredTexts]:
    """The queries, each once, and the documents; `added` is how many special tokens a text gets."""
    query_length, document_length = _longest(manifest, added)
    queries = _prompted(scoring.each_query_once(), QUERY_PROMPTS, manifest)
    documents = _prompted(scoring.documents, DOCUMENT_PROMPTS, manifest)
    return (
        ScoredTexts(queries, scoring.query_names, _limit(query_length, None)),
        ScoredTexts(documents, scoring.names, _limit(document_length, scoring.document_tokens)),
    )


def _refuse_classifier(manifest: Manifest) -> None:
    if len(manifest.labels) != 1 or not manifest.pairs:
        raise WrongTask(
            f"{manifest.model} is a classifier with {len(manifest.labels)} labels: it scores no pairs; POST /predict "
            "gives its labels"
        )


def _prompted(texts: Sequence[str], names: Sequence[str], manifest: Manifest) -> Inputs:
    """Texts behind the prompt that the model has for them, as sentence-transformers reads queries and documents."""
    defaults = manifest.defaults
    name = next((name for name in names if name in defaults.prompts), None)
    prompt = choose_prompt(defaults, name=name, text=None)
    return Inputs(texts=texts if prompt is None else prompt.before(texts))


def _longest(manifest: Manifest, added: int) -> tuple[int | None, int | None]:
    """The longest query and document in tokens of their own, where the model has limits for them."""
    settings = manifest.config.task_settings
    if not isinstance(settings, MultiVectorSettings):
        return None, None
    query, document = settings.query_length, settings.document_length
    return query and max(1, query - added), document and max(1, document - added)


def _limit(*given: int | None) -> tuple[int] | None:
    numbers = [number for number in given if number is not None]
    return (min(numbers),) if numbers else None
