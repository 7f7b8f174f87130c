from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.lib.ceiling import Product, limit_tokens_per_s, mean_length, measure_product_rate, work_per_token
from model.config import EncoderConfig
from model.encoder import Encoder

CONFIG = EncoderConfig(
    vocab_size=50,
    hidden_size=24,
    num_heads=(4, 0, 3),
    d_k=8,
    d_v=5,
    intermediate_size=48,
    max_positions=32,
    pooling="cls",  # mean pooling may be a product, a negligible one that the limit leaves out
)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, gated=True), replace(CONFIG, output_gate=True)])
@pytest.mark.parametrize("length", [1, 7, 32])
def test_work_of_a_token_is_what_pytorch_counts(length: int, config: EncoderConfig) -> None:
    encoder = Encoder(config).eval().requires_grad_(False).use("eager")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        encoder(torch.ones(2, length, dtype=torch.int64), torch.tensor([length, length]))
    work = work_per_token(config, length)
    assert 2 * length * (work.linear + work.attention) == pytest.approx(counter.get_total_flops())


def test_the_mean_length_is_that_of_a_tokens_own_text() -> None:
    assert mean_length([10, 10]) == 10
    assert mean_length([1, 9]) == pytest.approx(8.2)  # 9 of 10 tokens stand in the long text
    lengths = [3, 5, 20]
    attention = sum(length * work_per_token(CONFIG, length).attention for length in lengths)
    assert sum(lengths) * work_per_token(CONFIG, mean_length(lengths)).attention == pytest.approx(attention)


def test_the_limit_adds_the_times_of_both_kinds_of_product() -> None:
    work = work_per_token(CONFIG, 10)
    seconds = work.linear / 4e9 + work.attention / 1e9
    assert limit_tokens_per_s(work, product_rate=4e9, attention_rate=1e9) == pytest.approx(1 / seconds)


@pytest.mark.parametrize("product", ["fp32", "int8"])
def test_products_run_on_every_shape_of_the_network(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.lib.ceiling.SECONDS", 0.01)
    assert measure_product_rate(CONFIG, product, 16, workers=2, threads=1) > 0
