"""`POST /explain`, understood: the body, the answer, and what the model is asked.

A request explains through pooling, by the last layer's token vectors, or through the network, by its input tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from model.artifact import EXPLAIN_GRAPH, Manifest
from service.errors import Invalid, NotFound, WrongTask
from service.inference.backend import Float32Array
from service.requests.attention import (
    AttentionSelection,
    check_explained,
    missing_graph,
    read_head_mask,
    select_attention,
)
from service.requests.plan import Prompt, check_dimensions, with_prompt
from service.requests.schemas import (
    AttentionRequest,
    HeadMask,
    Labels,
    ModelChoice,
    PromptedAnswer,
    PromptOptions,
    Truncation,
    Usage,
    example,
    refuse_beside,
)
from service.tokenization.inputs import InputNames, Inputs, refuse_empty
from service.tokenization.rows import TokenizedInput
from service.wire import AnswerModel

SIDES = ("a", "b")
NAMES = InputNames(listed="", singles=SIDES)


class ExplainRequest(Truncation, PromptOptions, ModelChoice):
    """What `POST /explain` takes."""

    model_config = example(a="A cat sat on the mat.", b="A kitten rested on the rug.")

    a: str
    """one text"""
    b: str | None = None
    """the other text; a classifier explains one text too, or both as the pair that it reads"""
    at: Annotated[int, Field(ge=0)] | None = None
    """of a model that labels tokens, which needs it: a character of `a`, whose token's label is explained; an entity's
    `start` is one"""
    through: Literal["pooling", "network"] = "pooling"
    """what contributions are of: `"pooling"`: of the last layer's token vectors, which have read each other;
    `"network"`: of the input tokens, followed through every layer with attention weights and norms fixed"""
    level: Literal["token", "word"] = "token"
    """`"word"`: contributions of a word's tokens are added up"""
    top_pairs: Annotated[int, Field(ge=1)] | None = None
    """only the N pairs with the largest contributions, and the sum of all others; null answers every pair"""
    similarity: Literal["cosine", "dot"] = "cosine"
    """of the two embeddings; `"dot"` is their dot product before normalisation"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """truncate both vectors to N dimensions; null compares all"""
    head_mask: HeadMask = None
    """`[[layer, head, gate], ...]`: compare without these heads, as in `POST /encode`"""


class ExplainedText(Labels):
    """One of the two texts, token by token, special tokens included."""

    saliency: list[float] | None = None
    """only through pooling: the share of the pooled vector that attention rollout (Abnar & Zuidema 2020) traces back to
    each input token or word; sums to 1"""
    own_shares: list[list[float]] | None = None
    """only through the network, and by tokens: [layer][token], how much of a token's vector after each layer is still
    its own, from 0 to 1 (Kobayashi et al. 2021: one minus the mixing ratio)"""
    truncated: bool
    """whether the text was longer, and its end or start was cut off"""


class TopPair(AnswerModel):
    """One pair of tokens or words."""

    a: int
    """which of `a`; through the network the number behind the last is the biases'"""
    b: int
    contribution: float


class ExplainAnswer(PromptedAnswer):
    """What `POST /explain` answers of an embedder."""

    model: str
    through: Literal["pooling", "network"]
    similarity: float
    """what `POST /encode` would say of the two texts"""
    contributions: list[list[float]] | None = None
    """[token of a][token of b]: what each pair adds; the similarity is the sum of all cells. Through the network the
    last row and the last column are the biases' of the network, which no token gives"""
    top_pairs: list[TopPair] | None = None
    """only if asked for, instead of `contributions`: the largest first"""
    left_out: float | None = None
    """only with `top_pairs`: the sum of all other pairs"""
    a: ExplainedText
    b: ExplainedText
    usage: Usage


class ExplainedScores(AnswerModel):
    """What `POST /explain` answers of a classifier of texts or tokens, through the network."""

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
    token: int | None = None
    """only of a model that labels tokens: the place in `text` of the token whose label is explained, or of its word"""
    usage: Usage


