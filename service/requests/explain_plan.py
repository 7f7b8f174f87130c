"""A comparison of two texts, understood: what it asks of the model. Nothing has run yet.

It knows the model's manifest, neither HTTP nor threads; see `service.requests.plan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from model.manifest import Manifest
from service.errors import Invalid, WrongTask
from service.inference.backend import Float32Array
from service.requests.attention_schemas import AttentionRequest
from service.requests.explain_schemas import ExplainRequest
from service.requests.head_mask import read_head_mask
from service.requests.plan import RunOptions, check_dimensions
from service.requests.prompts import Prompt, with_prompt
from service.requests.selection import AttentionSelection, select_attention
from service.tokenization.inputs import InputNames, Inputs, refuse_empty, refuse_truncated
from service.tokenization.tokenized import TokenizedInput

SIDES = ("a", "b")
NAMES = InputNames(listed="", singles=SIDES)


@dataclass(frozen=True, slots=True)
class ExplainPlan:
    """A request resolved against the model, before its texts are tokenised.

    Attributes:
        request: as it came.
        inputs: both texts, prompts in front.
        prompt: what is in front of each text, or None.
        selection: the attention that saliency is made of.
        head_gates: [sum of all layers' heads], or None.
    """

    request: ExplainRequest
    inputs: Inputs
    prompt: Prompt | None
    selection: AttentionSelection
    head_gates: Float32Array | None

    @property
    def run_options(self) -> RunOptions:
        """What the model is to compute."""
        return {
            "attention_layers": self.selection.computed_layers,
            "wants_tokens": True,
            "wants_norms": False,
            "head_gates": self.head_gates,
        }

    def check_texts(self, texts: Sequence[TokenizedInput], max_length: int) -> None:
        """Refuses texts that cannot be compared.

        Raises:
            Invalid: a text is no token at all.
            TooLarge: a text is longer than the model takes, and must not be cut.
        """
        refuse_empty(texts, names=NAMES)
        if not self.request.truncate:
            refuse_truncated(texts, names=NAMES, max_length=max_length)


def plan_explaining(request: ExplainRequest, manifest: Manifest) -> ExplainPlan:
    """Resolves a request.

    Raises:
        WrongTask: the model gives no vector of a text.
        Invalid: it asks for what the model does not have.
    """
    _refuse_other_models(manifest)
    if request.b is None:
        raise Invalid("b: Field required", param="b")
    check_dimensions(request.dimensions, manifest.config.hidden_size)
    selection = select_attention(AttentionRequest(reduce="rollout"), manifest.config.num_heads)
    head_gates = read_head_mask(request.head_mask, manifest)
    given = Inputs(texts=(request.a, request.b))
    prompt, inputs = with_prompt(manifest.defaults, given, name=request.prompt_name, text=request.prompt)
    return ExplainPlan(request, inputs, prompt, selection, head_gates)


def _refuse_other_models(manifest: Manifest) -> None:
    if manifest.task != "embedding":
        raise WrongTask(
            f"{manifest.model} is for {manifest.task.replace('_', '-')}: only the similarity of two embeddings can be "
            "explained by pairs of tokens; take a model for embedding"
        )
    if projections := manifest.config.projections:
        raise Invalid(
            f"this model projects its pooled vector to {projections[-1].size} dimensions; the similarity of "
            "what comes out is no sum over pairs of tokens, so it cannot be explained by one"
        )
