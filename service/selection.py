"""Which layers, heads and queries a request's attention answer holds, and how large that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import Invalid, TooLarge
from service.schemas import AttentionRequest

FLOAT_BYTES = 4
PARAM = "attention"


@dataclass(frozen=True, slots=True)
class AttentionSelection:
    """A request's choice, resolved against the model.

    Attributes:
        layers: indices from 0, in the order asked for, none twice.
        heads: indices of each of these layers; None where all of them are wanted.
        heads_per_layer: how many heads each of these layers has.
        cls_only: only the first token's row.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    heads_per_layer: tuple[int, ...]
    cls_only: bool

    @property
    def computed_layers(self) -> tuple[int, ...]:
        """The layers, ascending."""
        return tuple(sorted(self.layers))

    @property
    def heads_by_layer(self) -> list[list[int]]:
        """Which heads the answer holds, of each layer."""
        if self.heads is None:
            return [list(range(count)) for count in self.heads_per_layer]
        return [list(self.heads) for _ in self.layers]

    def answer_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes of the weights in an answer for inputs of these lengths, as float32."""
        heads = sum(map(len, self.heads_by_layer))
        pairs = sum(length if self.cls_only else length * length for length in lengths)
        return FLOAT_BYTES * heads * pairs

    def work_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes of the weights that are computed for it: every head and every query of its layers."""
        return FLOAT_BYTES * sum(self.heads_per_layer) * sum(length * length for length in lengths)


def select_attention(request: AttentionRequest, num_heads: Sequence[int]) -> AttentionSelection:
    """Resolves a request against a model with `num_heads[l]` heads in layer l.

    Raises:
        Invalid: a layer or head that the model does not have, or a field that is not available yet.
    """
    _refuse_unavailable(request)
    layers = _layers(request.layers, len(num_heads))
    counts = tuple(num_heads[layer] for layer in layers)
    heads = None if request.heads == "all" else _heads(request.heads, layers, counts)
    return AttentionSelection(layers, heads, counts, request.queries == "cls")


def check_attention_size(
    selection: AttentionSelection, lengths: Sequence[int], *, max_bytes: int, max_work_bytes: int
) -> int:
    """Bytes of the weights in the answer; refuses what is too large, before anything runs.

    Raises:
        TooLarge: naming the size, the limit and what makes it smaller.
    """
    size = selection.answer_bytes(lengths)
    if size > max_bytes:
        raise TooLarge(
            f"attention: the answer would hold {size} bytes of weights, at most {max_bytes} are allowed; ask for fewer "
            'layers or heads, for queries "cls", or send fewer or shorter inputs',
            param=PARAM,
        )
    work = selection.work_bytes(lengths)
    if work > max_work_bytes:
        raise TooLarge(
            f"attention: {work} bytes of weights would be computed, at most {max_work_bytes} are allowed; ask for "
            "fewer layers, or send fewer or shorter inputs",
            param=PARAM,
        )
    return size


def _refuse_unavailable(request: AttentionRequest) -> None:
    defaults = AttentionRequest()
    for field in ("reduce", "level", "top_k", "exclude_special"):
        default = getattr(defaults, field)
        if getattr(request, field) != default:
            wanted = "null" if default is None else str(default).lower()
            raise Invalid(f"attention.{field}: only {wanted} is available yet", param=f"attention.{field}")


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
