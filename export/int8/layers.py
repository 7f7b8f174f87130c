"""The quantised layers of a post-norm encoder: the same network, its products in 8-bit integers.

Every module computes in PyTorch what it emits as ONNX, so that the graph is verified against these modules and these
against the float32 encoder. What keeps the passes around the products few:

- Inputs of a product have one range a channel, fixed at calibration. Its scale and offset stand where they cost
  nothing: in the LayerNorm before (its weight and bias), or in the value projection before (softmax rows sum to 1, so a
  shift of V shifts the context by as much). Quantising is then one rounding, `QuantizeLinear` with scale 1.
- Offsets, zero points and biases meet in one bias a product, added inside `MatMulIntegerToFloat`.
- Only the input of the second feed-forward product has a scale a token, since its outliers move from token to token;
  activations are bounded below, so a low zero point gives nearly all 256 steps to what is above 0.

The scaling follows SmoothQuant (Xiao et al. 2023, equation 4), with offsets a channel as well.
"""

import torch
from torch import Tensor, nn

from model.attention import Implementation, attend, no_heads
from model.config import Activation
from model.layers import ACTIVATIONS
from model.packing import Packing
from model.positions import PositionTerms
from model.value_stream import HeadOutputs, LayerRequest, output_rows

LOWEST, HIGHEST = 0, 255  # unsigned activations: the integer kernels of x86 multiply uint8 by int8
MOST = 127
MOST_IN_PAIR = 127.5  # before rounding, which adds a half to each of two and so leaves at most 128: 255 * 128 < 2**15


def quantize(x: Tensor) -> Tensor:
    """Rounds values that are already in steps: float32 -> uint8."""
    if torch.onnx.is_in_onnx_export():
        inputs = [x, torch.ones(()), torch.zeros((), dtype=torch.uint8)]
        steps: Tensor = torch.onnx.ops.symbolic(
            "QuantizeLinear", inputs, dtype=torch.uint8, shape=tuple(x.shape), version=21
        )
        return steps
    return x.round().clamp(LOWEST, HIGHEST).to(torch.uint8)


def quantize_rows(x: Tensor, step: Tensor, zero_point: Tensor) -> Tensor:
    """Rounds each row [N, K] in its own step [N] around a zero point: float32 -> uint8."""
    if torch.onnx.is_in_onnx_export():
        inputs = [x, step, zero_point.expand(step.shape)]
        steps: Tensor = torch.onnx.ops.symbolic(
            "QuantizeLinear", inputs, {"axis": 0}, dtype=torch.uint8, shape=tuple(x.shape), version=21
        )
        return steps
    return ((x / step[:, None]).round() + zero_point).clamp(LOWEST, HIGHEST).to(torch.uint8)


def column_scale(weight: Tensor) -> Tensor:
    """The least scale [N] of a weight [N, K] with which every processor computes the same with its fastest kernel.

    x86 without VNNI multiplies uint8 by int8 and adds the products of two neighbours along K in 16 bits, which
    saturates (`vpmaddubsw`). Single values and sums of two of one sign stay so small that no input gets there.
    """
    signed = torch.stack([weight.relu(), (-weight).relu()])  # [2, N, K]
    pairs = nn.functional.pad(signed, (0, weight.shape[1] % 2)).reshape(2, len(weight), -1, 2)
    single, pair = signed.amax(dim=(0, 2)), pairs.sum(dim=3).amax(dim=(0, 2))  # [N]
    return torch.maximum(single / MOST, pair / MOST_IN_PAIR).clamp(min=torch.finfo(weight.dtype).tiny)


