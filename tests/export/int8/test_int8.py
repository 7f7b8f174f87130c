"""The 8-bit forms of networks, against the float32 network that they come from and in the graph."""

import copy
from dataclasses import field, fields, make_dataclass, replace
from pathlib import Path

import onnx_ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from export.graph import trace
from export.int8.layers import QuantizedLinear, quantize, quantize_rows
from export.int8.quantize import Range, has_folded_form, see_ranges, steps_for
from export.int8.rows import ALPHA, RowQuantizedLinear, quantize_products
from export.precision import TOLERANCES
from export.precision import quantize as quantize_network
from export.quality import measure_quality
from export.verify import verify
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, random_batches

EVEN: dict[str, object] = {"num_heads": (4, 4), "type_vocab_size": 0}
ROTARY: dict[str, object] = {"attention_positions": "rotary", "positions": "none", "d_v": 8}
FOLDED: dict[str, dict[str, object]] = {name: {"activation": name} for name in ("gelu", "relu", "silu")}  # in norms
RELATIVE: dict[str, object] = {**EVEN, "attention_positions": "relative"}
ROWS: dict[str, dict[str, object]] = {
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
FORMS = {**FOLDED, "relative": RELATIVE, **{name: {**EVEN, **change} for name, change in ROWS.items()}}


def quantized_pair(form: str, size: float = 1.0) -> tuple[Encoder, Encoder]:
    encoder = draw_weights(Encoder(EncoderConfig.from_dict({**TINY.to_dict(), **FORMS[form]})))
    for parameter in {id(one): one for one in encoder.parameters()}.values():
        parameter.mul_(size if parameter.ndim > 1 else 1.0)
    quantized, kept = quantize_network(encoder, random_batches(1))
    assert kept == []
    return encoder, quantized


@pytest.mark.parametrize("form", FORMS)
def test_the_quantised_network_is_close_to_the_float_one(form: str) -> None:
    encoder, quantized = quantized_pair(form)
    products = [module for module in quantized.modules() if isinstance(module, RowQuantizedLinear)]
    assert len(products) == ((14 if encoder.config.gated else 12) if form in ROWS else 0)
    assert len({id(product.product) for product in products}) == (6 if form == "shared layers" else len(products))
    for batch in random_batches(2):
        with torch.inference_mode():
            expected, found = (net.use("eager")(batch.input_ids, batch.lengths) for net in (encoder, quantized))
        assert torch.cosine_similarity(found.pooled, expected.pooled).min() > 0.98
        for weights, reference in zip(found.attentions, expected.attentions, strict=True):
            assert weights is not None
            assert reference is not None
            assert weights.shape == reference.shape
            assert not weights.numel() or (weights - reference).abs().mean() < 0.01


@pytest.mark.parametrize("form", ["gelu", "gated, norms before, windows"])
def test_a_texts_vector_does_not_depend_on_its_batch_mates(form: str) -> None:
    _, quantized = quantized_pair(form)
    batch = random_batches(3)[0]
    together = quantized.use("eager")(batch.input_ids, batch.lengths).pooled
    for row, length in enumerate(batch.lengths):
        alone = quantized(batch.input_ids[row : row + 1, :length], batch.lengths[row : row + 1]).pooled
        torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "form",
    [pytest.param(name, marks=[] if "windows" in name else [pytest.mark.slow]) for name in ("gelu", "relative", *ROWS)],
)
def test_the_graph_verifies_and_multiplies_in_integers(tmp_path: Path, form: str) -> None:
    encoder, quantized = quantized_pair(form, 0.25)  # larger weights make much of a value that rounds elsewhere
    model = trace(quantized)
    onnx_ir.save(model, tmp_path / "model.onnx")
    fused, _ = verify(tmp_path / "model.onnx", quantized, tolerance=TOLERANCES["int8"])
    config = encoder.config
    with_heads = sum(heads > 0 for heads in config.num_heads)
    assert fused == {"ai.onnx.Attention": with_heads}
    counts = [node.op_type for node in model.graph]
    assert counts.count("MatMulIntegerToFloat") == 4 * with_heads + (3 if config.gated else 2) * config.num_layers
    assert not {"DynamicQuantizeLinear", "DynamicQuantizeMatMul"} & {*counts}
    if form in ROWS:
        assert counts.count("QuantizeLinear") == 8  # products of one input round it once
    quality = measure_quality(tmp_path / "model.onnx", encoder, random_batches(2))
    assert quality["cosine_worst"] > 0.98
    assert [len(heads) for heads in quality["attention_kl"]] == list(config.num_heads)
    assert all(0 <= value < 0.1 for heads in quality["attention_kl"] for value in heads)


