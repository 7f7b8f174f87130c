from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import InspectionFailed, describe, flops_per_token, inspect_nodes
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.service.tiny_graph import write_tiny_artifact

PRINTED = """\x1b[36mOperator=Attention Node=layer.0 DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m
\x1b[36mOperator=Attention Node=layer.1 DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m
\x1b[36mOperator=Attention Node=layer.2 DataType=fp16 SdpaKernel=EFFICIENT_ATTENTION\x1b[0m
"""


def test_kernels_belong_to_the_provider_that_runs_attention() -> None:
    operators = {
        "CUDAExecutionProvider": ["Attention"] * 3 + ["Gemm"] * 2,
        "CPUExecutionProvider": ["Shape", "Range", "Shape"],
    }
    cuda, cpu = describe(operators, PRINTED)
    assert cuda == {
        "provider": "CUDA",
        "nodes": 5,
        "operators": "Attention:3 Gemm:2",
        "attention_kernels": "FLASH_ATTENTION:2 EFFICIENT_ATTENTION:1",
    }
    assert cpu == {"provider": "CPU", "nodes": 3, "operators": "Shape:2 Range:1", "attention_kernels": ""}


def test_an_artifact_is_inspected_in_a_process_of_its_own(tmp_path: Path) -> None:
    (row,) = inspect_nodes(write_tiny_artifact(tmp_path).directory, "cpu")
    assert row["provider"] == "CPU"
    assert row["nodes"] > 0


def test_a_provider_that_is_not_there_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(InspectionFailed, match="provider is 'tpu': expected one of cpu, cuda"):
        inspect_nodes(write_tiny_artifact(tmp_path).directory, "tpu")


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
    assert 2 * length * flops_per_token(config, length) == pytest.approx(counter.get_total_flops())