class QuantizedLinear(nn.Module):
    """`y = (x8 - zero_point) W8 * weight_scale + bias` for x8 uint8 [..., K], W8 int8 [K, N]; one scale a column.

    The bias [N] is None until it is set: what it holds depends on the rounded weight.
    Scales are such that every processor computes the same (`column_scale`).
    """

    weight: Tensor
    weight_scale: Tensor
    zero_point: Tensor
    one: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, *, zero_point: int = 0) -> None:
        """Quantises a weight [N, K] in units of one input step; an input of `zero_point` is 0."""
        super().__init__()
        scale = column_scale(weight)
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8).T.contiguous())
        self.register_buffer("weight_scale", scale.float())
        self.register_buffer("bias", None)
        self.register_buffer("one", torch.ones(()))
        self.register_buffer("zero_point", torch.tensor(zero_point, dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        """uint8 [..., K] -> float32 [..., N]."""
        if torch.onnx.is_in_onnx_export():
            inputs = [x, self.weight, self.one, self.weight_scale, self.zero_point, None, self.bias]
            shape = (*x.shape[:-1], self.weight.shape[1])
            product: Tensor = torch.onnx.ops.symbolic(
                "com.microsoft::MatMulIntegerToFloat", inputs, dtype=torch.float32, shape=shape, version=1
            )
            return product
        integers = (x.double() - self.zero_point) @ self.weight.double()  # exact: sums stay far below 2**53
        scaled = integers.to(self.weight_scale.dtype) * self.weight_scale
        return scaled if self.bias is None else scaled + self.bias

    def dequantized(self) -> Tensor:
        """The weight [N, K] that the product really applies, float64."""
        return self.weight.T.double() * self.weight_scale.double()[:, None]


class QuantizedAttention(nn.Module):
    """Attention whose four products take 8-bit inputs; scores, softmax and context stay float32."""

    null_context: Tensor
    value_factor: Tensor | None

    def __init__(
        self,
        query: nn.Module,
        key: nn.Module,
        value: nn.Module,
        output: QuantizedLinear,
        *,
        null_context: Tensor,
        num_heads: int,
        scale: float,
    ) -> None:
        """Takes the products, to [T, H*K] and [T, H*V], values in steps of the output product.

        `null_context` [H*V] is the context in steps that stands for 0, `scale` a factor on the scores.
        """
        super().__init__()
        self.register_buffer("null_context", null_context.float())
        self.register_buffer("value_factor", None)
        self.query, self.key, self.value, self.output = query, key, value, output
        self.num_heads = num_heads
        self.scale = scale
        self.implementation: Implementation = "eager"

    def forward(
        self, hidden: Tensor, tokens: Packing, request: LayerRequest, terms: PositionTerms
    ) -> tuple[Tensor, HeadOutputs]:
        """As `MultiHeadAttention`, for a hidden state in steps."""
        steps = quantize(hidden)
        projected = self.query(steps), self.key(steps), self.value(steps)
        context, heads = attend(self, projected, tokens, request, terms)
        return self.output(quantize(context)), heads

    @property
    def attended_heads(self) -> int:
        """As `MultiHeadAttention.attended_heads`: every head has its own keys and values here."""
        return self.num_heads

    def output_factor(self) -> Tensor:
        """As `MultiHeadAttention.output_factor`, for values in steps."""
        if self.value_factor is not None:
            return self.value_factor
        return output_rows(self.output.dequantized(), self.num_heads).to(self.null_context.dtype)


class ConstantAttention(nn.Module):
    """A layer without heads: adds a constant."""

    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias.float())

    def forward(
        self, hidden: Tensor, tokens: Packing, request: LayerRequest, terms: PositionTerms
    ) -> tuple[Tensor, HeadOutputs]:
        """[T, D], and no heads."""
        del tokens, terms
        return self.bias.expand_as(hidden), no_heads(hidden, request)


class QuantizedFeedForward(nn.Module):
    """Feed-forward whose second product has one scale a token."""

    def __init__(
        self, up: nn.Module, down: QuantizedLinear, bias: Tensor, activation: Activation, lowest: float
    ) -> None:
        """Takes the products, the second without the bias [D] that is added behind it.

        `lowest` is the activation's lowest value, as a positive number.
        """
        super().__init__()
        self.up, self.down = up, down
        self.register_buffer("bias", bias.float())
        self.activation = ACTIVATIONS[activation]
        zero_point = int(down.zero_point)
        self.above = HIGHEST - zero_point
        self.floor = max(lowest / zero_point, 1e-6)  # above 0: after ReLU a token may be all zeros

    bias: Tensor

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] in steps -> [T, D]."""
        activated = self.activation(self.up(quantize(hidden)))  # [T, intermediate]
        step = (activated.amax(dim=1) / self.above).clamp(min=self.floor)  # [T]
        product = self.down(quantize_rows(activated, step, self.down.zero_point)) * step[:, None]
        shifted: Tensor = product + self.bias
        return shifted


class QuantizedLayer(nn.Module):
    """One post-norm layer whose hidden state is in steps of the product that reads it.

    `hidden * scale` is the true hidden state up to an offset a channel; that offset is in the bias of what is
    added to it.
    """

    attention_scale: Tensor
    feed_forward_scale: Tensor

    def __init__(
        self,
        *,
        attention: nn.Module,
        attention_scale: Tensor,
        attention_norm: nn.LayerNorm,
        feed_forward: nn.Module,
        feed_forward_scale: Tensor,
        feed_forward_norm: nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.attention, self.attention_norm = attention, attention_norm
        self.feed_forward, self.feed_forward_norm = feed_forward, feed_forward_norm
        self.register_buffer("attention_scale", attention_scale.float())
        self.register_buffer("feed_forward_scale", feed_forward_scale.float())

    def forward(
        self, hidden: Tensor, tokens: Packing, request: LayerRequest, terms: PositionTerms
    ) -> tuple[Tensor, HeadOutputs]:
        """[T, D] in steps -> [T, D] in steps of the next layer, and what this layer's heads show."""
        attended, heads = self.attention(hidden, tokens, request, terms)
        hidden = self.attention_norm(hidden * self.attention_scale + attended)
        hidden = self.feed_forward_norm(hidden * self.feed_forward_scale + self.feed_forward(hidden))
        return hidden, heads
