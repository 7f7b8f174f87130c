from dataclasses import field, fields, make_dataclass, replace
from pathlib import Path

import onnx_ir
import pytest
import torch

from export.graph import trace
from export.int8.quantize import Range, has_folded_form, quantize_encoder, see_ranges, steps_for
from export.precision import TOLERANCES
from export.quality import measure_quality
from export.verify import verify
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, random_batches


def quantized_pair(**change: object) -> tuple[Encoder, Encoder]:
    encoder = draw_weights(Encoder(EncoderConfig.from_dict({**TINY.to_dict(), **change})))
    return encoder, quantize_encoder(encoder, see_ranges(encoder, random_batches(1)))


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_the_quantised_network_is_close_to_the_float_one(activation: str) -> None:
    encoder, quantized = quantized_pair(activation=activation)
    for batch in random_batches(2):
        ids, lengths = batch.input_ids, batch.lengths
        expected = encoder.use("eager")(ids, lengths)
        found = quantized.use("eager")(ids, lengths)
        assert torch.nn.functional.cosine_similarity(found.pooled, expected.pooled).min() > 0.98
        for weights, reference in zip(found.attentions, expected.attentions, strict=True):
            assert weights is not None
            assert reference is not None
            assert weights.shape == reference.shape
            if weights.numel():
                assert (weights - reference).abs().mean() < 0.01


def test_a_texts_vector_does_not_depend_on_its_batch_mates() -> None:
    _, quantized = quantized_pair()
    batch = random_batches(3)[0]
    ids, lengths = batch.input_ids, batch.lengths
    together = quantized.use("eager")(ids, lengths).pooled
    for row in range(8):
        alone = quantized(ids[row : row + 1, : lengths[row]], lengths[row : row + 1]).pooled
        torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=0)


@pytest.mark.slow
def test_the_graph_verifies_and_multiplies_in_integers(tmp_path: Path) -> None:
    encoder, quantized = quantized_pair()
    model = trace(quantized)
    onnx_ir.save(model, tmp_path / "model.onnx")
    fused, _ = verify(tmp_path / "model.onnx", quantized, tolerance=TOLERANCES["int8"])
    assert fused == {"ai.onnx.Attention": 3}
    products = [node for node in model.graph if node.op_type == "MatMulIntegerToFloat"]
    assert len(products) == 3 * 4 + 4 * 2  # four in each layer with heads, two feed-forward ones in every layer
    assert not [node for node in model.graph if node.op_type in ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")]
    quality = measure_quality(tmp_path / "model.onnx", encoder, random_batches(2))
    assert quality["cosine_worst"] > 0.98
    assert [len(heads) for heads in quality["attention_kl"]] == [4, 3, 0, 1]
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
