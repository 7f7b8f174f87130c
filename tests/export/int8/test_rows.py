"""The 8-bit form of every other network, against the float32 network it comes from and in the graph."""

import copy
from pathlib import Path

import onnx_ir
import pytest
import torch

from export.graph import trace
from export.int8.quantize import see_ranges
from export.int8.rows import ALPHA, RowQuantizedLinear, quantize_products
from export.precision import TOLERANCES
from export.verify import verify
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, random_batches

EVEN = {**TINY.to_dict(), "num_heads": (4, 4), "type_vocab_size": 0}
ROTARY = {"attention_positions": "rotary", "positions": "none", "d_v": 8}
CHANGES: dict[str, dict[str, object]] = {
    "gated, norms after": {"gated": True, "up_bias": False},
    "gated, norms before, windows": {
        **ROTARY,
        **dict.fromkeys(("gated", "pre_norm", "final_norm"), True),
        **dict.fromkeys(("first_attention_norm", "norm_bias", "up_bias", "down_bias", "attention_bias"), False),
        "local_layers": (1,),
        "window": 6,
    },
    "root-mean-square norms, groups, causal": {
        **ROTARY,
        **dict.fromkeys(("gated", "pre_norm", "causal", "query_key_norm", "final_norm"), True),
        "norm": "rms_norm",
        "activation": "silu",
        "num_key_value_heads": (2, 2),
        "attention_bias": False,
    },
    "shared layers": {"shared_layers": (0, 0)},
    "more norms": {"query_key_layer_norm": True, "attention_residual_norm": True, "gated": True, "up_bias": False},
    "value residual": {"value_residual": ((0.0, 1.0), (0.5, 0.5))},
}


def quantized_pair(change: dict[str, object], size: float = 1.0) -> tuple[Encoder, Encoder, list[str]]:
    encoder = draw_weights(Encoder(EncoderConfig.from_dict({**EVEN, **change})))
    for parameter in {id(one): one for one in encoder.parameters()}.values():
        parameter.mul_(size if parameter.ndim > 1 else 1.0)
    quantized, batches = copy.deepcopy(encoder), random_batches(1)
    return encoder, quantized, quantize_products(quantized, see_ranges(encoder, batches), batches)


@pytest.mark.parametrize("name", CHANGES)
def test_the_quantised_network_is_close_to_the_float_one(name: str) -> None:
    encoder, quantized, kept = quantized_pair(CHANGES[name])
    assert kept == []
    products = [module for module in quantized.modules() if isinstance(module, RowQuantizedLinear)]
    assert len(products) == (14 if encoder.config.gated else 12)
    assert len({id(product.product) for product in products}) == (6 if name == "shared layers" else len(products))
    for batch in random_batches(2):
        with torch.inference_mode():
            expected, found = (net.use("eager")(batch.input_ids, batch.lengths) for net in (encoder, quantized))
        assert torch.cosine_similarity(found.pooled, expected.pooled).min() > 0.98
        for weights, reference in zip(found.attentions, expected.attentions, strict=True):
            assert weights is not None
            assert reference is not None
            assert (weights - reference).abs().mean() < 0.01


def test_a_texts_vector_does_not_depend_on_its_batch_mates() -> None:
    _, quantized, _ = quantized_pair(CHANGES["gated, norms before, windows"])
    batch = random_batches(3)[0]
    together = quantized.use("eager")(batch.input_ids, batch.lengths).pooled
    for row, length in enumerate(batch.lengths):
        alone = quantized(batch.input_ids[row : row + 1, :length], batch.lengths[row : row + 1]).pooled
        torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if "windows" in name else [pytest.mark.slow]) for name in CHANGES]
)
def test_the_graph_verifies_and_multiplies_in_integers(tmp_path: Path, name: str) -> None:
    _, quantized, _ = quantized_pair(CHANGES[name], 0.25)  # larger weights make much of a value that rounds elsewhere
    model = trace(quantized)
    onnx_ir.save(model, tmp_path / "model.onnx")
    fused, _ = verify(tmp_path / "model.onnx", quantized, tolerance=TOLERANCES["int8"])
    assert fused == {"ai.onnx.Attention": 2}
    counts = [node.op_type for node in model.graph]
    assert counts.count("MatMulIntegerToFloat") == (14 if quantized.config.gated else 12)
    assert counts.count("QuantizeLinear") == 8  # products of one input round it once


def test_a_product_that_rounds_too_much_stays_float32() -> None:
    config = EncoderConfig.from_dict({**EVEN, "shared_layers": (), "value_residual": ((0.0, 1.0), (0.5, 0.5))})
    encoder = draw_weights(Encoder(config))
    layer = encoder.layers[1]
    with torch.no_grad():  # a column of huge inputs that hardly count: steps are too coarse for the others
        layer.feed_forward.up.weight[5] *= 3e4  # type: ignore[union-attr, operator, index]
        layer.feed_forward.down.weight[:, 5] *= 1e-9  # type: ignore[union-attr, operator, index]
    quantized, batches = copy.deepcopy(encoder), random_batches(1)
    ranges = see_ranges(encoder, batches)
    ranges = {**ranges, "layers.1.feed_forward.down": ranges["layers.0.feed_forward.down"]}  # smoothing misses it
    assert quantize_products(quantized, ranges, batches) == ["layers.1.feed_forward.down"]
    with torch.inference_mode():
        found, expected = (net(batches[0].input_ids, batches[0].lengths).pooled for net in (quantized, encoder))
    assert torch.cosine_similarity(found, expected).min() > 0.98


def test_smoothing_takes_half_of_an_outlier() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 32, generator=generator), torch.randn(16, 32, generator=generator)
    x[:, 3] *= 200.0
    smoothing = (x.abs().amax(dim=0) ** ALPHA) / weight.abs().amax(dim=0) ** (1 - ALPHA)
    exact = x @ weight.T
    plain, smooth = (RowQuantizedLinear(weight, None, one)(x) - exact for one in (None, smoothing))
    assert smooth.square().mean() < plain.square().mean() / 10
    torch.testing.assert_close(RowQuantizedLinear(weight, None, smoothing).weight, weight, atol=0.2, rtol=0)
