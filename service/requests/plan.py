"""A request to encode, understood: what it asks of the model; whoever runs the model does so between the steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, get_args

from model.artifact import NORM_LAYERS, Defaults, Manifest
from service.errors import Invalid
from service.inference.backend import Float32Array
from service.requests.attention import (
    ARRAY_FLOATS,
    WORD_FLOATS,
    AttentionSelection,
    Axes,
    check_decomposition,
    plan_axes,
    read_head_mask,
    require_input,
    select_attention,
)
from service.requests.schemas import EncodeRequest, VectorFormat, refuse_beside
from service.requests.spans import SpanPlan, read_spans
from service.tokenization.inputs import Inputs
from service.tokenization.rows import TokenizedInput
from service.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, empty for none; `name` is None if it is not the model's."""

    text: str = ""
    name: str | None = None

    def document(self) -> dict[str, str]:
        """The answer's fields on the prompt; no field without one."""
        if self.name is None:
            return {"prompt": self.text} if self.text else {}
        return {"prompt_name": self.name, "prompt": self.text}

    def before(self, texts: Sequence[str]) -> list[str]:
        """The texts with the prompt in front."""
        return [self.text + text for text in texts]


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """A request resolved against the model, before its texts are tokenised.

    Attributes:
        inputs: what to tokenise, prompts in front.
        normalize: whether vectors have length 1.
        head_gates: [sum of all layers' heads], or None.
        dimensions: of the answer's vectors; labels, or words of the vocabulary.
        spans: what has a vector instead of each text, or None.
        overlap: tokens that neighbouring windows share; None where texts are not read in windows.
        token_numbers: of each token in the answer's further outputs; 0 if none are asked for.
    """

    request: EncodeRequest
    inputs: Inputs
    manifest: Manifest
    prompt: Prompt
    selection: AttentionSelection | None
    head_gates: Float32Array | None
    normalize: bool
    dimensions: int
    spans: SpanPlan | None
    overlap: int | None
    token_numbers: int

    def of(self, place: slice) -> "EncodePlan":
        """The plan of some of the inputs, for what is made of their results."""
        return self if self.spans is None else replace(self, spans=self.spans.of(place))

    @property
    def decomposes(self) -> bool:
        """Whether the answer says what each input token gives to its text's vector."""
        return self.request.attention is not None and self.request.attention.form == "decomposition"

    @property
    def is_one_array(self) -> bool:
        """Whether the answer holds one array of all inputs, not one an input."""
        has_one_each = self.manifest.task in {"embedding", "classification"}
        return self.request.output == "pooled" and has_one_each and self.spans is None

    @property
    def answers_counted(self) -> bool:
        """Whether vectors are answered of those tokens only that count in a score."""
        request = self.request
        return request.role is not None and self.manifest.task == "multi_vector" and request.output == "pooled"

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
    def run_options(self) -> dict[str, Any]:
        """What the model is to compute, as `Runner.run` takes it."""
        selection = self.selection
        return {
            "attention_layers": tuple(sorted(selection.layers)) if selection else (),
            "wants_tokens": self.request.output == "tokens" or self.spans is not None or self.token_numbers > 0,
            "wants_norms": selection is not None and selection.options.form == "norms",
            "head_gates": self.head_gates,
            "by_table": self.manifest.query_table and self.request.role == "query",
        }

    def axes(self, tokenized: Sequence[TokenizedInput], tokenizer: Tokenizer) -> list[Axes]:
        """Rows and columns of each input's attention, once its texts are tokens; none if none is asked for."""
        return [] if self.selection is None else plan_axes(self.selection.options, tokenized, tokenizer)


