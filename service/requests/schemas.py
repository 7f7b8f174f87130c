"""The wire: what requests may hold and what answers look like.

Strict: no value is coerced, no field is unknown. What depends on the model (layers, heads, dimensions, ids) is checked
elsewhere.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, WithJsonSchema

from service.errors import Invalid
from service.tokenization.inputs import Truncate
from service.tokenization.rows import PairTruncation
from service.wire import AnswerModel, RequestModel

_AtLeastOne = Field(min_length=1, fail_fast=True)
"""Validation of a list ends at its first wrong element: 70,000 of them held the event loop for 0.2 seconds."""

_Index = Annotated[int, Field(ge=0)]
_Ids = Annotated[list[_Index], _AtLeastOne]
_Two = Field(min_length=2, max_length=2, fail_fast=True)
TextList = Annotated[list[str], _AtLeastOne]

# Checked by hand; this only says in the document what they may be.
_INPUTS = TypeAdapter[Any](str | TextList | _Ids | Annotated[list[_Ids], _AtLeastOne])
_PAIRS = TypeAdapter[Any](
    Annotated[list[Annotated[list[str], _Two]], _AtLeastOne]
    | Annotated[list[Annotated[list[list[_Index]], _Two]], _AtLeastOne]
    | None
)
Inputs = Annotated[Any, WithJsonSchema(_INPUTS.json_schema())]
Pairs = Annotated[Any, WithJsonSchema(_PAIRS.json_schema())]
_Gate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
HeadGate = Annotated[tuple[int, int, _Gate], Field(strict=False)]  # JSON and Python bring lists
HeadMask = Annotated[list[HeadGate], Field(max_length=4096, fail_fast=True)] | None  # more heads than a network has
LabelList = Annotated[list[str], Field(max_length=1024, fail_fast=True)]
Span = Annotated[list[_Index], _Two]
Spans = Annotated[list[Annotated[list[Span], _AtLeastOne]], Field(fail_fast=True)]
PromptText = Annotated[str, Field(max_length=1024)]  # it stands before every text: short to send, long to tokenise
Output = Literal["dense", "sparse", "multi_vector"]
Aggregation = Literal["none", "simple", "first", "average", "max"]
VectorFormat = Literal["int8", "uint8", "binary", "ubinary"]
EncodingFormat = Literal["float", "base64", "float16", VectorFormat]


def example(**fields: Any) -> ConfigDict:
    """Of a request's model: an example of its body, for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def refuse_beside(request: RequestModel, fields: Sequence[str], other: str, *, inside: str = "") -> None:
    """Refuses (Invalid) fields, `inside` a part of the body, that ask for more than their default beside `other`."""
    for name in fields:
        value = getattr(request, name)
        if value and value != type(request).model_fields[name].default:
            raise Invalid.at(inside + name, f"does not go with {other}; leave one of the two out")


class AttentionRequest(RequestModel):
    """Which attention weights to answer with, and in what form.

    In this order: `layers` and `heads` are selected; `reduce` by `"rollout"` follows whole maps through every layer;
    `exclude_special` drops tokens, `renormalise` makes rows sum to 1 again; `level` joins tokens to words; `reduce` by
    `"mean"` or `"max"` makes one map of a layer's heads; `queries` picks rows; `top_k` cuts them.
    """

    layers: Literal["all", "last"] | Annotated[list[int], _AtLeastOne] = "last"
    """`"all"`, `"last"`, or layer indices; negative ones count from the end; order is kept, repeats are dropped"""
    heads: Literal["all"] | _Ids = "all"
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
    `heads` go with it. `"decomposition"`: instead of weights what each input token gives to the text's vector,
    followed through every layer with attention weights and norms fixed; only `level` goes with it"""


class EntityRequest(RequestModel):
    """How the labels of a token classifier become entities."""

    aggregation: Aggregation = "simple"
    """as in the pipeline of `transformers`. `"none"`: an entry a token. `"simple"`: neighbours of one label are one
    entity, told apart by `B-` and `I-`. `"first"`, `"max"`, `"average"`: a word has one label first: its first
    token's, its surest token's, or the best by the mean of its tokens' scores"""
    ignore_labels: LabelList = Field(default=["O"])
    """labels that are left out; of a group without `B-` and `I-`"""
    overlap: _Index | None = None
    """with `long_texts` `"windows"`: tokens that neighbouring windows share, at most half of a window; null for a
    quarter"""


