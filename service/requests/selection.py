"""Which layers, heads and queries a request's attention answer holds, and how large that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model.analysis.payload import MapShape, maps_bytes
from model.analysis.statistics import STATISTICS
from service.errors import Invalid, TooLarge
from service.requests.attention_schemas import AttentionRequest
from service.requests.axes import Axes

FLOAT_BYTES = 4
ARRAY_FLOATS = 1024  # making an array costs as much as reading so many floats, however small it is
PARAM = "attention"


@dataclass(frozen=True, slots=True)
class AttentionSelection:
    """A request's choice, resolved against the model.

    Attributes:
        layers: indices from 0, in the order asked for, none twice; a rollout's are all.
        heads: indices of each of these layers; None where all of them are wanted.
        heads_per_layer: how many heads each of these layers has.
        options: the request, for what happens to the weights of these heads.
        causal: whether a query of the model sees itself and the tokens before it only.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    heads_per_layer: tuple[int, ...]
    options: AttentionRequest
    causal: bool = False

    @property
    def computed_layers(self) -> tuple[int, ...]:
        """The layers, ascending."""
        return tuple(sorted(self.layers))

    @property
    def heads_by_layer(self) -> list[list[int]]:
        """Which heads the answer is made from, of each layer."""
        if self.heads is None:
            return [list(range(count)) for count in self.heads_per_layer]
        return [list(self.heads) for _ in self.layers]

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
        shapes = (
            MapShape(maps=self.num_maps, queries=axes.queries, keys=axes.keys, top_k=self.options.top_k)
            for axes in inputs
        )
        return maps_bytes(shapes, "float16" if is_half else "float32")

    def work_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes of the weights that are computed for it: every head and every query of its layers."""
        return FLOAT_BYTES * sum(self.heads_per_layer) * sum(length * length for length in lengths)

    def build_floats(self, inputs: Sequence[Axes]) -> int:
        """How many floats building the answer reads, about; a step of a rollout reads as many as it multiplies."""
        floats = self.num_heads * sum(axes.rows * axes.num_tokens for axes in inputs)
        floats += ARRAY_FLOATS * len(self.layers) * len(inputs)
        if self.options.form == "stats":
            return floats * len(STATISTICS)
        if self.options.reduce == "rollout":
            return floats + len(self.layers) * sum(axes.rows * axes.num_tokens**2 for axes in inputs)
        return floats


def select_attention(
    request: AttentionRequest, num_heads: Sequence[int], *, causal: bool = False
) -> AttentionSelection:
    """Resolves a request against a model with `num_heads[l]` heads in layer l, causal or not.

    Raises:
        Invalid: a layer or head that the model does not have, or fields that exclude each other.
    """
    _refuse_contradictions(request)
    layers = _layers(request.layers, len(num_heads))
    if request.reduce == "rollout":
        layers = tuple(range(len(num_heads)))
    counts = tuple(num_heads[layer] for layer in layers)
    heads = None if request.heads == "all" else _heads(request.heads, layers, counts)
    return AttentionSelection(layers, heads, counts, request, causal)


def check_attention_size(
    selection: AttentionSelection, inputs: Sequence[Axes], *, is_half: bool, max_bytes: int, max_work_bytes: int
) -> int:
    """Bytes of the numbers in the answer; refuses what is too large, before anything runs.

    Raises:
        TooLarge: naming the size, the limit and what makes it smaller.
    """
    size = selection.answer_bytes(inputs, is_half=is_half)
    if size > max_bytes:
        raise TooLarge(
            f"attention: the answer would hold {size} bytes of weights, at most {max_bytes} are allowed; ask for fewer "
            'layers or heads, for queries "cls", reduce, top_k or form "stats", or send fewer or shorter inputs',
            param=PARAM,
        )
    work = selection.work_bytes([axes.num_tokens for axes in inputs])
    if work > max_work_bytes:
        cure = "a rollout needs every layer:" if selection.options.reduce == "rollout" else "ask for fewer layers, or"
        raise TooLarge(
            f"attention: {work} bytes of weights would be computed, at most {max_work_bytes} are allowed; {cure} "
            "send fewer or shorter inputs",
            param=PARAM,
        )
    return size


def _refuse_contradictions(request: AttentionRequest) -> None:
    if request.form == "norms" and request.reduce == "rollout":
        raise Invalid(
            'attention.reduce: a rollout follows weights that sum to 1, form "norms" gives lengths of vectors; ask for '
            '"none", "mean" or "max"',
            param="attention.reduce",
        )
    if request.form == "norms" and request.renormalise:
        raise Invalid(
            'attention.renormalise: rows of form "norms" are lengths of vectors, with no sum to come back to; leave it '
            "out",
            param="attention.renormalise",
        )
    if request.form == "stats":
        defaults = AttentionRequest()
        for field in ("queries", "reduce", "level", "top_k", "exclude_special", "renormalise"):
            if getattr(request, field) != getattr(defaults, field):
                raise Invalid(
                    f'attention.{field}: form "stats" describes whole rows of single heads; leave {field} out',
                    param=f"attention.{field}",
                )
    if request.renormalise and not request.exclude_special:
        raise Invalid(
            "attention.renormalise: whole rows sum to 1 as they are; it needs exclude_special",
            param="attention.renormalise",
        )


def _layers(value: Any, count: int) -> tuple[int, ...]:
    if value == "all":
        return tuple(range(count))
    if value == "last":
        return (count - 1,)
    layers = []
    for layer in _indices(value, "layers", '"all", "last" or a list of layer indices'):
        if not -count <= layer < count:
            raise Invalid(
                f"attention.layers: the model has {count} layers, valid indices are {-count} to {count - 1}",
                param="attention.layers",
            )
        layers.append(layer % count)
    return tuple(dict.fromkeys(layers))


def _heads(value: Any, layers: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    heads = tuple(dict.fromkeys(_indices(value, "heads", '"all" or a list of head indices')))
    for layer, count in zip(layers, counts, strict=True):
        if min(heads) < 0 or max(heads) >= count:
            has = f"has {count} heads, valid indices are 0 to {count - 1}" if count else "has no heads"
            raise Invalid(f"attention.heads: layer {layer} {has}", param="attention.heads")
    return heads


def _indices(value: Any, field: str, expected: str) -> list[int]:
    if type(value) is not list or not value or set(map(type, value)) != {int}:
        raise Invalid(f"attention.{field}: expected {expected}", param=f"attention.{field}")
    return value


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What a request's attention answer will be, known before the model runs.

    Attributes:
        selection: layers, heads and options.
        axes: rows and columns of each input's maps.
    """

    selection: AttentionSelection
    axes: Sequence[Axes]
