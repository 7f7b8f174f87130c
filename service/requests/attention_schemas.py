"""The wire's part about attention: what may be asked for, and what comes back."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from service.wire import AnswerModel, RequestModel

Choice = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"enum": ["all"]}, {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}]}
    ),
]
LayerChoice = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"enum": ["all", "last"]}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]}
    ),
]


class AttentionRequest(RequestModel):
    """Which attention weights to answer with, and in what form.

    In this order: `layers` and `heads` are selected; `reduce` by `"rollout"` follows whole maps through every layer;
    `exclude_special` drops tokens, `renormalise` makes rows sum to 1 again; `level` joins tokens to words; `reduce` by
    `"mean"` or `"max"` makes one map of a layer's heads; `queries` picks rows; `top_k` cuts them.
    """

    layers: LayerChoice = "last"
    """`"all"`, `"last"`, or layer indices; negative ones count from the end; order is kept, repeats are dropped"""
    heads: Choice = "all"
    """`"all"`, or head indices, taken from each layer"""
    queries: Literal["all", "cls"] = "all"
    """`"all"`, or `"cls"` for the first token's row only (by words the first word's), which `exclude_special` keeps"""
    reduce: Literal["none", "mean", "max", "rollout"] = "none"
    """`"mean"` or `"max"` over the selected heads: one map a layer; rows of a maximum do not sum to 1. `"rollout"`
    (Abnar & Zuidema 2020): one map through all layers, whatever `layers` says; the step of each is the mean of its
    selected heads and the identity"""
    level: Literal["token", "word"] = "token"
    """`"word"`: the sum over a word's key tokens, the mean over its query tokens; texts only"""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """only the k largest keys of each query, and the mass left out; null answers whole rows"""
    exclude_special: bool = False
    """leave out the tokens that the tokenizer adds; a row then sums to what it gives to the others"""
    renormalise: bool = False
    """divide each row by that sum; needs `exclude_special`"""
    form: Literal["weights", "norms", "stats", "decomposition"] = "weights"
    """`"norms"`: each weight times the length of the vector that it takes, ||alpha f(x)|| (Kobayashi et al. 2020):
    heads with nothing to do rest on tokens whose vectors are short; `head_mask`'s gate enters neither factor; not with
    `renormalise` or a rollout. `"stats"`: numbers that describe each head instead of its weights; only `layers` and
    `heads` go with it. `"decomposition"`: in place of weights what each input token gives to the text's vector,
    followed through every layer with attention weights and norms fixed; only `level` goes with it"""


class Tensor(AnswerModel):
    """One layer's array with `encoding_format: "base64"`."""

    dtype: Literal["float32", "int32"]
    shape: Annotated[list[int], Field(min_length=2, max_length=3)]
    """heads, queries, keys; no keys in `left_out`"""
    data: str
    """little-endian, row by row, in base64"""


class Attention(AnswerModel):
    """Attention weights of one input.

    Columns are the tokens or words listed, and so are rows, unless only one was asked for.
    """

    tokens: list[str] | None = None
    """not where words are listed"""
    words: list[str] | None = None
    """with `level` `"word"`, as they stand in the text; special tokens are words of their own"""
    offsets: list[tuple[int, int]] | None
    """[start, end) of each token or word in its text, in characters; [0, 0] for special tokens; null for token id
    inputs"""
    segments: list[int | None] | None = None
    """only of a pair: the text that each token or word is of, 0 or 1; null for special tokens"""
    layers: list[int]
    """which layers, in the order asked for; a rollout's are all"""
    heads: list[list[int]]
    """which heads, of each of these layers"""
    reduce: Literal["mean", "max", "rollout"] | None = None
    """only where maps are reduced: the head axis of `weights` then holds one map made from a layer's heads (none where
    the layer has no heads), and the layer axis of a rollout one entry for all layers"""
    form: Literal["norms"] | None = None
    """only where `weights` are norm-weighted: in the unit of the hidden state, rows do not sum to 1"""
    weights: list[list[list[list[float]]]] | list[Tensor]
    """[layer][head][query][key]; with `top_k` the k largest, largest first; with base64 one tensor a layer"""
    indices: list[list[list[list[int]]]] | list[Tensor] | None = None
    """only with `top_k`: which columns these weights stand in, [layer][head][query][k]"""
    left_out: list[list[list[float]]] | list[Tensor] | None = None
    """only with `top_k`: the sum of each row's other weights, [layer][head][query]"""


class AttentionStatistics(AnswerModel):
    """What `form` `"stats"` answers for one input."""

    layers: list[int]
    """which layers, in the order asked for"""
    heads: list[list[int]]
    """which heads, of each of these layers"""
    statistics: dict[str, list[list[float]] | None]
    """by name [layer][head]: `entropy` (nats), `normalized_entropy` (of the largest there
    can be), `confidence` (largest weight on an
    ordinary token), `signed_distance` and `distance` (tokens), `offset_previous`, `offset_self`, `offset_next`,
    `special_mass`, `special_to_special`, `other_to_special`, `punctuation_mass`, `repeated_token`; null where the text
    does not define it"""


class TokenContributions(AnswerModel):
    """What `form` `"decomposition"` answers for one input.

    Each token has a part of the vector that is answered, before it is put in fewer bits, and the biases of the network
    have one. All parts add up to that vector, and so norms times cosines add up to its length, 1 if normalised.
    """

    tokens: list[str] | None = None
    """not where words are listed"""
    words: list[str] | None = None
    """with `level` `"word"`, as they stand in the text; special tokens are words of their own"""
    offsets: list[tuple[int, int]] | None
    """[start, end) of each token or word in its text, in characters; [0, 0] for special tokens; null for token id
    inputs"""
    form: Literal["decomposition"]
    norms: list[float]
    """the length of each token's or word's part; the last one is the biases'"""
    cosines: list[float]
    """between each part and the vector, 0 where either is 0 up to rounding; the last one is the biases'"""