def test_steps_cover_what_calibration_saw_with_room_to_spare() -> None:
    seen = Range(torch.tensor([-1.0, 0.0, -30.0]), torch.tensor([2.0, 0.5, -10.0]))
    steps = steps_for(seen, [torch.randn(5, 3)])
    for bound in (seen.lowest, seen.highest):
        placed = bound / steps.size + steps.offset
        assert (placed >= 0).all()
        assert (placed <= 255).all()
    assert (((seen.highest.clamp(min=0) - seen.lowest.clamp(max=0)) / steps.size) <= 255 / 1.04).all()


def test_a_setting_that_a_later_version_adds_has_the_form_that_fits_every_network() -> None:
    later = make_dataclass("Later", [("query_norm", bool, field(default=False))], bases=(EncoderConfig,), frozen=True)
    settings = {item.name: getattr(TINY, item.name) for item in fields(TINY)}
    assert has_folded_form(later(**settings))
    assert not has_folded_form(later(**settings, query_norm=True))
    assert not has_folded_form(replace(TINY, first_attention_norm=False))


def test_a_product_that_rounds_too_much_stays_float32() -> None:
    config = EncoderConfig.from_dict({**TINY.to_dict(), **EVEN, **ROWS["value residual"]})
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


def test_a_product_of_integers_is_exact() -> None:
    weight = torch.tensor([[127.0, -127.0, 1.0], [0.0, 127.0, -64.0]]) * 0.5
    linear = QuantizedLinear(weight, zero_point=3)
    linear.bias = torch.tensor([10.0, -1.0])
    x = torch.tensor([[3, 4, 5], [255, 0, 3]], dtype=torch.uint8)
    expected = (x.float() - 3) @ weight.T + torch.tensor([10.0, -1.0])
    torch.testing.assert_close(linear(x), expected, atol=1e-3, rtol=0)


def test_each_column_has_its_own_scale_and_zeros_stay_zero() -> None:
    weight = torch.tensor([[1e-6, -1e-6], [1000.0, 500.0], [0.0, 0.0]])
    linear = QuantizedLinear(weight)
    torch.testing.assert_close(linear.dequantized().float(), weight, atol=0, rtol=0.015)
    assert linear(torch.ones(1, 2, dtype=torch.uint8))[0, 2] == 0


@given(st.integers(1, 9), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.9, 1.0]))
def test_no_input_saturates_a_sum_of_two_products_in_16_bits(inputs: int, seed: int, alike: float) -> None:
    weight = torch.randn(20, inputs, generator=torch.Generator().manual_seed(seed))
    weight = (1 - alike) * weight + alike * weight[:, :1].abs()  # neighbours of like size and sign
    rounded = QuantizedLinear(weight).weight.int()  # [K, N]
    assert rounded.abs().max() <= 127
    pairs = torch.nn.functional.pad(rounded, (0, 0, 0, inputs % 2)).reshape(-1, 2, 20)
    largest, smallest = pairs.clamp(min=0).sum(dim=1), pairs.clamp(max=0).sum(dim=1)
    assert 255 * int(largest.max()) < 2**15
    assert 255 * int(smallest.min()) >= -(2**15)
    full = torch.maximum(rounded.abs().amax(dim=0), torch.maximum(largest, -smallest).amax(dim=0))
    assert full.min() >= 126  # the steps are no larger than that takes


def test_rounds_half_to_even_and_saturates() -> None:
    assert quantize(torch.tensor([-3.0, 0.5, 1.5, 254.6, 300.0])).tolist() == [0, 0, 2, 255, 255]


@given(st.lists(st.floats(-0.125, 50, width=32), min_size=4, max_size=4), st.floats(0.05, 3.0))
def test_rows_are_rounded_in_their_own_step(row: list[float], step: float) -> None:
    x = torch.tensor([row, [value / 2 for value in row]])
    found = quantize_rows(x, torch.tensor([step, step / 2]), torch.tensor(20, dtype=torch.uint8))
    assert torch.equal(found[0], found[1])
    inside = (x[0] / step).abs() < 200
    error = (found[0].float() - 20) * step - x[0]
    assert (error[inside].abs() <= step * 0.5001).all()
