"""What a request wants of attention, and what rows and columns of an input's maps stand for: tokens or words.

Known once a text is tokenised, so that the size of an answer is known before the model runs. It knows no weights. Heads
that are switched off, and what is explained through the network, are read and refused here too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from model.analysis.arrays import BoolArray
from model.analysis.statistics import STATISTICS
from model.analysis.words import Span, find_words, word_offsets
from model.artifact import EXPLAIN_GRAPH, HEAD_GATES, Manifest
from service.errors import Invalid, TooLarge
from service.inference.backend import Float32Array
from service.requests.schemas import AttentionRequest, EncodeRequest, HeadMask, refuse_beside
from service.tokenization.inputs import InputNames
from service.tokenization.rows import TokenizedInput, text_offsets
from service.tokenization.tokenizer import Tokenizer

FLOAT_BYTES = INDEX_BYTES = 4
ARRAY_FLOATS = 1024  # making an array costs as much as reading this many floats, however small it is
WORD_FLOATS = 64  # and finding a token's word as much as reading this many
TEXTS_AT_MOST = 2  # of the greatest length: what one request may cost that explains through the network

_OF_MAPS = ("queries", "reduce", "top_k", "exclude_special", "renormalise")
EXCLUDED: Mapping[str, Sequence[str]] = {
    "stats": (*_OF_MAPS, "level"),
    "decomposition": (*_OF_MAPS, "layers", "heads"),
    "norms": ("renormalise",),
}
"""Fields of `attention` that a form has no use for."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Rows and columns of one input's maps.

    Attributes:
        num_tokens: n, rows and columns of the model's own maps.
        rows: how many of their rows are read, from the first on: all n, or the first token's or word's.
        queries: rows of the answer's maps; `keys` are its columns.
        special: [n], which tokens the tokenizer added.
        words: the words that are columns, as spans of the n tokens; None where tokens are.
    """

    num_tokens: int
    rows: int
    queries: int
    keys: int
    special: BoolArray
    words: tuple[Span, ...] | None


@dataclass(frozen=True, slots=True)
class AttentionSelection:
    """A request's choice, resolved against the model.

    Attributes:
        layers: indices from 0, in the order asked for, none twice; a rollout's are all.
        heads: indices of each of these layers; None where all of them are wanted.
        heads_per_layer: how many heads each of these layers has.
        options: what happens to the weights of these heads.
        causal: whether a query of the model sees itself and the tokens before it only.
        reaches: how many tokens away a query of each of these layers sees; None: all of them.
        head_gates: of all the model's heads, of which a rollout follows those that are not 0; None where all are open.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    heads_per_layer: tuple[int, ...]
    options: AttentionRequest
    causal: bool
    reaches: tuple[int | None, ...]
    head_gates: Float32Array | None

    @property
    def heads_by_layer(self) -> list[list[int]]:
        """Which heads the answer is made from, of each layer."""
        if self.heads is None:
            return [list(range(count)) for count in self.heads_per_layer]
        return [list(self.heads) for _ in self.layers]

    @property
    def rollout_gates(self) -> Float32Array | None:
        """The gates of the heads that a rollout is made from, layer after layer."""
        if self.head_gates is None or self.heads is None:
            return self.head_gates
        starts = np.cumsum((0, *self.heads_per_layer[:-1]))
        chosen: Float32Array = self.head_gates[np.add.outer(starts, self.heads).ravel()]
        return chosen

    @property
    def num_heads(self) -> int:
        """Heads the answer is made from, of all layers."""
        return sum(self.heads_per_layer) if self.heads is None else len(self.heads) * len(self.layers)

    @property
    def num_maps(self) -> int:
        """Maps the answer holds, of all layers: a head's own, one a layer that has heads, or one of a rollout."""
        if self.options.reduce == "none":
            return self.num_heads
        return 1 if self.options.reduce == "rollout" else sum(1 for count in self.heads_per_layer if count)

    def answer_bytes(self, inputs: Sequence[Axes], *, is_half: bool = False) -> int:
        """Bytes of the numbers in an answer for inputs with these axes: float32, float16 if `is_half`, and int32."""
        if self.options.form == "stats":
            return FLOAT_BYTES * len(STATISTICS) * self.num_heads * len(inputs)
        weight, most = FLOAT_BYTES // 2 if is_half else FLOAT_BYTES, self.options.top_k
        size = 0
        for axes in inputs:
            row = weight * axes.keys
            if most is not None:  # the weights with their indices, and what is left out
                row = (weight + INDEX_BYTES) * min(most, axes.keys) + weight
            size += self.num_maps * axes.queries * row
        return size

    def work_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes of the weights that are computed for it: every head and every query of its layers."""
        return FLOAT_BYTES * sum(self.heads_per_layer) * sum(length * length for length in lengths)

    def build_floats(self, inputs: Sequence[Axes]) -> int:
        """How many floats building the answer reads, about; a step of a rollout reads as many as it multiplies."""
        floats = self.num_heads * sum(axes.rows * axes.num_tokens for axes in inputs)
        floats += ARRAY_FLOATS * len(self.layers) * len(inputs)
        if self.options.level == "word":
            floats += WORD_FLOATS * sum(axes.num_tokens for axes in inputs)
        if self.options.form == "stats":
            return floats * len(STATISTICS)
        if self.options.reduce == "rollout":
            return floats + len(self.layers) * sum(axes.rows * axes.num_tokens**2 for axes in inputs)
        return floats


def select_attention(
    request: AttentionRequest,
    num_heads: Sequence[int],
    *,
    causal: bool = False,
    reaches: Sequence[int] | None = None,
    head_gates: Float32Array | None = None,
) -> AttentionSelection:
    """Resolves a request against a model with `num_heads[l]` heads in layer l that see `reaches[l]` tokens away.

    `head_gates` are of the request's head mask.

    Raises:
        Invalid: a layer or head that the model does not have, or fields that exclude each other.
    """
    refuse_beside(request, EXCLUDED.get(request.form, ()), f'form "{request.form}"', inside="attention.")
    if request.form == "norms" and request.reduce == "rollout":
        raise Invalid.at("attention.reduce", 'a rollout follows weights that sum to 1, not form "norms"')
    if request.renormalise and not request.exclude_special:
        raise Invalid.at("attention.renormalise", "whole rows sum to 1 as they are; it needs exclude_special")
    if not any(num_heads):
        raise Invalid.at(
            "attention", "the model has no heads (a table of vectors, or all were removed), so it has no attention"
        )
    layers = _layers(request.layers, len(num_heads))  # checked for a rollout too, which goes through all
    if request.reduce == "rollout":
        layers = tuple(range(len(num_heads)))
    counts = tuple(num_heads[layer] for layer in layers)
    heads = None if request.heads == "all" else _heads(request.heads, layers, counts)
    seen = tuple(None if reaches is None else reaches[layer] for layer in layers)
    return AttentionSelection(layers, heads, counts, request, causal, seen, head_gates)


def _layers(wanted: Literal["all", "last"] | list[int], count: int) -> tuple[int, ...]:
    if isinstance(wanted, str):
        return tuple(range(count)) if wanted == "all" else (count - 1,)
    if not -count <= min(wanted) <= max(wanted) < count:
        raise Invalid.at("attention.layers", f"the model has {count} layers, valid indices are {-count} to {count - 1}")
    return tuple(dict.fromkeys(layer % count for layer in wanted))


def _heads(wanted: list[int], layers: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    heads = tuple(dict.fromkeys(wanted))  # once: a request may name one head 70,000 times
    for layer, count in zip(layers, counts, strict=True):
        if max(heads) >= count:
            has = f"has {count} heads, valid indices are 0 to {count - 1}" if count else "has no heads"
            raise Invalid.at("attention.heads", f"layer {layer} {has}")
    return heads


def count_block_floats(
    selection: AttentionSelection, inputs: Sequence[Axes], tokenized: Sequence[TokenizedInput]
) -> int:
    """Numbers in the blocks across pairs that `service.answers.attention.add_blocks` puts beside whole maps."""
    options = selection.options
    if options.top_k is not None or options.queries != "all" or options.form == "stats":
        return 0
    cells = 0
    for axes, item in zip(inputs, tokenized, strict=True):
        segments = item.segments or ()
        listed = segments if axes.words is None else [segments[start] for start, _ in axes.words if segments]
        cells += 2 * listed.count(0) * listed.count(1)
    return selection.num_maps * cells


def plan_axes(options: AttentionRequest, inputs: Sequence[TokenizedInput], tokenizer: Tokenizer) -> list[Axes]:
    """The axes of each input; ValueError for words of an input without a text."""
    if all(item.encoding is not None for item in inputs):
        return [_axes(options, item, _special(item)) for item in inputs]
    (empty,) = tokenizer.encode_now([""])
    added = empty.input_ids[_special(empty)]  # of token ids, those that the tokenizer would add
    return [_axes(options, item, np.isin(item.input_ids, added)) for item in inputs]


def label_axes(options: AttentionRequest, axes: Axes, item: TokenizedInput, tokens: Sequence[str]) -> dict[str, Any]:
    """The columns: `tokens` or `words`, `offsets` in their text, and of a pair `segments`, the text each is of."""
    if axes.words is not None:
        return _label_words(axes.words, item, tokens)
    kept = range(axes.num_tokens) if not options.exclude_special else np.flatnonzero(~axes.special).tolist()
    offsets = item.offsets  # every token's, made again with each call
    labels = {
        "tokens": [tokens[token] for token in kept],
        "offsets": None if offsets is None else [offsets[token] for token in kept],
    }
    return labels if item.segments is None else labels | {"segments": [item.segments[token] for token in kept]}


def _label_words(words: Sequence[Span], item: TokenizedInput, tokens: Sequence[str]) -> dict[str, Any]:
    text = item.text or ""
    places = word_offsets(words, text_offsets(item), text)
    # A word as written in the text; a special token has no place there and keeps its own name.
    names = [text[slice(*at)] or "".join(tokens[slice(*span)]) for span, at in zip(words, places, strict=True)]
    labels: dict[str, Any] = {"words": names, "offsets": places}
    if item.segments is None:
        return labels
    segments = [item.segments[start] for start, _ in words]
    shifts = [item.second_start if segment == 1 else 0 for segment in segments]
    offsets = [(start - shift, end - shift) for (start, end), shift in zip(places, shifts, strict=True)]
    return labels | {"offsets": offsets, "segments": segments}


def _axes(options: AttentionRequest, item: TokenizedInput, special: BoolArray) -> Axes:
    num_tokens = len(item.input_ids)
    dropped = special if options.exclude_special else np.zeros_like(special)
    words = None
    if options.level == "word":
        if item.encoding is None or item.text is None:
            raise ValueError("an input given as token ids has no words")
        words = find_words(item.text, text_offsets(item), item.encoding.word_ids)
    kept = None if words is None else tuple(word for word in words if not dropped[word[0]])
    keys = num_tokens - int(np.count_nonzero(dropped)) if kept is None else len(kept)
    if options.queries == "all":
        return Axes(num_tokens, num_tokens, keys, keys, special, kept)
    return Axes(num_tokens, 1 if words is None else words[0][1], 1, keys, special, kept)


def _special(item: TokenizedInput) -> BoolArray:
    """Which tokens of a text the tokenizer added, [n]."""
    mask = [] if item.encoding is None else item.encoding.special_tokens_mask
    return np.array(mask, dtype=np.bool_)


def read_head_mask(mask: HeadMask, manifest: Manifest) -> Float32Array | None:
    """The gates of every head, [sum of all layers' heads], first layer first; None for no mask.

    Raises:
        Invalid: a layer or head that the model does not have, a head named twice, or an artifact that accepts no gates.
    """
    if not mask:
        return None
    require_input(manifest, HEAD_GATES, param="head_mask")
    num_heads = manifest.config.num_heads
    layers, gates = len(num_heads), np.ones(sum(num_heads), dtype=np.float32)
    named: set[int] = set()
    for index, (given, head, gate) in enumerate(mask):
        name = f"head_mask[{index}]"
        if not -layers <= given < layers:
            raise Invalid.at(name, f"the model has {layers} layers, valid indices are {-layers} to {layers - 1}")
        layer = given % layers
        if not -(count := num_heads[layer]) <= head < count:
            has = f"has {count} heads, valid indices are {-count} to {count - 1}" if count else "has no heads"
            raise Invalid.at(name, f"layer {layer} {has}")
        place = manifest.config.head_span(layer).start + head % count
        if place in named:
            raise Invalid.at(name, f"layer {layer}, head {head % count} is named twice")
        named.add(place)
        gates[place] = gate
    return gates


def require_input(manifest: Manifest, name: str, *, param: str) -> None:
    """Refuses (Invalid) what needs an input that the graph does not have."""
    if name not in manifest.inputs:
        raise Invalid.at(
            param,
            f"the artifact served here was made before this was possible (its graph has no {name}); export the model "
            "again",
        )


def check_decomposition(request: EncodeRequest, attention: AttentionRequest, manifest: Manifest) -> None:
    """Refuses (Invalid) form "decomposition" without a vector or a graph for it, or beside what excludes it."""
    if manifest.task != "embedding":
        decomposes = "; POST /explain or `Engine.explain_score` decomposes a classifier's scores"
        cure = decomposes if manifest.task == "classification" else ""
        raise Invalid.at(
            "attention.form", f"{manifest.model} returns no vector of a text (its task is {manifest.task}){cure}"
        )
    if EXPLAIN_GRAPH not in manifest.files:
        raise Invalid.at("attention.form", missing_graph(manifest))
    form = 'form "decomposition"'
    refuse_beside(attention, EXCLUDED["decomposition"], form, inside="attention.")
    refuse_beside(request, ("head_mask", "spans", "output"), f"attention of the {form}")


def missing_graph(manifest: Manifest) -> str:
    """Why an artifact has no graph that explains, and how to get one."""
    missing = "this artifact has no explain.onnx, the graph that explains through the network"
    if not manifest.config.is_decomposable:
        return f"{missing}: its layers have a part that is not taken apart (a third norm, or signals from embeddings)"
    if manifest.precision == "fp32":
        return f"{missing}: export the model again"
    return (
        f"{missing}: it is in {manifest.precision}, in which parts would not add up to its vectors; export the model "
        "in fp32 too, and ask that artifact"
    )


def check_explained(
    lengths: Sequence[int], max_explained: int, *, names: InputNames, cure: str = "send a shorter text"
) -> None:
    """Refuses (TooLarge) a text longer than is explained, or texts that cost more than two of the greatest length."""
    for index, tokens in enumerate(lengths):
        if tokens > max_explained:
            raise TooLarge.at(
                names.of(index),
                f"{tokens} tokens, at most {max_explained} are explained through the network, which costs "
                f"their square; {cure}",
            )
    most, rows = TEXTS_AT_MOST * max_explained**2, sum(tokens**2 for tokens in lengths)
    if rows > most:
        raise TooLarge(
            f"{names.all}: the squares of the texts' tokens add up to {rows}, at most {most} are explained through the "
            "network in one request; send fewer texts",
            param=names.field,
        )
