"""The reference of large networks, widened a layer at a time, against the whole network in float64: the same bits."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from export.errors import VerificationError
from export.int8.quantize import Range, quantize_encoder
from export.reference import available_bytes, float64_reference, needed_bytes, require_memory, widened_by_layer
from model.config import EncoderConfig
from model.decomposition.decompose import decompose
from model.encoder import Encoder, EncoderOutput
from tests.drawn_configs import LONGEST, VOCABULARY, configs
from tests.networks import TINY, draw_weights


def outputs(encoder: Encoder, implementation: Any) -> EncoderOutput:
    """Of a ragged batch, with gates and every layer's norms."""
    config, generator = encoder.config, torch.Generator().manual_seed(1)
    sequence = min(config.max_positions, LONGEST)
    ids = torch.randint(0, min(VOCABULARY, config.vocab_size), (3, sequence), generator=generator)
    types = torch.randint(0, max(1, config.type_vocab_size), ids.shape, generator=generator)
    gates = torch.rand(3, sum(config.num_heads), generator=generator)
    with torch.inference_mode():
        found: EncoderOutput = encoder.use(implementation)(
            ids,
            torch.tensor([sequence, 1, 5]),
            token_type_ids=types if config.type_vocab_size else None,
            head_gates=gates,
            norm_layers=torch.ones(config.num_layers, dtype=torch.bool),
        )
    return found


def tensors(found: EncoderOutput) -> list[Tensor]:
    shown: Sequence[Tensor | None] = (*found.attentions, *found.value_norms)
    return [found.task_output, found.last_hidden_state, *(tensor for tensor in shown if tensor is not None)]


def require_same_bits(encoder: Encoder) -> None:
    whole, by_layer = copy.deepcopy(encoder).double(), widened_by_layer(encoder)
    for implementation in ("eager", "sdpa"):
        expected, found = (tensors(outputs(reference, implementation)) for reference in (whole, by_layer))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == torch.float64
            assert torch.equal(one, other)
    assert all(parameter.dtype == torch.float32 for parameter in encoder.parameters())


@given(config=configs(), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_any_network_widened_by_layer_gives_the_bits_of_the_whole(config: EncoderConfig, seed: int) -> None:
    torch.manual_seed(seed)
    require_same_bits(draw_weights(Encoder(config)))


@pytest.mark.parametrize(
    "change",
    [
        {"num_heads": [2, 2, 2], "shared_layers": [0, 1, 0]},
        {"layer_signal_size": 4},
        *(
            {"task": "sparse", "task_settings": {"tied": tied}} for tied in (True, False)
        ),  # which reads token embeddings
    ],
    ids=str,
)
def test_every_part_is_widened(change: dict[str, Any]) -> None:
    require_same_bits(draw_weights(Encoder(EncoderConfig.from_dict({**TINY.to_dict(), **change}))))


@given(config=configs())
@settings(max_examples=5, deadline=None)
def test_what_input_tokens_contribute_is_the_same_to_the_bit(config: EncoderConfig) -> None:
    encoder = draw_weights(Encoder(config))
    ids = torch.randint(0, VOCABULARY, (1, 4), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        references = copy.deepcopy(encoder).double(), widened_by_layer(encoder)
        whole, by_layer = (decompose(reference.use("eager"), ids) for reference in references)
    for one, other in zip(by_layer, whole, strict=True):
        assert torch.equal(one, other)


def test_a_large_network_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = draw_weights(Encoder(TINY))
    assert sum(parameter.nbytes for parameter in float64_reference(encoder).parameters()) == 2 * sum(
        parameter.nbytes for parameter in encoder.parameters()
    )
    monkeypatch.setattr("export.reference.LARGE", 1)
    kept = {parameter.data_ptr() for parameter in float64_reference(encoder).parameters()}
    of_layers = {parameter.data_ptr() for parameter in encoder.layers.parameters()}
    assert of_layers | {encoder.embeddings.token.weight.data_ptr()} <= kept


def test_a_quantised_network_is_widened_by_layer() -> None:
    encoder = draw_weights(Encoder(TINY))
    seen = {}
    for name, module in encoder.named_modules():
        if name.startswith("layers.") and name.endswith((".attention", ".attention.output", ".feed_forward")):
            size = module.in_features if isinstance(module, nn.Linear) else TINY.hidden_size
            seen[name] = Range(torch.full((size,), -3.0), torch.full((size,), 3.0))
    require_same_bits(quantize_encoder(encoder, seen))


def test_a_large_network_without_memory_is_refused_with_both_numbers() -> None:
    parameters = 567_754_752  # of bge-reranker-v2-m3 without its last layers, whose export was measured
    assert needed_bytes(4 * parameters, num_heads=24 * 16, longest=8192) == pytest.approx(8.8e9, rel=0.05)
    with torch.device("meta"):
        encoder = Encoder(TINY)
        encoder.embeddings.token = torch.nn.Embedding(1 << 19, 1 << 10)  # 2 GiB, of which nothing is stored
    with pytest.raises(VerificationError, match=r"about 5\.3 GB of memory more, and 5\.0 GB are free: export it on"):
        require_memory(encoder, 5 * 10**9)
    require_memory(encoder, 6 * 10**9)
    require_memory(encoder, None)
    require_memory(Encoder(TINY), 1)  # a small one is not asked about


def test_what_is_free_is_what_linux_says_and_no_more_than_the_container_has(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert available_bytes(meminfo, tmp_path) is None
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 700\nactive_file 200\n")
    assert available_bytes(meminfo, tmp_path) == 2700  # files that were read are dropped where memory is wanted
