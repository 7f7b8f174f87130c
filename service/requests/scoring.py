"""A query, documents, and what the model has to read to score them.

A cross-encoder reads each pair; an embedder and a multi-vector model read each query and each document once, behind the
prompts that they have for these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from model.artifact import Manifest
from service.errors import Invalid, WrongTask
from service.requests.plan import choose_prompt
from service.requests.roles import TextRole, text_role
from service.requests.schemas import (
    Attention,
    AttentionRequest,
    EncodeRequest,
    HeadMask,
    ModelChoice,
    Output,
    TeiTruncation,
    TextList,
    example,
)
from service.tokenization.inputs import InputNames, Inputs, Truncate
from service.wire import AnswerModel, RequestModel

JINA_EXAMPLE = example(
    model="sentence-transformers/all-MiniLM-L6-v2",
    query="Where did the cat sit?",
    documents=["The cat sat on the mat.", "It rained all day."],
)


class TextObject(RequestModel, extra="ignore"):
    """A document as an object, as Jina and Cohere take it."""

    text: str


Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]

Documents = Annotated[list[str | TextObject], Field(min_length=1, fail_fast=True)]
LaxBool = Annotated[bool, Field(strict=False)]  # RAGFlow sends "true"


class OutputWeights(RequestModel):
    """How much each output of a model counts that has several (BGE-M3)."""

    dense: Weight = 0.0
    sparse: Weight = 0.0
    multi_vector: Weight = 0.0

    @model_validator(mode="after")
    def _count(self) -> Self:
        if not self.by_output():
            raise ValueError("expected a weight above 0")
        return self

    def by_output(self) -> dict[Output, float]:
        """The outputs that count."""
        return {name: weight for name in get_args(Output) if (weight := getattr(self, name))}


class Activation(RequestModel):
    """vLLM's choice between a cross-encoder's probabilities and its logits."""

    use_activation: bool | None = None
    """false: a cross-encoder's scores as logits"""
    activation: bool | None = None
    """the older name of `use_activation`"""

    def wants_logits(self) -> bool:
        """Whether either name asks for them."""
        return self.use_activation is False or self.activation is False


class ScoringOptions(Activation):
    """What scores are made of, and what is shown of that."""

    raw_scores: bool = False
    """a cross-encoder's scores as logits, instead of numbers from 0 to 1"""
    matches: bool = False
    """of a multi-vector model (ColBERT): which token of the document each token of the query found"""
    weights: OutputWeights | None = None
    """of a model with several outputs (BGE-M3): their weighted mean as the score; null for the cosine of its dense
    vectors. Words' weights are multiplied and added up; a query's vectors of tokens count by their mean"""

    def options(self) -> dict[str, Any]:
        """The same as `Scoring` names it."""
        weights = None if self.weights is None else self.weights.by_output()
        return {"raw_scores": self.raw_scores or self.wants_logits(), "matches": self.matches, "weights": weights}


class RerankRequest(TeiTruncation, ScoringOptions, ModelChoice, extra="ignore"):
    """What `POST /rerank` takes: `texts` as TEI, or `documents` as Infinity; other fields of theirs are ignored."""

    model_config = JINA_EXAMPLE

    query: Annotated[str, Field(min_length=1)]
    """what the documents are compared with"""
    texts: TextList | None = None
    """TEI's name of the documents"""
    documents: Documents | None = None
    """texts, or objects with a `text`"""
    return_text: bool = False
    """TEI's: answer each document's text, too"""
    return_documents: LaxBool = False
    """the same for `documents`"""
    top_n: Annotated[int, Field(ge=0)] | None = None
    """only the best N, 0 for all; TEI has no such field, but may give it"""
    attention: AttentionRequest | None = None
    """a cross-encoder's attention across each pair, as of `POST /encode`; with it come the blocks from the query's
    tokens to the document's and back, and the weight that they hold"""
    head_mask: HeadMask = None
    """scores with less of some heads, as of `POST /encode`"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.texts is None) == (self.documents is None):
            raise ValueError("expected either texts (TEI's form) or documents (Infinity's)")
        return self


class JinaRequest(Activation, ModelChoice, extra="ignore"):
    """What `POST /v1/rerank` takes; other fields of its clients are ignored."""

    model_config = JINA_EXAMPLE

    query: Annotated[str, Field(min_length=1)]
    """what the documents are compared with"""
    documents: Documents
    """texts, or objects with a `text`"""
    top_n: Annotated[int, Field(ge=0)] | None = None
    """only the best N, 0 for all"""
    return_documents: LaxBool | None = True
    """answer each document's text, too"""
    max_tokens_per_doc: Annotated[int, Field(ge=0)] | None = None
    """cut documents after this many tokens; 0 cuts none"""


def plain_texts(documents: Sequence[str | TextObject]) -> list[str]:
    """Documents as texts."""
    return [document if isinstance(document, str) else document.text for document in documents]


class PairAttention(Attention):
    """Attention across one pair; `weights` and the rest as `POST /encode` answers them."""

    query_to_document: list[list[list[list[float]]]] | None = None
    """[layer][head][query's token][document's token], the part of `weights`"""
    document_to_query: list[list[list[list[float]]]] | None = None
    """the same the other way round"""
    query_to_document_mass: list[list[float]] | None = None
    """[layer][head]: how much weight a token of the query gives to the document, the mean over its tokens"""
    document_to_query_mass: list[list[float]] | None = None
    """the same the other way round"""


