"""A request to encode, understood: what it asks of the model. Nothing has run yet.

It knows the model's manifest and tokenizer, neither HTTP nor threads; whoever runs the model does so between the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict, get_args

from model.artifact import NORM_LAYERS, Defaults, Manifest
from model.config_parts import Task
from service.errors import Invalid, TooLarge
from service.inference.backend import Float32Array
from service.requests.attention import (
    ARRAY_FLOATS,
    FLOAT_BYTES,
    WORD_FLOATS,
    AttentionPlan,
    AttentionSelection,
    check_attention_size,
    plan_axes,
    read_head_mask,
    require_input,
    select_attention,
)
from service.requests.decomposition import DecompositionPlan, plan_decomposition
from service.requests.schemas import EncodeRequest, VectorFormat
from service.requests.spans import SpanPlan, read_spans
from service.settings import Settings
from service.tokenization.inputs import Inputs
from service.tokenization.rows import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

# Held of each number of an answer until it is read: float32 as computed and as selected or normalised, and as text.
TENSOR_BYTES = 4 + 4
BASE64_BYTES = TENSOR_BYTES + 6
JSON_BYTES = TENSOR_BYTES + 13
ARRAYS_OF_PARTS = 16  # made of each text's parts on the way to its norms and cosines, about
ENTITY_FLOATS = 64  # numbers that take as much space and time as one entity, about
POOLED_TOKENS = 2048  # of a document whose tokens share vectors: time and memory grow with the square
TOKEN_NUMBERS = 4  # for each token besides its vector: id, offsets, row
SPARSE_WORDS = 4096  # with a weight, at the most: trained models give a text a few hundred


class RunOptions(TypedDict):
    """What a run is to compute besides pooled vectors."""

    attention_layers: tuple[int, ...]
    wants_tokens: bool
    wants_norms: bool
    head_gates: Float32Array | None
    by_table: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `name` is None where the request held its text."""

    text: str
    name: str | None = None

    def document(self) -> dict[str, str]:
        """The answer's fields on the prompt."""
        return {"prompt": self.text} if self.name is None else {"prompt_name": self.name, "prompt": self.text}

    def before(self, texts: Sequence[str]) -> list[str]:
        """The texts as the model gets them."""
        return [self.text + text for text in texts]


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
        spans: what has a vector instead of each text, or None.
        decomposition: the form in which each input token's part of the vectors is answered, or None.
        overlap: tokens that neighbouring windows share; None where texts are not read in windows.
        token_numbers: of each token in the answer's further outputs; 0 if none are asked for.
        hidden_size: of the network.
        by_table: whether a table of weights reads the texts, instead of the network.
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
    overlap: int | None = None
    token_numbers: int = 0
    hidden_size: int = 0
    by_table: bool = False

    def of(self, place: slice) -> "EncodePlan":
        """The plan of some of the inputs, for what is made of their results."""
        return self if self.spans is None else replace(self, spans=self.spans.of(place))

    @property
    def is_one_array(self) -> bool:
        """Whether the answer holds one array of all inputs, not one an input."""
        return self.request.output == "pooled" and self.task in {"embedding", "classification"} and self.spans is None

    @property
    def answers_tokens(self) -> bool:
        """Whether the answer has a vector for each token."""
        if "multi_vector" in (self.request.outputs or ()):
            return True
        return self.spans is None and (self.request.output == "tokens" or self.task == "multi_vector")

    @property
    def answers_counted(self) -> bool:
        """Whether vectors are answered of those tokens only that count in a score."""
        return self.request.role is not None and self.task == "multi_vector" and self.request.output == "pooled"

    @property
    def needs_only_ids(self) -> bool:
        """Whether tokens and offsets can be left out."""
        wants = self.request
        return not (wants.attention or wants.entities or wants.return_tokens) and self.spans is None

    def axes_floats(self, lengths: Sequence[int]) -> int:
        """How many floats planning the attention of texts of these lengths is worth, about."""
        finds_words = self.selection is not None and self.selection.options.level == "word"
        return ARRAY_FLOATS * len(lengths) + (WORD_FLOATS * sum(lengths) if finds_words else 0)

    @property
    def run_options(self) -> RunOptions:
        """What the model is to compute."""
        selection = self.selection
        return {
            "attention_layers": selection.computed_layers if selection else (),
            "wants_tokens": self.request.output == "tokens" or self.spans is not None or self.token_numbers > 0,
            "wants_norms": selection is not None and selection.options.form == "norms",
            "head_gates": self.head_gates,
            "by_table": self.by_table,
        }

    def plan_attention(self, tokenized: Sequence[TokenizedInput], tokenizer: Tokenizer) -> AttentionPlan | None:
        """Rows and columns of the attention answer, once its texts are tokens; None if none is asked for."""
        if self.selection is None:
            return None
        return AttentionPlan(self.selection, plan_axes(self.selection.options, tokenized, tokenizer))


