"""The 8-bit form that fits every network: products read rows of uint8, each row in a step of its own.

A network keeps its shape. Only its linear maps are replaced, so gated feed-forwards, norms before or after, RMSNorm,
grouped queries, rotary positions and shared layers need nothing of their own. Before, outliers of single channels move
from a product's input into its weights (SmoothQuant, Xiao et al. 2023, equation 4): exactly, into the norm, the value
projection or the gated product that makes the input. Where none of them can take it, the input is multiplied.

A product whose rounding costs too much stays float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from export.int8.layers import HIGHEST, QuantizedLinear, quantize_rows
from export.texts import TextBatch
from model.encoder import Encoder, EncoderLayer
from model.value_stream import is_linear

if TYPE_CHECKING:
    from export.int8.quantize import Range

ZERO_POINT = 128
ALPHA = 0.5  # share of the difficulty that moves into weights, SmoothQuant's own
LARGEST_ERROR = 0.05  # of a product's outputs, root mean square over their own; int8 of smooth inputs has 0.01
JUDGED_BATCHES = 4  # the shortest texts; longer ones keep the same products (docs/laboratory.md)
PRODUCTS = ("query", "key", "value", "output"), ("gate", "up", "down"), ("gate", "output")


class RowQuantizedLinear(nn.Module):
    """`nn.Linear` in 8 bits: inputs, times `inverse` [K] if given, in one step a row, weights in one a column."""

    inverse: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, smoothing: Tensor | None) -> None:
        """Quantises a weight [N, K], with a bias [N]; `smoothing` [K] moves from the input into the weight here."""
        super().__init__()
        self.product = QuantizedLinear(
            weight.double() * (1 if smoothing is None else smoothing.double()), zero_point=ZERO_POINT
        )
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.register_buffer("inverse", None if smoothing is None else (1 / smoothing).float())

    def forward(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        x = x if self.inverse is None else x * self.inverse
        step = (x.abs().amax(dim=1) / (HIGHEST - ZERO_POINT)).clamp(min=1e-12)  # [T]; a row of zeros has one, too
        product: Tensor = self.product(quantize_rows(x, step, self.product.zero_point)) * step[:, None]
        return product if self.bias is None else product + self.bias

    def again(self) -> "RowQuantizedLinear":
        """Another module of the same weight: layers that share one have biases of their own once these are folded."""
        other = RowQuantizedLinear.__new__(RowQuantizedLinear)
        nn.Module.__init__(other)
        other.product, other.bias = self.product, self.bias
        other.register_buffer("inverse", self.inverse)
        return other

    @property
    def weight(self) -> Tensor:
        """The weight [N, K] that the product really applies."""
        weight = self.product.dequantized()
        weight = weight if self.inverse is None else weight * self.inverse.double()
        return weight.to(self.product.weight_scale.dtype)


def quantize_products(quantized: Encoder, ranges: Mapping[str, "Range"], batches: Sequence[TextBatch]) -> list[str]:
    """Replaces a float32 encoder's products, in place, and returns the names of those that stay float32.

    Ranges are of each product's input, by the names of `see_ranges`; batches of what products are judged on.
    """
    inputs: dict[str, Tensor] = {}
    for index, layer in enumerate(quantized.layers):
        if isinstance(layer, EncoderLayer) and not quantized.config.shared_layers:  # those have several inputs each
            inputs |= _smooth(layer, f"layers.{index}", ranges, is_linear=is_linear(quantized.config))
    made: dict[int, RowQuantizedLinear] = {}  # by the weight, which layers may share
    for _, _, linear, name in _products(quantized):
        if id(linear.weight) not in made:
            made[id(linear.weight)] = RowQuantizedLinear(linear.weight, linear.bias, inputs.get(name))
    sensitive = _sensitive(quantized, made, batches)
    kept = []
    for parent, attribute, linear, name in list(_products(quantized)):
        if id(linear.weight) in sensitive:
            kept.append(name)
        else:
            setattr(parent, attribute, made[id(linear.weight)].again())
    return kept


def _products(encoder: Encoder) -> Iterator[tuple[nn.Module, str, nn.Linear, str]]:
    """Module, attribute, linear map and name of every product."""
    for index, layer in enumerate(encoder.layers):
        for part, names in zip(("attention", "feed_forward", "signal"), PRODUCTS, strict=True):
            parent = getattr(layer, part, None)
            for attribute in names:
                if parent is not None and isinstance(linear := getattr(parent, attribute, None), nn.Linear):
                    yield parent, attribute, linear, f"layers.{index}.{part}.{attribute}"


def _smooth(layer: EncoderLayer, name: str, ranges: Mapping[str, "Range"], *, is_linear: bool) -> dict[str, Tensor]:
    """Moves outliers out of the products' inputs; returns the factors that the products themselves have to apply."""
    attention, feed_forward = layer.attention, layer.feed_forward
    left: dict[str, Tensor] = {}

    def move(place: str, part: nn.Module, readers: Sequence[str], maker: nn.Module | None) -> None:
        linears = {one: linear for one in readers if isinstance(linear := getattr(part, one, None), nn.Linear)}
        if not linears:
            return
        factor = _factor(ranges[f"{name}.{place}"], list(linears.values()))
        if maker is None:
            left.update({f"{name}.{place.partition('.')[0]}.{one}": factor for one in linears})
            return
        _divide(maker, factor)
        for linear in linears.values():
            linear.weight = nn.Parameter(linear.weight * factor, requires_grad=False)

    def norm(module: nn.Module) -> nn.Module | None:  # one that only products read
        return module if layer.pre_norm and not isinstance(module, nn.Identity) else None

    own_values = attention.num_heads and len(attention.groups) == attention.num_heads  # each read by one head
    move("attention", attention, PRODUCTS[0][:3], norm(layer.attention_norm) if is_linear else None)
    move("attention.output", attention, ["output"], attention.value if is_linear and own_values else None)
    move("feed_forward", feed_forward, PRODUCTS[1][:2], norm(layer.feed_forward_norm))
    move("feed_forward.down", feed_forward, ["down"], None if feed_forward.gate is None else feed_forward.up)
    return left