class TokenMatch(AnswerModel):
    """What one token of a query found: the document's token that is the most similar to it.

    Offsets are [start, end) in characters of the text as it was sent; [0, 0] for tokens that the model adds.
    """

    query_token: str
    query_offsets: list[int]
    token: str
    offsets: list[int]
    similarity: float


class TeiRank(AnswerModel):
    """One document, as TEI answers it."""

    index: int
    score: float
    text: str | None = None
    attention: PairAttention | None = None
    matches: list[TokenMatch] | None = None


class RerankResult(AnswerModel):
    """One document, as Infinity and Jina answer it."""

    index: int
    relevance_score: float
    document: str | TextObject | None = None
    """Infinity's: a text; Jina's: an object with a `text`"""
    attention: PairAttention | None = None
    matches: list[TokenMatch] | None = None


class RerankAnswer(AnswerModel):
    """What `documents` are answered with."""

    id: str
    object: Literal["rerank"] = "rerank"
    model: str
    created: int
    results: list[RerankResult]
    usage: dict[str, int]


@dataclass(frozen=True, slots=True)
class Scoring:
    """What to compare; the options are those of `RerankRequest`.

    Attributes:
        queries: one for all documents, or one a document.
        names: what the caller calls the documents, for errors; `query_name` the queries.
        document_tokens: most tokens of a document, the rest is cut off; None for as many as the model takes.
        most: how many documents are answered, the best ones; None for all.
        weights: of each output that counts, for a model with several; None for its own score.
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
    matches: bool = False
    most: int | None = None
    weights: Mapping[Output, float] | None = None

    @property
    def query_names(self) -> InputNames:
        """What errors call the queries, each of them once: one by its name alone."""
        if len(self.queries) == 1:
            return InputNames("", singles=(self.query_name,))
        first = {query: place for place, query in reversed(list(enumerate(self.queries)))}
        return InputNames(self.query_name, each=[f"{self.query_name}[{place}]" for place in sorted(first.values())])

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

    def vector_request(self, manifest: Manifest) -> EncodeRequest:
        """What a model is asked that reads one text at a time, prompts in front: vectors that its similarity takes."""
        has_vectors = manifest.task != "sparse" and {*(self.weights or ())} != {"sparse"}
        return EncodeRequest(
            prompt="",
            truncate=self.truncate,
            head_mask=self.head_mask,
            normalize=manifest.defaults.compares_unit_vectors if has_vectors else None,
            outputs=None if self.weights is None else list(self.weights),
        )


@dataclass(frozen=True, slots=True)
class ScoredTexts:
    """Queries or documents behind their prompt, of `prompt_length` characters."""

    inputs: Inputs
    names: InputNames
    role: TextRole
    prompt_length: int


def reads_pairs(scoring: Scoring, manifest: Manifest) -> bool:
    """Whether the model scores by reading pairs; else it compares vectors.

    Raises:
        WrongTask: it returns no score of two texts.
        Invalid: attention is asked for of a model that reads each text apart, or matches of one without token vectors.
    """
    if scoring.weights is not None and not manifest.token_outputs:
        raise Invalid.at("weights", f"{manifest.model} has one output; they are for a model with several (BGE-M3)")
    if scoring.matches and manifest.task != "multi_vector":
        instead = "; ask it for attention across the pair" if manifest.task == "classification" else ""
        raise Invalid.at(
            "matches",
            f"{manifest.model} returns no vectors of tokens (its task is {manifest.task}){instead}; a multi-vector "
            "model shows what each token found",
        )
    if manifest.task == "classification":
        if len(manifest.labels) != 1 or not manifest.pairs:
            raise WrongTask(
                f"{manifest.model} is a classifier with {len(manifest.labels)} labels: it scores no pairs; "
                "POST /predict or `Engine.classify` gives its labels"
            )
        return True
    if manifest.task == "sparse":
        raise WrongTask(
            f"{manifest.model} is a sparse model: it scores no pairs; POST /embed_sparse or `Engine.encode` gives its "
            "vectors"
        )
    if manifest.task == "token_classification":
        raise WrongTask(
            f"{manifest.model} labels tokens: it scores no pairs; POST /predict or `Engine.entities` gives its entities"
        )
    if scoring.attention is not None:
        raise Invalid.at(
            "attention",
            f"{manifest.model} reads query and document apart (its task is {manifest.task}), so neither looks at the "
            "other; a cross-encoder's attention can be asked for",
        )
    return False


def texts_to_compare(scoring: Scoring, manifest: Manifest, added: int) -> tuple[ScoredTexts, ScoredTexts]:
    """The queries, each once, and the documents, behind the prompts that the model has for them.

    They are read as sentence-transformers reads queries and documents; `added` is how many special tokens a text gets.
    """
    query, document = text_role("query", manifest, added), text_role("document", manifest, added)
    if (longest := scoring.document_tokens) is not None:
        document = replace(document, most_tokens=(min(filter(None, (longest, *(document.most_tokens or ())))),))

    def read(texts: Sequence[str], names: InputNames, role: TextRole) -> ScoredTexts:
        prompt = choose_prompt(manifest.defaults, name=role.prompt_name, text=None)
        return ScoredTexts(Inputs(texts=prompt.before(texts)), names, role, len(prompt.text))

    return (
        read(scoring.each_query_once(), scoring.query_names, query),
        read(scoring.documents, scoring.names, document),
    )