def plan_encoding(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> EncodePlan:
    """Resolves a request.

    Raises:
        Invalid: it asks for what the model does not have.
    """
    _refuse_other_tasks(request, inputs, manifest)
    if request.long_texts is not None:
        check_long_texts(request, inputs, manifest)
    token_numbers = _check_outputs(request, manifest)
    if request.normalize is None:
        request = request.model_copy(update={"normalize": manifest.defaults.unit_length})
    if request.spans is not None and request.output == "tokens":
        raise Invalid.at("spans", 'output "tokens" answers every token; leave one of the two out')
    spans = None if request.spans is None else read_spans(request.spans, inputs, manifest)
    decomposition = plan_decomposition(request, manifest)
    selection = _select(request, inputs, manifest)
    head_gates = read_head_mask(request.head_mask, manifest)
    config = manifest.config
    size = config.output_size if request.output == "pooled" else config.hidden_size
    dimensions = check_dimensions(request.dimensions, size)
    prompt, prompted = with_prompt(manifest.defaults, inputs, name=request.prompt_name, text=request.prompt)
    plan = EncodePlan(
        request,
        prompted,
        prompt,
        selection,
        head_gates,
        dimensions,
        manifest.task,
        spans,
        decomposition,
        overlap=_plan_overlap(request, manifest),
        token_numbers=token_numbers,
        hidden_size=config.hidden_size,
        by_table=manifest.query_table and request.role == "query",
    )
    _check_token_options(plan, manifest)
    return plan


def _check_outputs(request: EncodeRequest, manifest: Manifest) -> int:
    """How many numbers a token has in the outputs that are asked for besides a text's vector."""
    if request.outputs is None:
        return 0
    known = ["dense", *manifest.token_outputs] if manifest.task == "embedding" else []
    if missing := [name for name in request.outputs if name not in known]:
        has = f"has {', '.join(known)}" if known else f"has none to choose from (its task is {manifest.task})"
        raise Invalid.at("outputs", f"{manifest.model} gives no {missing[0]}; it {has}")
    for name, is_asked in (
        ('output "tokens"', request.output == "tokens"),
        ("spans", request.spans is not None),
        ("long_texts", request.long_texts is not None),
        (f"encoding_format {request.encoding_format}", request.encoding_format in get_args(VectorFormat)),
    ):
        if is_asked and request.outputs != ["dense"]:
            raise Invalid.at("outputs", f"{name} is for dense vectors alone; leave one of the two out")
    if request.dimensions is not None and "dense" not in request.outputs:
        raise Invalid.at("dimensions", "they are of dense vectors, and outputs asks for none")
    if request.normalize is not None and {*request.outputs} == {"sparse"}:
        raise Invalid.at("normalize", "it is for vectors, and outputs asks for none")
    return sum(manifest.token_outputs.get(name, 0) for name in set(request.outputs))


def _check_token_options(plan: EncodePlan, manifest: Manifest) -> None:
    """Refuses options for vectors of tokens if there are none."""
    request = plan.request
    if request.return_tokens and not plan.answers_tokens:
        raise Invalid.at("return_tokens", "the answer has no vectors of tokens; ask for output tokens")
    if request.pool_factor is None:
        return
    if manifest.task != "multi_vector" or request.output == "tokens" or plan.spans is not None:
        raise Invalid.at(
            "pool_factor",
            f"it is for the token vectors of a late-interaction model (the task of {manifest.model} is "
            f"{manifest.task})",
        )
    if request.role == "query" or not request.normalize:
        what = "documents, not queries" if request.role == "query" else "vectors of length 1; leave normalize out"
        raise Invalid.at("pool_factor", f"it is for {what}")


def check_dimensions(dimensions: int | None, size: int, *, name: str = "dimensions") -> int:
    """How many dimensions of vectors of this size are wanted; `name` is what the caller calls them.

    Raises:
        Invalid: more than there are.
    """
    if dimensions is not None and dimensions > size:
        raise Invalid.at(name, f"expected 1 to {size}, the size of the vectors")
    return dimensions or size


def _select(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> AttentionSelection | None:
    if request.attention is None:
        return None
    if request.attention.level == "word" and (inputs.token_ids is not None or inputs.id_pairs is not None):
        raise Invalid.at("attention.level", "token ids have no words; send texts")
    if request.attention.form == "decomposition":
        return None
    if request.attention.form == "norms":
        require_input(manifest, NORM_LAYERS, param="attention.form")
        if manifest.config.output_gate:
            raise Invalid.at(
                "attention.form",
                '"norms" would leave out the gates that this network puts on what each query takes; ask for "weights"',
            )
    return select_attention(request.attention, manifest.config.num_heads, causal=manifest.config.causal)


def _refuse_other_tasks(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> None:
    """Refuses what another task would answer."""
    if inputs.is_paired and not manifest.pairs:
        raise Invalid.at(
            "pairs",
            f"{manifest.model} reads one text at a time (its task is {manifest.task}); send inputs, each by itself",
        )
    if request.entities is not None:
        _check_entities(request, inputs, manifest)
    has_vectors = manifest.task in {"embedding", "multi_vector"} or request.output == "tokens"
    for field, use in (("dimensions", "cut"), ("normalize", "normalise")):
        if getattr(request, field) is not None and not has_vectors:
            raise Invalid.at(field, f"{manifest.model} returns no vectors to {use} (its task is {manifest.task})")
    has_scores = manifest.task in {"classification", "token_classification"} and request.output == "pooled"
    if request.raw_scores and not has_scores:
        raise Invalid.at("raw_scores", "the answer has no scores; leave it out")
    if request.pair_truncation != "longest_first" and not inputs.is_paired:
        raise Invalid.at("pair_truncation", "it is for pairs; leave it out")


def _check_entities(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> None:
    """Refuses what has no entities: other models, inputs without characters, and vectors."""
    if manifest.task != "token_classification":
        raise Invalid.at("entities", f"{manifest.model} labels no tokens (its task is {manifest.task})")
    if inputs.texts is None:
        raise Invalid.at("entities", "only texts have places of entities; send texts")
    for name, is_asked in (
        ('output "tokens"', request.output == "tokens"),
        ("spans", request.spans is not None),
        ("prompt", bool(request.prompt or request.prompt_name)),
    ):
        if is_asked:
            raise Invalid.at("entities", f"{name} does not go with them; leave one of the two out")


def _plan_overlap(request: EncodeRequest, manifest: Manifest) -> int | None:
    wanted = None if request.entities is None else request.entities.overlap
    if request.long_texts == "windows":
        return manifest.max_sequence_length // 4 if wanted is None else wanted
    if wanted is not None:
        raise Invalid.at("entities.overlap", 'windows have it; set long_texts to "windows"')
    return 0 if request.long_texts == "mean" else None


def check_long_texts(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> None:
    """Refuses what cannot be read in windows.

    Raises:
        Invalid: no texts, a task that windows are not for, or an answer that has an entry a token.
    """
    if inputs.texts is None:
        raise Invalid.at("long_texts", "only texts are read in windows, not token ids or pairs; send texts")
    if request.long_texts == "mean" and manifest.task != "embedding":
        raise Invalid.at(
            "long_texts", f"{manifest.model} returns no vector of a text to average (its task is {manifest.task})"
        )
    if request.long_texts == "windows" and manifest.task != "token_classification":
        raise Invalid.at(
            "long_texts",
            f'"windows" are for models that label tokens (the task of {manifest.model} is {manifest.task})',
        )
    for name, is_asked in (
        ('output "tokens"', request.output == "tokens"),
        ("attention", request.attention is not None),
        ("spans", request.spans is not None),
    ):
        if is_asked:
            raise Invalid.at("long_texts", f"{name} is of a text read whole; leave one of the two out")


def choose_prompt(
    defaults: Defaults, *, name: str | None, text: str | None, name_param: str = "prompt_name"
) -> Prompt | None:
    """The prompt of a request: as it says, else the model's default, else none. An empty text means none.

    Raises:
        Invalid: both are given, or the model has no prompt of that name.
    """
    if text is not None:
        if name is not None:
            raise Invalid.at("prompt", "give either prompt or prompt_name")
        return Prompt(text) if text else None
    if name is None:
        name = defaults.default_prompt_name
        return None if name is None or name not in defaults.prompts else Prompt(defaults.prompts[name], name)
    if name not in defaults.prompts:
        raise Invalid.at(name_param, _known(defaults))
    return Prompt(defaults.prompts[name], name)


def with_prompt(
    defaults: Defaults, inputs: Inputs, *, name: str | None, text: str | None
) -> tuple[Prompt | None, Inputs]:
    """The prompt that a request gets, None where it gets none, and its inputs with that before each.

    Token ids are used as given: the model's default prompt is for texts.

    Raises:
        Invalid: no such prompt, or one is asked for before token ids.
    """
    prompt = choose_prompt(defaults, name=name, text=text)
    if prompt is None:
        return None, inputs
    if inputs.texts is not None:
        return prompt, replace(inputs, texts=prompt.before(inputs.texts))
    if inputs.is_paired and (name is not None or text is not None):
        raise Invalid.at("prompt", "pairs are read without a prompt; leave it out")
    if name is not None or text is not None:
        param = "prompt_name" if text is None else "prompt"
        raise Invalid.at(param, "token ids are used as given; send texts, or ids that begin with its own")
    return None, inputs


def _known(defaults: Defaults) -> str:
    if not defaults.prompts:
        return "this model has no named prompts; give its text as prompt"
    return f"expected one of {', '.join(sorted(defaults.prompts))}"


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


def check_sizes(
    plan: EncodePlan,
    lengths: Sequence[int],
    attention: AttentionPlan | None,
    settings: Settings,
    *,
    block_floats: int = 0,
) -> Sizes:
    """How large the answer will be, for texts of these lengths in tokens; `block_floats` next to the attention's maps.

    Raises:
        TooLarge: larger than the settings allow; the message says what would make it smaller.
    """
    if (size := _output_floats(plan, lengths) * FLOAT_BYTES) > settings.max_embedding_bytes:
        raise TooLarge(
            f"the answer would hold {size} bytes of embeddings, at most {settings.max_embedding_bytes} are allowed; "
            "send fewer inputs or ask for fewer dimensions",
            param="output",
        )
    if plan.request.pool_factor is not None and (longest := max(lengths)) > POOLED_TOKENS:
        raise TooLarge.at(
            "pool_factor", f"a document has {longest} tokens, at most {POOLED_TOKENS} are pooled; send it in parts"
        )
    hidden_bytes = 0 if plan.spans is None else plan.spans.work_bytes(lengths)
    if plan.token_numbers:
        hidden_bytes += FLOAT_BYTES * plan.hidden_size * sum(lengths)
    if plan.decomposition is not None:
        return _decomposition_sizes(plan.decomposition, size, lengths, settings)
    if attention is None:
        arrays = (1 if plan.is_one_array else len(lengths)) + (0 if plan.spans is None else len(plan.spans))
        arrays += 0 if plan.request.pool_factor is None else sum(lengths)
        read = (size + hidden_bytes) // FLOAT_BYTES
        return Sizes(size // FLOAT_BYTES, read + ARRAY_FLOATS * arrays, 0, hidden_bytes)
    attention_bytes = check_attention_size(
        attention.selection,
        attention.axes,
        block_floats=block_floats,
        is_half=plan.request.encoding_format == "float16",
        max_bytes=settings.max_attention_bytes,
        max_work_bytes=settings.max_attention_work_bytes,
    )
    floats = (size + attention_bytes) // FLOAT_BYTES
    built_from = max(floats, attention.selection.build_floats(attention.axes)) + hidden_bytes // FLOAT_BYTES
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
    beside = TOKEN_NUMBERS if plan.request.return_tokens else 0
    if plan.request.outputs is not None:
        dense = len(lengths) * plan.dimensions if "dense" in plan.request.outputs else 0
        return dense + sum(lengths) * (plan.token_numbers + beside)
    if plan.is_one_array:
        return len(lengths) * plan.dimensions
    if plan.spans is not None:
        return len(plan.spans) * plan.dimensions
    if plan.request.output == "pooled" and plan.task == "sparse":
        return len(lengths) * 2 * min(plan.dimensions, SPARSE_WORDS)
    if plan.request.entities is not None:
        return sum(lengths) * max(plan.dimensions, ENTITY_FLOATS)
    return sum(lengths) * (plan.dimensions + beside)
