"""The wire: what requests may hold and what answers look like.

Strict: no value is coerced, no field is unknown. What depends on the model (layers, heads, dimensions, ids) is checked
elsewhere.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from service.requests.attention_schemas import (
    Attention,
    AttentionRequest,
    AttentionStatistics,
    TokenContributions,
)
from service.requests.head_mask import HeadMask
from service.requests.prompts import MAX_PROMPT_CHARACTERS
from service.requests.spans import Spans
from service.tokenization.rows import PairTruncation
from service.tokenization.tokenize import Truncate
from service.wire import AnswerModel, OpenAnswerModel, RequestModel

Inputs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                    "minItems": 1,
                },
            ]
        }
    ),
]
Pairs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
                    "minItems": 1,
                },
                {
                    "type": "array",
                    "items": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                        "minItems": 2,
                        "maxItems": 2,
                    },
                    "minItems": 1,
                },
                {"type": "null"},
            ]
        }
    ),
]
PromptText = Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)]
EncodingFormat = Literal["float", "base64", "float16", "int8", "uint8", "binary", "ubinary"]
Texts = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class EncodeRequest(RequestModel):
    """What `POST /encode` takes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": ["The cat sat on the mat."],
                    "attention": {"layers": "last", "heads": [0, 1], "queries": "cls"},
                }
            ],
            "oneOf": [{"required": ["inputs"]}, {"required": ["pairs"]}],
        }
    )

    inputs: Inputs = None
    """a text, a list of texts, a list of token ids, or a list of lists of token ids (used as given: include the special
    tokens yourself)"""
    pairs: Pairs = None
    """instead of `inputs`, for a model that reads two texts at once: pairs of texts, or of lists of token ids without
    special tokens"""
    normalize: bool = True
    """divide each vector by its length, after `dimensions`"""
    truncate: Truncate = True
    """cut texts that are longer than the model takes at their end, or at their `"start"`; false refuses them, as token
    ids by themselves always are"""
    long_texts: Literal["mean"] | None = None
    """`"mean"`: a text that is longer than the model takes is embedded in windows of the greatest length, and answered
    by their mean, weighted by their tokens; a prompt is in the first one; null does as `truncate` says"""
    spans: Spans | None = None
    """for each input a list of `[start, end]`, in characters of the text as sent: in place of the text's vector one a
    span, the mean of the last hidden states of its tokens, the text read whole (late chunking)"""
    pair_truncation: PairTruncation = "longest_first"
    """which text of a pair is cut: the longer one until both are as long, or `"only_second"`"""
    raw_scores: bool = False
    """a classifier's scores as logits, without the activation that makes probabilities of them"""
    prompt_name: str | None = None
    """one of the model's prompts, put before every text; null takes the model's default, where it has one"""
    prompt: PromptText | None = None
    """a prompt of your own instead; empty for none"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """keep the first so many dimensions; null keeps all"""
    output: Literal["pooled", "tokens"] = "pooled"
    """one vector a text, or one vector a token"""
    encoding_format: EncodingFormat = "float"
    """`"base64"`: little-endian float32, row by row, for embeddings and attention weights; `"float16"`: for attention
    weights where safetensors are accepted, embeddings stay float32; `"int8"`, `"uint8"`: each dimension in 256 steps
    between its least and greatest value over calibration texts; `"ubinary"`, `"binary"`: signs, eight to a byte, as 0
    to 255 or less 128"""
    attention: AttentionRequest | None = None
    """null computes none"""
    head_mask: HeadMask = None
    """what the answer would be with less of some heads: `[[layer, head, gate], ...]`, a gate of 0 removes the head, 1
    leaves it as it is; negative indices count from the end; for all inputs; null or empty for none"""


class TokenizeRequest(RequestModel):
    """What `POST /tokenize` takes."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["The cat sat on the mat."]}]})

    inputs: Texts
    """a text or a list of texts"""
    truncate: bool = True
    """cut texts that are longer than the model takes; false refuses them"""
    prompt_name: str | None = None
    """one of the model's prompts, put before every text; null takes the model's default, where it has one"""
    prompt: PromptText | None = None
    """a prompt of your own instead; empty for none"""


class Usage(AnswerModel):
    """What a request cost."""

    tokens: int
    """tokens of all inputs, special tokens included"""


class Item(AnswerModel):
    """What became of one input."""

    tokens: int
    """tokens that were encoded, special tokens included"""
    truncated: bool
    """whether the text was longer and its end was cut off"""
    tokens_cut: int | None = None
    """only where it was: how many tokens of it were left out"""
    windows: int | None = None
    """only with `long_texts`: how many windows it was read in; `tokens` are those of all of them"""


class SparseVector(AnswerModel):
    """The words of the vocabulary that have a weight in one input."""

    indices: list[int] | str
    values: list[float] | str


class EncodeAnswer(AnswerModel):
    """What `POST /encode` answers; one entry an input, in their order."""

    model: str
    embeddings: list[list[float]] | list[list[list[float]]] | list[str] | None = None
    """pooled: one vector an input; tokens: one vector a token of each input, spans: a span; base64: one string an
    input; whole numbers for int8, uint8 and binary vectors; absent where the model's task gives no vectors"""
    scores: list[list[float]] | list[str] | None = None
    """only of a classifier: a score a label of each input"""
    labels: list[str] | None = None
    """only of a classifier: what the scores are of"""
    sparse: list[SparseVector] | None = None
    """only of a sparse model: each input's words with a weight"""
    usage: Usage
    items: list[Item]
    prompt_name: str | None = None
    """only where a prompt of the model was put before the texts, by the request or by default"""
    prompt: str | None = None
    """only where there was one: its text; offsets count from its start"""
    attention: list[Attention] | list[AttentionStatistics] | list[TokenContributions] | None = None
    """only where it was asked for"""


class TokenizedItem(AnswerModel):
    """One tokenised text."""

    input_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    """[start, end) of each token in the text, in characters; [0, 0] for special tokens"""
    truncated: bool
    tokens_cut: int | None = None
    """only where it was truncated: how many tokens of it were left out"""


class TokenizeAnswer(AnswerModel):
    """What `POST /tokenize` answers; one entry a text, in their order."""

    model: str
    items: list[TokenizedItem]
    usage: Usage
    prompt_name: str | None = None
    """only where a prompt of the model was put before the texts, by the request or by default"""
    prompt: str | None = None
    """only where there was one: its text; offsets count from its start"""


class Status(AnswerModel):
    """What a probe answers where all is well."""

    status: Literal["ok", "ready"]


class Info(OpenAnswerModel):
    """What `GET /info` answers."""

    model: str
    manifest: dict[str, Any]
    """the artifact's `manifest.json`"""
    limits: dict[str, float]
    """largest request, in bytes, texts, tokens and seconds"""
    runtime: dict[str, str | int]
    """provider, workers, threads"""
    versions: dict[str, str]


class HeadReport(OpenAnswerModel):
    """What `GET /heads` answers: the artifact's `heads.json`."""
