"""The wire of reranking: the bodies of `POST /rerank` and `/v1/rerank`, and what they are answered with."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from service.requests.attention_schemas import Attention, AttentionRequest
from service.requests.head_mask import HeadMask
from service.tokenization.tokenize import Truncate
from service.wire import AnswerModel, RequestModel

JINA_EXAMPLE: dict[str, Any] = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "query": "Where did the cat sit?",
    "documents": ["The cat sat on the mat.", "It rained all day."],
}


class TextObject(RequestModel):
    """A document as an object, as Jina and Cohere take it."""

    model_config = ConfigDict(extra="ignore")

    text: str


Documents = Annotated[list[str | TextObject], Field(min_length=1)]


class RerankRequest(RequestModel):
    """What `POST /rerank` takes: `texts` as TEI, or `documents` as Infinity; other fields of theirs are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [JINA_EXAMPLE]})

    query: Annotated[str, Field(min_length=1)]
    """what the documents are compared with"""
    texts: Annotated[list[str], Field(min_length=1)] | None = None
    """TEI's name of the documents"""
    documents: Documents | None = None
    """texts, or objects with a `text`"""
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    raw_scores: bool = False
    """a cross-encoder's scores as logits, in place of numbers from 0 to 1"""
    return_text: bool = False
    """TEI's: answer each document's text, too"""
    return_documents: bool = False
    """the same for `documents`"""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """only the best so many; TEI has no such field, but may give it"""
    truncate: bool | None = None
    """cut texts that are longer than the model takes, unless false"""
    truncation_direction: Literal["Right", "right", "Left", "left"] = "Right"
    """which end is cut"""
    attention: AttentionRequest | None = None
    """a cross-encoder's attention across each pair, as of `POST /encode`; with it come the blocks from the query's
    tokens to the document's and back, and the weight that they hold"""
    head_mask: HeadMask = None
    """scores with less of some heads, as of `POST /encode`"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.texts is None) == (self.documents is None):
            raise ValueError("expected texts (TEI's form) or documents (Infinity's)")
        return self

    def documents_given(self) -> list[str]:
        """The documents as texts."""
        return self.texts if self.texts is not None else plain_texts(self.documents or ())

    def truncation(self) -> Truncate:
        """What happens to texts that are too long."""
        return "start" if self.truncation_direction.lower() == "left" else self.truncate is not False


class JinaRequest(RequestModel):
    """What `POST /v1/rerank` takes; other fields of its clients are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [JINA_EXAMPLE]})

    query: Annotated[str, Field(min_length=1)]
    """what the documents are compared with"""
    documents: Documents
    """texts, or objects with a `text`"""
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """only the best so many"""
    return_documents: bool = True
    """answer each document's text, too"""
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    """cut documents after so many tokens"""


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


class TeiRank(AnswerModel):
    """One document, as TEI answers it."""

    index: int
    score: float
    text: str | None = None
    attention: PairAttention | None = None


class RerankResult(AnswerModel):
    """One document, as Infinity and Jina answer it."""

    index: int
    relevance_score: float
    document: str | TextObject | None = None
    """Infinity's: a text; Jina's: an object with a `text`"""
    attention: PairAttention | None = None


class RerankAnswer(AnswerModel):
    """What `documents` are answered with."""

    id: str
    object: Literal["rerank"] = "rerank"
    model: str
    created: int
    results: list[RerankResult]
    usage: dict[str, int]


def plain_texts(documents: Sequence[str | TextObject]) -> list[str]:
    """Documents as texts."""
    return [document if isinstance(document, str) else document.text for document in documents]