class ModelChoice(RequestModel):
    """Which of several models answers."""

    model: str | None = None
    """name of one of the models that are served, as `GET /v1/models` lists them; null for the default. A model that is
    alone answers to any name"""


class PromptOptions(RequestModel):
    """What is put before every text."""

    prompt_name: str | None = None
    """the name of one of the model's prompts, put before every text; null selects the model's default, if any"""
    prompt: PromptText | None = None
    """a prompt of your own instead; empty for none"""


class Truncation(RequestModel):
    """What becomes of texts that are longer than the model takes."""

    truncate: Truncate = True
    """cut them at their end, or at their `"start"`; false refuses them, as token ids by themselves always are"""


class TeiTruncation(RequestModel):
    """What TEI's clients say of texts that are longer than the model takes."""

    truncate: bool | None = None
    """cut them, unless false"""
    truncation_direction: Annotated[
        Literal["Right", "right", "Left", "left"], WithJsonSchema({"type": "string", "enum": ["Right", "Left"]})
    ] = "Right"
    """the end that is cut; huggingface_hub writes it in lower case"""

    def truncation(self) -> Truncate:
        """The same as `POST /encode` has it."""
        if self.truncate is False:
            return False
        return "start" if self.truncation_direction.lower() == "left" else True


class EncodeRequest(Truncation, PromptOptions, ModelChoice):
    """What `POST /encode` takes."""

    model_config = example(
        inputs=["The cat sat on the mat."], attention={"layers": "last", "heads": [0, 1], "queries": "cls"}
    )

    inputs: Inputs = None
    """a text, a list of texts, a list of token ids, or a list of lists of token ids (used as given: include the special
    tokens yourself)"""
    pairs: Pairs = None
    """instead of `inputs`, for a model that reads two texts at once: pairs of texts, or of lists of token ids without
    special tokens"""
    role: Literal["query", "document"] | None = None
    """read texts as the model reads queries, or documents: with its prompt for them, and a late-interaction model's
    lengths and query expansion; for models that tell them apart"""
    normalize: bool | None = None
    """divide each vector by its length, after `dimensions`; null does unless the model is made for dot products
    (`defaults.unit_length` of `GET /info`)"""
    long_texts: Literal["mean", "windows"] | None = None
    """`"mean"`: a text that is longer than the model takes is embedded in windows of the greatest length, and answered
    by their mean, weighted by their tokens; a prompt is in the first one. `"windows"`: a token classifier reads it in
    windows that overlap, and takes each token from the one in which it has more of the text on both sides. null does as
    `truncate` says"""
    entities: EntityRequest | None = None
    """of a token classifier: entities instead of the scores of every token"""
    spans: Spans | None = None
    """for each input a list of `[start, end]`, in characters of the text as sent: instead of the text's vector one a
    span, the mean of the last hidden states of its tokens, the text read whole (late chunking)"""
    pair_truncation: PairTruncation = "longest_first"
    """which text of a pair is cut: the longer one until both are as long, `"only_first"` or `"only_second"`"""
    raw_scores: bool = False
    """a classifier's scores as logits, without the activation that makes probabilities of them"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """truncate vectors to N dimensions; null keeps all"""
    output: Literal["pooled", "tokens"] = "pooled"
    """one vector a text, or one vector a token"""
    outputs: Annotated[list[Output], Field(min_length=1, max_length=3, fail_fast=True)] | None = None
    """of an embedder with several (BGE-M3): `"dense"` in `embeddings`, `"sparse"`, and `"multi_vector"`, a vector for
    each token but the first; what is not asked for is not computed"""
    pool_factor: Annotated[float, Field(ge=1, le=1024)] | None = None
    """of documents of a late-interaction model: so many tokens share a vector on average, those that are most alike
    (Ward's clustering); the first token keeps its own"""
    return_tokens: bool = False
    """where each token has a vector: answer in `tokens` which tokens the vectors are of"""
    encoding_format: EncodingFormat = "float"
    """`"base64"`: little-endian float32, row by row, for embeddings and attention weights; `"float16"`: for attention
    weights and vectors of tokens where safetensors are accepted, a text's vector stays float32; `"int8"`, `"uint8"`:
    each dimension in 256 steps between its least and greatest value over calibration texts; `"ubinary"`, `"binary"`:
    signs, eight to a byte, as 0 to 255 or less 128"""
    attention: AttentionRequest | None = None
    """null computes none"""
    head_mask: HeadMask = None
    """what the answer would be with less of some heads: `[[layer, head, gate], ...]`, a gate of 0 removes the head, 1
    leaves it as it is; negative indices count from the end; for all inputs; null or empty for none"""


class TokenizeRequest(Truncation, PromptOptions, ModelChoice):
    """What `POST /tokenize` takes."""

    model_config = example(inputs=["The cat sat on the mat."])

    inputs: str | TextList
    """a text or a list of texts"""


class Usage(AnswerModel):
    """The cost of a request."""

    tokens: int
    """tokens of all inputs, special tokens included"""


class Item(AnswerModel):
    """One input as it was read."""

    tokens: int
    """tokens that were encoded, special tokens included"""
    truncated: bool
    """whether the text was longer, and its end or start was cut off"""
    tokens_cut: int | None = None
    """only if it was truncated: how many of its tokens were left out"""
    windows: int | None = None
    """only with `long_texts`: how many windows it was read in; `tokens` counts all of them"""


class Entity(AnswerModel):
    """What a token classifier found in a text."""

    entity_group: str | None = None
    """its label without `B-` and `I-`"""
    entity: str | None = None
    """instead of `entity_group` with `aggregation` `"none"`: the token's label"""
    score: float
    """of the label, the mean over the group's tokens or words"""
    index: int | None = None
    """only with `entity`: which token, special ones counted"""
    word: str
    """as the tokenizer writes it; the text itself has it from `start` to `end`"""
    start: int
    """where it begins, in characters of the text"""
    end: int


class SparseVector(AnswerModel):
    """The words of the vocabulary that have a weight in one input."""

    indices: list[int] | str
    values: list[float] | str


class Tensor(AnswerModel):
    """One layer's array with `encoding_format: "base64"`."""

    dtype: Literal["float32", "int32"]
    shape: Annotated[list[int], Field(min_length=2, max_length=3)]
    """heads, queries, keys; no keys in `left_out`"""
    data: str
    """little-endian, row by row, in base64"""


class Labels(AnswerModel):
    """The tokens or words of one input that an answer has entries for."""

    tokens: list[str] | None = None
    """absent if words are listed"""
    words: list[str] | None = None
    """with `level` `"word"`, as written in the text; each special token is a word"""
    offsets: list[tuple[int, int]] | None
    """[start, end) of each token or word in its text, in characters; [0, 0] for special tokens; null for token id
    inputs"""
    segments: list[int | None] | None = None
    """only of a pair: the text that each token or word is of, 0 or 1; null for special tokens"""


class Sources(AnswerModel):
    """What of the network an answer is made from."""

    layers: list[int]
    """which layers, in the order asked for; a rollout's are all"""
    heads: list[list[int]]
    """which heads, of each of these layers"""


class Attention(Sources, Labels):
    """Attention weights of one input.

    Columns are the tokens or words listed, and so are rows, unless only one was asked for.
    """

    reduce: Literal["mean", "max", "rollout"] | None = None
    """only where maps are reduced: the head axis of `weights` then holds one map made from a layer's heads (none where
    the layer has no heads), and the layer axis of a rollout one entry for all layers"""
    form: Literal["norms"] | None = None
    """only where `weights` are norm-weighted: in the unit of the hidden state, rows do not sum to 1"""
    weights: list[list[list[list[float]]]] | list[Tensor]
    """[layer][head][query][key]; with `top_k` the k largest, largest first; with base64 one tensor a layer"""
    indices: list[list[list[list[int]]]] | list[Tensor] | None = None
    """only with `top_k`: the columns of these weights, [layer][head][query][k]"""
    left_out: list[list[list[float]]] | list[Tensor] | None = None
    """only with `top_k`: the sum of each row's other weights, [layer][head][query]"""


class AttentionStatistics(Sources):
    """What `form` `"stats"` answers for one input."""

    statistics: dict[str, list[list[float]] | None]
    """by name [layer][head], means over all tokens, special ones included: `entropy` (nats), `normalized_entropy` (of
    the largest there can be), `confidence` (largest weight on an ordinary token), `signed_distance` (tokens, above 0
    looks back), `distance` (tokens), `offset_previous`, `offset_self`, `offset_next`, `special_mass`,
    `punctuation_mass`; over some of the tokens: `special_to_special`, `other_to_special`, and over ordinary tokens that
    repeat `repeated_token`; null where the text does not define it"""


class TokenContributions(Labels):
    """What `form` `"decomposition"` answers for one input.

    Each token has a part of the vector that is answered, before it is put in fewer bits, and the biases of the network
    have one. All parts add up to that vector, and so norms times cosines add up to its length, 1 if normalised.
    """

    form: Literal["decomposition"]
    norms: list[float]
    """the length of each token's or word's part; the last one is the biases'"""
    cosines: list[float]
    """between each part and the vector, 0 where either is 0 up to rounding; the last one is the biases'"""


class VectorTokens(AnswerModel):
    """The tokens that one input's vectors are of."""

    input_ids: list[int]
    offsets: list[tuple[int, int]] | None
    """[start, end) of each token in the text as it was sent, in characters; [0, 0] for tokens that the model adds; null
    for token id inputs"""
    rows: list[int] | None = None
    """only with `pool_factor`: the vector that each token is in"""


class PromptedAnswer(AnswerModel):
    """The prompt that was put before every text."""

    prompt_name: str | None = None
    """its name, if it is one of the model's, named by the request or by default"""
    prompt: str | None = None
    """its text, if there was one; offsets count from its start, except in `return_tokens`"""


class EncodeAnswer(PromptedAnswer):
    """What `POST /encode` answers; one entry an input, in their order."""

    model: str
    embeddings: list[list[float]] | list[list[list[float]]] | list[str] | None = None
    """pooled: one vector an input; tokens: one vector a token of each input, spans: a span; base64: one string an
    input; whole numbers for int8, uint8 and binary vectors; absent if the model's task has no vectors"""
    scores: list[list[float]] | list[list[list[float]]] | list[str] | None = None
    """only of a classifier: a score a label of each input, or of each of its tokens"""
    entities: list[list[Entity]] | None = None
    """only of a token classifier that is asked for them, instead of `scores`"""
    labels: list[str] | None = None
    """only of a classifier: what the scores are of"""
    sparse: list[SparseVector] | None = None
    """only of a sparse model, or where `outputs` asks for it: each input's words with a weight"""
    multi_vector: list[list[list[float]]] | list[str] | None = None
    """only where `outputs` asks for it: a vector for each token of each input but the first"""
    usage: Usage
    items: list[Item]
    tokens: list[VectorTokens] | None = None
    """only with `return_tokens`"""
    attention: list[Attention] | list[AttentionStatistics] | list[TokenContributions] | None = None
    """only if asked for"""


class TokenizedItem(AnswerModel):
    """One tokenised text."""

    input_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    """[start, end) of each token in the text, in characters; [0, 0] for special tokens"""
    truncated: bool
    tokens_cut: int | None = None
    """only if it was truncated: how many of its tokens were left out"""


class TokenizeAnswer(PromptedAnswer):
    """What `POST /tokenize` answers; one entry a text, in their order."""

    model: str
    items: list[TokenizedItem]
    usage: Usage
