"""A request to explain through the network, understood: what is read, and that it can be. Nothing has run yet."""

from collections.abc import Sequence
from dataclasses import dataclass

from model.artifact import EXPLAIN_GRAPH
from model.manifest import Manifest
from service.errors import Invalid, NotFound, WrongTask
from service.requests.attention_schemas import AttentionRequest
from service.requests.decomposition import check_explained, missing_graph
from service.requests.explain_plan import NAMES, SIDES
from service.requests.explain_schemas import ExplainRequest
from service.requests.plan import check_dimensions
from service.requests.prompts import Prompt, with_prompt
from service.tokenization.inputs import InputNames, Inputs, refuse_empty, refuse_truncated
from service.tokenization.tokenized import TokenizedInput


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """A request resolved against the model, before its texts are tokenised.

    Attributes:
        request: as it came.
        inputs: both texts, prompts in front; of a classifier one text, or one pair.
        prompt: what is in front of each text, or None.
        names: of the inputs, for errors.
    """

    request: ExplainRequest
    inputs: Inputs
    prompt: Prompt | None
    names: InputNames

    @property
    def labels(self) -> AttentionRequest:
        """Whether tokens or words are listed."""
        return AttentionRequest(level=self.request.level)

    def check_texts(self, texts: Sequence[TokenizedInput], *, max_length: int, max_explained: int) -> None:
        """Refuses texts that cannot be explained.

        Raises:
            Invalid: a text is no token at all.
            TooLarge: a text is longer than may be explained, or than the model takes and must not be cut.
        """
        refuse_empty(texts, names=self.names)
        if not self.request.truncate:
            refuse_truncated(texts, names=self.names, max_length=max_length)
        lengths, cure = [len(text.input_ids) for text in texts], 'send a shorter text, or ask for through "pooling"'
        check_explained(lengths, max_explained, names=self.names, cure=cure)


def plan_network(request: ExplainRequest, manifest: Manifest) -> NetworkPlan:
    """Resolves a request.

    Raises:
        WrongTask: the model gives no vector of a text and no score.
        NotFound: the artifact has no graph for it.
        Invalid: it asks for what the model does not have.
    """
    if manifest.task not in {"embedding", "classification"}:
        raise WrongTask(
            f"{manifest.model} is for {manifest.task.replace('_', '-')}: only an embedding's similarity and a "
            "classifier's scores are explained through the network"
        )
    require_explain_graph(manifest)
    if request.head_mask:
        raise Invalid('head_mask: heads cannot be switched off through the network; take "pooling"', param="head_mask")
    return _plan_scores(request, manifest) if manifest.task == "classification" else _plan_vectors(request, manifest)


def require_explain_graph(manifest: Manifest) -> None:
    """Refuses artifacts that were exported without it.

    Raises:
        NotFound: saying how to get it.
    """
    if EXPLAIN_GRAPH not in manifest.files:
        raise NotFound(missing_graph(manifest))


def _plan_vectors(request: ExplainRequest, manifest: Manifest) -> NetworkPlan:
    if request.b is None:
        raise Invalid("b: Field required", param="b")
    check_dimensions(request.dimensions, manifest.config.embedding_size)
    given = Inputs(texts=(request.a, request.b))
    prompt, inputs = with_prompt(manifest.defaults, given, name=request.prompt_name, text=request.prompt)
    return NetworkPlan(request, inputs, prompt, NAMES)


def _plan_scores(request: ExplainRequest, manifest: Manifest) -> NetworkPlan:
    defaults = ExplainRequest(a="")
    for field in ("similarity", "dimensions", "top_pairs", "prompt_name", "prompt"):
        if getattr(request, field) != getattr(defaults, field):
            raise Invalid(f"{field}: a classifier's scores are explained, which have none; leave it out", param=field)
    if request.b is None:
        return NetworkPlan(request, Inputs(texts=(request.a,)), None, InputNames(listed="", singles=SIDES[:1]))
    if not manifest.pairs:
        raise Invalid(f"b: {manifest.model} reads one text at a time; leave it out", param="b")
    pair = Inputs(text_pairs=((request.a, request.b),))
    return NetworkPlan(request, pair, None, InputNames(listed="", singles=SIDES[:1]))
