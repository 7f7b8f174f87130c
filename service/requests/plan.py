"""A request to encode, understood: what it asks of the model. Nothing has run yet.

It knows the model's manifest and tokenizer, neither HTTP nor threads; whoever runs the model does so between the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from model.graph_names import NORM_LAYERS
from model.manifest import Manifest
from model.tasks.settings import Task
from service.errors import Invalid
from service.inference.backend import Float32Array
from service.requests.artifact_inputs import require_input
from service.requests.axes import plan_axes
from service.requests.decomposition import DecompositionPlan, plan_decomposition
from service.requests.head_mask import read_head_mask
from service.requests.long_texts import check_long_texts
from service.requests.prompts import Prompt, with_prompt
from service.requests.schemas import EncodeRequest
from service.requests.selection import AttentionPlan, AttentionSelection, select_attention
from service.requests.spans import SpanPlan, Spans, read_spans
from service.tokenization.inputs import Inputs
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.tokenizer import Tokenizer


class RunOptions(TypedDict):
    """What a run is to compute besides pooled vectors."""

    attention_layers: tuple[int, ...]
    wants_tokens: bool
    wants_norms: bool
    head_gates: Float32Array | None


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """A request resolved against the model, before its texts are tokenised.

    Attributes:
        request: as it came.
        inputs: what to tokenise, prompts in front.
        prompt: what is in front of each text, or None.
        selection: layers and heads of the attention answer, or None.
        head_gates: [sum of all layers' heads], or None.
        dimensions: of the answer's vectors; labels, or words of the vocabulary.
        task: the model's.
        spans: what has a vector in place of each text, or None.
        decomposition: what is answered of each input token's part of the vectors, or None.
    """

    request: EncodeRequest
    inputs: Inputs
    prompt: Prompt | None
    selection: AttentionSelection | None
    head_gates: Float32Array | None
    dimensions: int
    task: Task = "embedding"
    spans: SpanPlan | None = None
    decomposition: DecompositionPlan | None = None

    def of(self, place: slice) -> "EncodePlan":
        """The plan of some of the inputs, for what is made of their results."""
        return self if self.spans is None else replace(self, spans=self.spans.of(place))

    @property
    def is_one_array(self) -> bool:
        """Whether the answer holds one array of all inputs, not one an input."""
        return self.request.output == "pooled" and self.task in {"embedding", "classification"} and self.spans is None

    @property
    def needs_only_ids(self) -> bool:
        """Whether tokens and offsets can be left out."""
        return self.request.attention is None and self.spans is None

    @property
    def run_options(self) -> RunOptions:
        """What the model is to compute."""
        selection = self.selection
        return {
            "attention_layers": selection.computed_layers if selection else (),
            "wants_tokens": self.request.output == "tokens" or self.spans is not None,
            "wants_norms": selection is not None and selection.options.form == "norms",
            "head_gates": self.head_gates,
        }

    def plan_attention(self, tokenized: Sequence[TokenizedInput], tokenizer: Tokenizer) -> AttentionPlan | None:
        """Rows and columns of the attention answer, once its texts are tokens; None where none is asked for."""
        if self.selection is None:
            return None
        axes = plan_axes(self.selection.options, tokenized, tokenizer)
        return AttentionPlan(self.selection, axes)


def plan_encoding(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> EncodePlan:
    """Resolves a request.

    Raises:
        Invalid: it asks for what the model does not have.
    """
    _refuse_other_tasks(request, inputs, manifest)
    if request.long_texts is not None:
        check_long_texts(request, inputs, manifest)
    spans = None if request.spans is None else _plan_spans(request.spans, request, inputs, manifest)
    decomposition = plan_decomposition(request, manifest)
    selection = _select(request, inputs, manifest)
    head_gates = read_head_mask(request.head_mask, manifest)
    dimensions = check_dimensions(request.dimensions, _output_size(request, manifest))
    prompt, prompted = with_prompt(manifest.defaults, inputs, name=request.prompt_name, text=request.prompt)
    return EncodePlan(request, prompted, prompt, selection, head_gates, dimensions, manifest.task, spans, decomposition)


def check_dimensions(dimensions: int | None, size: int, *, name: str = "dimensions") -> int:
    """How many dimensions of vectors of this size are wanted; `name` is what the caller calls them.

    Raises:
        Invalid: more than there are.
    """
    if dimensions is not None and dimensions > size:
        raise Invalid(f"{name}: expected 1 to {size}, the size of the vectors", param=name)
    return dimensions or size


def _select(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> AttentionSelection | None:
    if request.attention is None:
        return None
    if request.attention.level == "word" and (inputs.token_ids is not None or inputs.id_pairs is not None):
        raise Invalid("attention.level: token ids have no words; send texts", param="attention.level")
    if request.attention.form == "decomposition":
        return None
    if request.attention.form == "norms":
        require_input(manifest, NORM_LAYERS, param="attention.form")
        if manifest.config.output_gate:
            raise Invalid(
                'attention.form: "norms" would leave out the gates that this network puts on what each query takes; '
                'ask for "weights"',
                param="attention.form",
            )
    return select_attention(request.attention, manifest.config.num_heads, causal=manifest.config.causal)


def _plan_spans(spans: Spans, request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> SpanPlan:
    if request.output == "tokens":
        raise Invalid('spans: output "tokens" answers every token; leave one of the two out', param="spans")
    return read_spans(spans, inputs, manifest)


def _output_size(request: EncodeRequest, manifest: Manifest) -> int:
    return manifest.config.output_size if request.output == "pooled" else manifest.config.hidden_size


def _refuse_other_tasks(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> None:
    """Refuses what another task would answer."""
    if inputs.is_paired and not manifest.pairs:
        raise Invalid(
            f"pairs: {manifest.model} reads one text at a time (its task is {manifest.task}); send inputs",
            param="pairs",
        )
    has_vectors = manifest.task in {"embedding", "multi_vector"} or request.output == "tokens"
    if request.dimensions is not None and not has_vectors:
        raise Invalid(
            f"dimensions: {manifest.model} gives no vectors to cut (its task is {manifest.task})", param="dimensions"
        )