@dataclass(frozen=True, slots=True)
class ExplainPlan:
    """A request resolved against the model, before its texts are tokenised.

    Attributes:
        inputs: both texts, prompts in front; of a classifier one text, or one pair.
        selection: the attention that saliency is made of; None through the network.
        head_gates: [sum of all layers' heads], or None.
        can_pool: whether the model also explains through pooling.
    """

    request: ExplainRequest
    inputs: Inputs
    names: InputNames = NAMES
    prompt: Prompt = field(default_factory=Prompt)
    selection: AttentionSelection | None = None
    head_gates: Float32Array | None = None
    can_pool: bool = False

    @property
    def run_options(self) -> dict[str, Any]:
        """What the model is to compute through pooling, as `Runner.run` takes it."""
        layers = self.selection.layers if self.selection else ()
        return {"attention_layers": layers, "wants_tokens": True, "head_gates": self.head_gates}

    def place(self, text: TokenizedInput) -> int | None:
        """The token whose label is explained, None if the request names no character; Invalid where no token is."""
        at = self.request.at
        if at is None:
            return None
        places = (place for place, (start, end) in enumerate(text.offsets or ()) if start <= at < end)
        if (found := next(places, None)) is None:
            cut = "the text was cut before it" if text.truncated else "a space, or behind the text's end"
            raise Invalid.at("at", f"no token of the text is at character {at}: {cut}")
        return found

    def check_texts(self, texts: Sequence[TokenizedInput], *, max_explained: int) -> None:
        """Refuses a text that has no token at all (Invalid), or is longer than is explained (TooLarge)."""
        refuse_empty(texts, names=self.names)
        if self.request.through == "network":
            cure = "send a shorter text" + (', or ask for through "pooling"' if self.can_pool else "")
            check_explained([len(text.input_ids) for text in texts], max_explained, names=self.names, cure=cure)


def plan_explaining(request: ExplainRequest, manifest: Manifest) -> ExplainPlan:
    """Resolves a request.

    Raises:
        WrongTask: the model returns no vector of a text, and through the network no score.
        NotFound: the artifact has no graph that explains through the network.
        Invalid: it asks for what the model does not have.
    """
    labels_tokens = manifest.task == "token_classification"
    if request.at is not None and not labels_tokens:
        raise Invalid.at("at", f"{manifest.model} labels no tokens; leave it out")
    if request.through == "pooling":
        return _plan_pooling(request, manifest)
    if request.at is None and labels_tokens:
        raise Invalid.at("at", "Field required, since this model labels tokens")
    if manifest.task not in {"embedding", "classification", "token_classification"}:
        raise WrongTask(
            f"{manifest.model} is for {manifest.task.replace('_', '-')}: only an embedding's similarity and a "
            "classifier's scores are explained through the network"
        )
    if EXPLAIN_GRAPH not in manifest.files:
        raise NotFound(missing_graph(manifest))
    can_pool = manifest.task == "embedding" and not manifest.config.projections
    if request.head_mask:
        cure = 'ask for through "pooling"' if can_pool else "leave it out"
        raise Invalid.at("head_mask", f"heads cannot be switched off through the network; {cure}")
    if manifest.task != "embedding":
        return _plan_scores(request, manifest)
    prompt, inputs = _both_texts(request, manifest, manifest.config.embedding_size)
    return ExplainPlan(request, inputs, prompt=prompt, can_pool=can_pool)


def _plan_pooling(request: ExplainRequest, manifest: Manifest) -> ExplainPlan:
    if manifest.task != "embedding":
        has_labels = manifest.task in {"classification", "token_classification"}
        cure = 'ask for through "network"' if has_labels else "take a model for embedding"
        raise WrongTask(
            f"{manifest.model} is for {manifest.task.replace('_', '-')}: only the similarity of two embeddings can be "
            f"explained by pairs of tokens; {cure}"
        )
    if projections := manifest.config.projections:
        raise Invalid(
            f"this model projects its pooled vector to {projections[-1].size} dimensions; the similarity of "
            'projected vectors is no sum over pairs of final token vectors; ask for through "network"'
        )
    prompt, inputs = _both_texts(request, manifest, manifest.config.hidden_size)
    selection = select_attention(AttentionRequest(reduce="rollout"), manifest.config.num_heads)
    head_gates = read_head_mask(request.head_mask, manifest)
    return ExplainPlan(request, inputs, prompt=prompt, selection=selection, head_gates=head_gates)


def _both_texts(request: ExplainRequest, manifest: Manifest, size: int) -> tuple[Prompt, Inputs]:
    """Both texts behind their prompt; their vectors have `size` dimensions."""
    if request.b is None:
        raise Invalid.at("b", "Field required")
    check_dimensions(request.dimensions, size)
    given = Inputs(texts=(request.a, request.b))
    return with_prompt(manifest.defaults, given, name=request.prompt_name, text=request.prompt)


def _plan_scores(request: ExplainRequest, manifest: Manifest) -> ExplainPlan:
    fields = ("similarity", "dimensions", "top_pairs", "prompt_name", "prompt")
    refuse_beside(request, fields, "a classifier, whose scores are explained")
    if request.b is not None and not manifest.pairs:
        raise Invalid.at("b", f"{manifest.model} reads one text at a time; leave it out")
    inputs = Inputs(texts=(request.a,)) if request.b is None else Inputs(text_pairs=((request.a, request.b),))
    return ExplainPlan(request, inputs, InputNames(listed="", singles=SIDES[:1]))
