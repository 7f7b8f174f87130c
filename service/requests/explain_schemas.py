"""The wire of `POST /explain`: two texts in, what carries their similarity out."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from service.requests.head_mask import HeadMask
from service.requests.schemas import PromptText, Usage
from service.wire import AnswerModel, RequestModel


class ExplainRequest(RequestModel):
    """What `POST /explain` takes."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"a": "A cat sat on the mat.", "b": "A kitten rested on the rug."}]}
    )

    a: str
    """one text"""
    b: str | None = None
    """the other text; a classifier explains one text too, or both as the pair that it reads"""
    through: Literal["pooling", "network"] = "pooling"
    """what contributions are of: `"pooling"`: of the last layer's token vectors, which have read each other;
    `"network"`: of the input tokens, followed through every layer with attention weights and norms fixed"""
    level: Literal["token", "word"] = "token"
    """`"word"`: contributions of a word's tokens are added up"""
    top_pairs: Annotated[int, Field(ge=1)] | None = None
    """only so many pairs, those of the largest contributions, and the sum of all others; null answers every pair"""
    similarity: Literal["cosine", "dot"] = "cosine"
    """of the two embeddings; `"dot"` is their dot product before normalisation"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """compare the first so many dimensions; null compares all"""
    truncate: bool = True
    """cut texts that are longer than the model takes; false refuses them"""
    prompt_name: str | None = None
    """one of the model's prompts, put before both texts; null takes the model's default, where it has one"""
    prompt: PromptText | None = None
    """text to put before both texts; empty for none, whatever the model's default"""
    head_mask: HeadMask = None
    """`[[layer, head, gate], ...]`: compare without these heads, as in `POST /encode`"""


class ExplainedText(AnswerModel):
    """One of the two texts, token by token, special tokens included."""

    tokens: list[str] | None = None
    """not where words are listed"""
    words: list[str] | None = None
    """with `level` `"word"`, as they stand in the text; special tokens are words of their own"""
    offsets: list[tuple[int, int]]
    """[start, end) of each token or word in the text, in characters; [0, 0] for special tokens"""
    segments: list[int | None] | None = None
    """only of a pair: the text that each token or word is of, 0 or 1; null for special tokens"""
    saliency: list[float] | None = None
    """only through pooling: the share of the pooled vector that attention rollout (Abnar & Zuidema 2020) traces back to
    each input token or word; sums to 1"""
    own_shares: list[list[float]] | None = None
    """only through the network: [layer][token], how much of a token's vector after each layer is still its own, from 0
    to 1 (Kobayashi et al. 2021: one minus the mixing ratio)"""
    truncated: bool
    """whether the text was longer and its end was cut off"""


class TopPair(AnswerModel):
    """One pair of tokens or words."""

    a: int
    """which of `a`; through the network the number behind the last is the biases'"""
    b: int
    contribution: float


class ExplainAnswer(AnswerModel):
    """What `POST /explain` answers of an embedder."""

    model: str
    through: Literal["pooling", "network"]
    similarity: float
    """what `POST /encode` would say of the two texts"""
    contributions: list[list[float]] | None = None
    """[token of a][token of b]: what each pair adds; the similarity is the sum of all cells. Through the network the
    last row and the last column are the biases' of the network, which no token gives"""
    top_pairs: list[TopPair] | None = None
    """only where asked for, in place of `contributions`: the largest first"""
    left_out: float | None = None
    """only with `top_pairs`: the sum of all other pairs"""
    a: ExplainedText
    b: ExplainedText
    prompt_name: str | None = None
    """the prompt that was put before both texts; only where one was"""
    prompt: str | None = None
    """its text"""
    usage: Usage


class ExplainedScores(AnswerModel):
    """What `POST /explain` answers of a classifier, through the network."""

    model: str
    through: Literal["network"]
    labels: list[str]
    logits: list[float]
    """a label, before the activation that makes scores of them"""
    contributions: list[list[float]]
    """[label][token], what each adds to the logit, the last entry the biases'; the logit is the sum of its row"""
    masses: dict[str, list[float]]
    """the same added up, [label] each: `special` of special tokens, `biases`, and `text`, or of a pair `a` and `b`"""
    text: ExplainedText
    usage: Usage
