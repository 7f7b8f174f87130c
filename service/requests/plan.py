"""A request to encode, understood: what it asks of the model, and how large its answer will be. Nothing has run yet.

It knows the model's manifest and tokenizer, neither HTTP nor threads; whoever runs the model does so between the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from model.graph_names import NORM_LAYERS
from model.manifest import Manifest
from model.tasks.settings import Task
from service.errors import Invalid, TooLarge
from service.inference.backend import Float32Array
from service.requests.artifact_inputs import require_input
from service.requests.axes import plan_axes
from service.requests.decomposition import DecompositionPlan, plan_decomposition
from service.requests.head_mask import read_head_mask
from service.requests.long_texts import check_long_texts
from service.requests.prompts import Prompt, with_prompt
from service.requests.schemas import EncodeRequest
from service.requests.selection import (
    ARRAY_FLOATS,
    FLOAT_BYTES,
    AttentionPlan,
    AttentionSelection,
    check_attention_size,
    select_attention,
)
from service.requests.spans import SpanPlan, Spans, read_spans
from service.settings import Settings
from service.tokenization.inputs import Inputs
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

# Held of each number of an answer until it is read: float32 as computed and as selected or normalised, and as text.
TENSOR_BYTES = 4 + 4
BASE64_BYTES = TENSOR_BYTES + 6
JSON_BYTES = TENSOR_BYTES + 13
ARRAYS_OF_PARTS = 16  # made of each text's parts on the way to its norms and cosines, about
SPARSE_WORDS = 4096  # with a weight, at the most: trained models give a text a few hundred


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


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large an answer will be, known before the model runs.

    Attributes:
        floats: in the answer, about.
        built_from: floats read to build it, about.
        attention_bytes: of the answer's attention.
        work_bytes: of the attention and the hidden states that are computed for it.
    """

    floats: int
    built_from: int
    attention_bytes: int
    work_bytes: int

    def held_bytes(self, encoding_format: str, *, as_safetensors: bool) -> int:
        """What is held from the first run until the answer is read, about."""
        if as_safetensors:
            return self.work_bytes + TENSOR_BYTES * self.floats
        return self.work_bytes + (BASE64_BYTES if encoding_format == "base64" else JSON_BYTES) * self.floats


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


def check_sizes(plan: EncodePlan, lengths: Sequence[int], attention: AttentionPlan | None, settings: Settings) -> Sizes:
    """How large the answer will be, for texts of these lengths in tokens.

    Raises:
        TooLarge: larger than the settings allow; the message says what would make it smaller.
    """
    if (size := _output_floats(plan, lengths) * FLOAT_BYTES) > settings.max_embedding_bytes:
        raise TooLarge(
            f"the answer would hold {size} bytes of embeddings, at most {settings.max_embedding_bytes} are allowed; "
            "send fewer inputs or ask for fewer dimensions",
            param="output",
        )
    hidden_bytes = 0 if plan.spans is None else plan.spans.work_bytes(lengths)
    if plan.decomposition is not None:
        return _decomposition_sizes(plan.decomposition, size, lengths, settings)
    if attention is None:
        arrays = 1 if plan.is_one_array else len(lengths)
        return Sizes(size // FLOAT_BYTES, size // FLOAT_BYTES + ARRAY_FLOATS * arrays, 0, hidden_bytes)
    attention_bytes = check_attention_size(
        attention.selection,
        attention.axes,
        is_half=plan.request.encoding_format == "float16",
        max_bytes=settings.max_attention_bytes,
        max_work_bytes=settings.max_attention_work_bytes,
    )
    floats = (size + attention_bytes) // FLOAT_BYTES
    built_from = max(floats, attention.selection.build_floats(attention.axes))
    return Sizes(floats, built_from, attention_bytes, hidden_bytes + attention.selection.work_bytes(lengths))


def _decomposition_sizes(
    decomposition: DecompositionPlan, embedding_bytes: int, lengths: Sequence[int], settings: Settings
) -> Sizes:
    answer_bytes = decomposition.answer_bytes(lengths, settings.max_attention_bytes)
    work_bytes, floats = decomposition.work_bytes(lengths), (embedding_bytes + answer_bytes) // FLOAT_BYTES
    built_from = floats + work_bytes // FLOAT_BYTES + ARRAYS_OF_PARTS * ARRAY_FLOATS * len(lengths)
    return Sizes(floats, built_from, answer_bytes, work_bytes)


def _output_floats(plan: EncodePlan, lengths: Sequence[int]) -> int:
    """Numbers in the answer for texts of these lengths, without attention."""
    if plan.is_one_array:
        return len(lengths) * plan.dimensions
    if plan.spans is not None:
        return len(plan.spans) * plan.dimensions
    if plan.request.output == "pooled" and plan.task == "sparse":
        return len(lengths) * 2 * min(plan.dimensions, SPARSE_WORDS)
    return sum(lengths) * plan.dimensions


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
