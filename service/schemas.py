"""The wire: what requests may hold and what answers look like.

Strict: no value is coerced, no field is unknown. What depends on the model (layers, heads, dimensions, ids) is checked
elsewhere.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

Choice = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"enum": ["all"]}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]}),
]
LayerChoice = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"enum": ["all", "last"]}, {"type": "array", "items": {"type": "integer"}}]}),
]
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
Texts = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class RequestModel(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class AttentionRequest(RequestModel):
    """Which attention weights to answer with."""

    layers: LayerChoice = "last"
    """`"all"`, `"last"`, or layer indices; negative ones count from the end; order is kept, repeats are dropped"""
    heads: Choice = "all"
    """`"all"`, or head indices, taken from each layer"""
    queries: Literal["all", "cls"] = "all"
    """`"all"`, or `"cls"` for the first token's row only"""
    reduce: Literal["none", "mean", "rollout"] = "none"
    """only `"none"` is available yet"""
    level: Literal["token", "word"] = "token"
    """only `"token"` is available yet"""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """only null is available yet"""
    exclude_special: bool = False
    """only false is available yet"""


class EncodeRequest(RequestModel):
    """What `POST /encode` takes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": ["The cat sat on the mat."],
                    "attention": {"layers": "last", "heads": [0, 1], "queries": "cls"},
                }
            ]
        }
    )

    inputs: Inputs
    """a text, a list of texts, a list of token ids, or a list of lists of token ids (used as given: include the special
    tokens yourself)"""
    normalize: bool = True
    """divide each vector by its length, after `dimensions`"""
    truncate: bool = True
    """cut texts that are longer than the model takes; false refuses them"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """keep the first so many dimensions; null keeps all"""
    output: Literal["pooled", "tokens"] = "pooled"
    """one vector a text, or one vector a token"""
    encoding_format: Literal["float", "base64"] = "float"
    """`"base64"`: little-endian float32, row by row, for embeddings and attention weights"""
    attention: AttentionRequest | None = None
    """null computes none"""


class TokenizeRequest(RequestModel):
    """What `POST /tokenize` takes."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["The cat sat on the mat."]}]})

    inputs: Texts
    """a text or a list of texts"""
    truncate: bool = True
    """cut texts that are longer than the model takes; false refuses them"""


class AnswerModel(BaseModel):
    """An answer's body; describes it for OpenAPI, answers are not built through it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


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


class Tensor(AnswerModel):
    """One layer's attention weights with `encoding_format: "base64"`."""

    dtype: Literal["float32"]
    shape: Annotated[list[int], Field(min_length=3, max_length=3)]
    """heads, queries, keys"""
    data: str
    """little-endian float32, row by row, in base64"""


class Attention(AnswerModel):
    """Attention weights of one input."""

    tokens: list[str]
    offsets: list[tuple[int, int]] | None
    """[start, end) of each token in the text, in characters; [0, 0] for special tokens; null for token id inputs"""
    layers: list[int]
    """which layers, in the order asked for"""
    heads: list[list[int]]
    """which heads, of each of these layers"""
    weights: list[list[list[list[float]]]] | list[Tensor]
    """[layer][head][query][key]; with base64 one tensor a layer"""


class EncodeAnswer(AnswerModel):
    """What `POST /encode` answers; one entry an input, in their order."""

    model: str
    embeddings: list[list[float]] | list[list[list[float]]] | list[str]
    """pooled: one vector an input; tokens: one vector a token of each input; base64: one string an input"""
    usage: Usage
    items: list[Item]
    attention: list[Attention] | None = None
    """only where it was asked for"""


class TokenizedItem(AnswerModel):
    """One tokenised text."""

    input_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    """[start, end) of each token in the text, in characters; [0, 0] for special tokens"""
    truncated: bool


class TokenizeAnswer(AnswerModel):
    """What `POST /tokenize` answers; one entry a text, in their order."""

    model: str
    items: list[TokenizedItem]
    usage: Usage


class Failure(AnswerModel):
    """The inside of the one error body."""

    message: str
    type: str
    param: str | None
    """the field or header at fault"""
    code: str


class FailureAnswer(AnswerModel):
    """Every failure on every route has this body."""

    error: Failure


class Status(AnswerModel):
    """What a probe answers where all is well."""

    status: Literal["ok", "ready"]


class OpenAnswerModel(BaseModel):
    """An answer's body that may gain fields."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


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
