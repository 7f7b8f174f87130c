import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import gpu
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, vary
from tests.task_artifacts import TaskArtifact


def test_the_nodes_of_an_artifact_are_counted_by_provider(
    embedder: TaskArtifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:  # what a process of its own does
        gpu._print_operators(Path(command[-2]), command[-1])
        return SimpleNamespace(returncode=0, stdout=capsys.readouterr().out)

    monkeypatch.setattr(subprocess, "run", run)
    (row,) = gpu.inspect_nodes(embedder.artifact, "cpu")
    assert row["provider"] == "CPU"
    assert row["nodes"] > 0


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        vary(gated=True, output_gate=True, num_key_value_heads=(2, 1)),
        vary(d_v=8, local_layers=(1,), window=4, local_head_size=16),
    ],
)
def test_operations_are_those_that_pytorch_counts(config: EncoderConfig) -> None:
    texts, length = 2, 8
    encoder = draw_weights(Encoder(replace(config, pooling="cls"))).use("eager")  # a mean would be a product, too
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder(torch.full((texts, length), 7), torch.full((texts,), length))
    assert gpu.flops_per_token(config, length) * texts * length == counter.get_total_flops()