def _factor(seen: "Range", readers: Sequence[nn.Linear]) -> Tensor:
    """By what each channel [K] of an input is divided, and its weights are multiplied."""
    largest = torch.maximum(seen.lowest.abs(), seen.highest.abs()).clamp(min=1e-5)
    reading = torch.cat([linear.weight for linear in readers]).abs().amax(dim=0).clamp(min=1e-5)
    factor = largest**ALPHA / reading ** (1 - ALPHA)
    return factor / factor.log().mean().exp()


def _divide(maker: nn.Module, factor: Tensor) -> None:
    """Divides what a norm or a linear map gives, channel by channel."""
    weight = maker.get_parameter("weight")
    shape = factor[:, None] if weight.ndim > 1 else factor
    setattr(maker, "weight", nn.Parameter(weight / shape, requires_grad=False))  # noqa: B010 - torch types attributes as tensors
    if getattr(maker, "bias", None) is not None:
        setattr(maker, "bias", nn.Parameter(maker.get_parameter("bias") / factor, requires_grad=False))  # noqa: B010


def _sensitive(encoder: Encoder, made: Mapping[int, RowQuantizedLinear], batches: Sequence[TextBatch]) -> set[int]:
    """The weights whose products come out too far from float32's."""
    squares: dict[int, tuple[float, float]] = {}

    def compare(linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        key = id(linear.weight)
        error = (made[key](inputs[0]) - output).double().square().sum().item()
        before = squares.get(key, (0.0, 0.0))
        squares[key] = before[0] + error, before[1] + output.double().square().sum().item()

    with ExitStack() as hooks, torch.inference_mode():
        for _, _, linear, _ in _products(encoder):
            hooks.callback(linear.register_forward_hook(compare).remove)
        for batch in batches[:JUDGED_BATCHES]:
            encoder.use("sdpa")(batch.input_ids, batch.lengths, token_type_ids=batch.token_type_ids)
    return {key for key, (error, whole) in squares.items() if error > LARGEST_ERROR**2 * whole}