def plan_encoding(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> EncodePlan:
    """Resolves a request; Invalid if it asks for what the model does not have."""
    _refuse_other_tasks(request, inputs, manifest)
    overlap = _plan_overlap(request, inputs, manifest)
    token_numbers = _check_outputs(request, manifest)
    if request.spans is not None:
        refuse_beside(request, ("output",), "spans")
    size = manifest.config.output_size if request.output == "pooled" else manifest.config.hidden_size
    prompt, prompted = with_prompt(manifest.defaults, inputs, name=request.prompt_name, text=request.prompt)
    gates = read_head_mask(request.head_mask, manifest)
    plan = EncodePlan(
        request,
        prompted,
        manifest,
        prompt,
        selection=_select(request, inputs, manifest, gates),
        head_gates=gates,
        normalize=manifest.defaults.unit_length if request.normalize is None else request.normalize,
        dimensions=check_dimensions(request.dimensions, size),
        spans=None if request.spans is None else read_spans(request.spans, inputs, manifest),
        overlap=overlap,
        token_numbers=token_numbers,
    )
    _check_token_options(plan)
    if is_quantized(request.encoding_format):
        _check_quantized(plan, request.encoding_format)
    return plan


def _check_outputs(request: EncodeRequest, manifest: Manifest) -> int:
    """How many numbers a token has in the outputs that are asked for besides a text's vector."""
    if request.outputs is None:
        return 0
    known = ["dense", *manifest.token_outputs] if manifest.task == "embedding" else []
    if missing := [name for name in request.outputs if name not in known]:
        has = f"has {', '.join(known)}" if known else f"has none to choose from (its task is {manifest.task})"
        raise Invalid.at("outputs", f"{manifest.model} gives no {missing[0]}; it {has}")
    if request.outputs != ["dense"]:
        refuse_beside(request, ("output", "spans", "long_texts"), "outputs that are not dense")
        if is_quantized(request.encoding_format):
            raise Invalid.at("encoding_format", f"{request.encoding_format} is for dense vectors alone")
    if "dense" not in request.outputs:
        refuse_beside(request, ("dimensions",), "outputs that are not dense")
    return sum(manifest.token_outputs.get(name, 0) for name in set(request.outputs))


def _check_token_options(plan: EncodePlan) -> None:
    """Refuses options for vectors of tokens if there are none."""
    request, manifest = plan.request, plan.manifest
    is_further_output = "multi_vector" in (request.outputs or ())
    is_main_output = plan.spans is None and (request.output == "tokens" or manifest.task == "multi_vector")
    if request.return_tokens and not (is_further_output or is_main_output):
        raise Invalid.at("return_tokens", "the answer has no vectors of tokens; ask for output tokens")
    if request.pool_factor is None:
        return
    what = None
    if manifest.task != "multi_vector" or request.output == "tokens":
        what = f"the token vectors of a late-interaction model (the task of {manifest.model} is {manifest.task})"
    elif request.role == "query":
        what = "documents, not queries"
    elif not plan.normalize:
        what = "vectors of length 1; leave normalize out"
    if what is not None:
        raise Invalid.at("pool_factor", f"it is for {what}")


def _check_quantized(plan: EncodePlan, name: VectorFormat) -> None:
    manifest, is_of_tokens, param = plan.manifest, plan.request.output == "tokens", "encoding_format"
    if manifest.task not in {"embedding", "multi_vector"} and not is_of_tokens:
        raise Invalid.at(param, f"{name} is for vectors, and {manifest.model} gives none (its task is {manifest.task})")
    if name in {"int8", "uint8"} and is_of_tokens:
        whose = "whole texts' vectors" if manifest.task == "embedding" else "the model's own answer"
        raise Invalid.at(param, f"the ranges of {name} are those of {whose}; ask for binary vectors of tokens")
    check_format(name, manifest, dimensions=plan.dimensions, normalize=plan.normalize, param=param)


def is_quantized(name: str | None) -> TypeGuard[VectorFormat]:
    """Whether a format has fewer bits than float32."""
    return name in get_args(VectorFormat)


def check_format(name: str, manifest: Manifest, *, dimensions: int, normalize: bool, param: str) -> None:
    """Refuses (Invalid) a format without ranges in the artifact, of other vectors than theirs, or of no whole bytes."""
    if name in {"int8", "uint8"}:
        if manifest.vector_ranges is None:
            raise Invalid.at(param, f"the artifact has no ranges for {name} vectors; export it again")
        if not normalize or dimensions != len(manifest.vector_ranges.minimum):
            raise Invalid.at(
                param,
                f"{name} is for vectors of length 1 with all their dimensions; set normalize to true, leave "
                "dimensions out, or ask for binary",
            )
    elif name in {"binary", "ubinary"} and dimensions % 8:
        raise Invalid.at(param, f"{name} packs eight dimensions into a byte; ask for a multiple of 8, not {dimensions}")


def check_dimensions(dimensions: int | None, size: int, *, name: str = "dimensions") -> int:
    """How many dimensions of vectors of this size are wanted; refuses (Invalid) more than there are by `name`."""
    if dimensions is not None and dimensions > size:
        raise Invalid.at(name, f"expected 1 to {size}, the size of the vectors")
    return dimensions or size


def _select(
    request: EncodeRequest, inputs: Inputs, manifest: Manifest, gates: Float32Array | None
) -> AttentionSelection | None:
    if request.attention is None:
        return None
    if request.attention.level == "word" and (inputs.token_ids is not None or inputs.id_pairs is not None):
        raise Invalid.at("attention.level", "token ids have no words; send texts")
    if request.attention.form == "decomposition":
        check_decomposition(request, request.attention, manifest)
        return None
    if request.attention.form == "norms":
        require_input(manifest, NORM_LAYERS, param="attention.form")
        if manifest.config.output_gate:
            raise Invalid.at(
                "attention.form",
                '"norms" would leave out the gates that this network puts on what each query takes; ask for "weights"',
            )
    config = manifest.config
    return select_attention(
        request.attention, config.num_heads, causal=config.causal, reaches=config.reaches, head_gates=gates
    )


def _refuse_other_tasks(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> None:
    """Refuses what another task would answer."""
    if inputs.is_paired and not manifest.pairs:
        raise Invalid.at(
            "pairs",
            f"{manifest.model} reads one text at a time (its task is {manifest.task}); send inputs, each by itself",
        )
    if request.entities is not None:
        if manifest.task != "token_classification":
            raise Invalid.at("entities", f"{manifest.model} labels no tokens (its task is {manifest.task})")
        if inputs.texts is None:
            raise Invalid.at("entities", "only texts have places of entities; send texts")
        refuse_beside(request, ("output", "spans", "prompt", "prompt_name"), "entities")
    has_vectors = manifest.task in {"embedding", "multi_vector"} or request.output == "tokens"
    if request.dimensions is not None and not has_vectors:
        raise Invalid.at("dimensions", f"{manifest.model} returns no vectors to cut (its task is {manifest.task})")


def _plan_overlap(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> int | None:
    """How many tokens windows share; None where texts are not read in windows."""
    if request.long_texts is None:
        return None
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
    refuse_beside(request, ("output", "attention", "spans"), "long_texts")
    if request.long_texts == "mean":
        return 0
    wanted = None if request.entities is None else request.entities.overlap
    return manifest.max_sequence_length // 4 if wanted is None else wanted


def choose_prompt(defaults: Defaults, *, name: str | None, text: str | None, name_param: str = "prompt_name") -> Prompt:
    """The prompt of a request: as it says, else the model's default, else none. An empty text means none.

    Raises:
        Invalid: both are given, or the model has no prompt of that name.
    """
    if text is not None:
        if name is not None:
            raise Invalid.at("prompt", "give either prompt or prompt_name")
        return Prompt(text)
    if name is None:
        name = defaults.default_prompt_name
        return Prompt() if name is None or name not in defaults.prompts else Prompt(defaults.prompts[name], name)
    if name not in defaults.prompts:
        known = ", ".join(sorted(defaults.prompts))
        none = "this model has no named prompts; give its text as prompt"
        raise Invalid.at(name_param, f"expected one of {known}" if known else none)
    return Prompt(defaults.prompts[name], name)


def with_prompt(defaults: Defaults, inputs: Inputs, *, name: str | None, text: str | None) -> tuple[Prompt, Inputs]:
    """The prompt of a request and its inputs behind it; token ids are used as given, without the default prompt.

    Raises:
        Invalid: no such prompt, or one is asked for before token ids.
    """
    prompt = choose_prompt(defaults, name=name, text=text)
    if inputs.texts is not None:
        return prompt, replace(inputs, texts=prompt.before(inputs.texts)) if prompt.text else inputs
    if name is None and not text:
        return Prompt(), inputs
    param = "prompt_name" if text is None else "prompt"
    raise Invalid.at(param, "token ids and pairs are used as given; send texts, or leave it out")
