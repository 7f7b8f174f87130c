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
    b: str
    """the other text"""
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

    tokens: list[str]
    offsets: list[tuple[int, int]]
    """[start, end) of each token in the text, in characters; [0, 0] for special tokens"""
    saliency: list[float]
    """the share of the pooled vector that attention rollout (Abnar & Zuidema 2020) traces back to each input token;
    sums to 1"""
    truncated: bool
    """whether the text was longer and its end was cut off"""


class ExplainAnswer(AnswerModel):
    """What `POST /explain` answers."""

    model: str
    similarity: float
    """what `POST /encode` would say of the two texts"""
    contributions: list[list[float]]
    """[token of a][token of b]: what each pair of final token vectors adds; the similarity is the sum of all cells"""
    a: ExplainedText
    b: ExplainedText
    prompt_name: str | None = None
    """the prompt that was put before both texts; only where one was"""
    prompt: str | None = None
    """its text"""
    usage: Usage
