from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from export.checkpoint import Checkpoint
from export.errors import QualityError, VerificationError
from export.exporter import export_artifact
from export.runtime import Session
from model.artifact import GRAPH, HEAD_GATES
from model.encoder import Encoder
from tests.networks import batch_of, draw_weights, vary
from tests.task_artifacts import quick_export


def test_half_precision_verifies_and_keeps_float32_outputs(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint = replace(tiny_checkpoint, encoder=draw_weights(Encoder(vary(num_heads=(2,)))))
    with quick_export():
        manifest = export_artifact(checkpoint, tmp_path / "half", precision="fp16")
    assert manifest.precision == "fp16"
    assert 1e-5 < manifest.parity["pooled"] < 1e-2
    assert manifest.fused_attention == {"ai.onnx.Attention": 1}
    assert 0.9995 <= manifest.parity["quality"]["cosine_worst"] <= manifest.parity["quality"]["cosine_mean"]
    inputs = batch_of(checkpoint.encoder.config, [np.arange(8)], layers=(0,))
    found = Session(tmp_path / "half" / GRAPH).run(inputs)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-7, 1e-9])  # next to float16's smallest number, and below it
def test_half_precision_of_embeddings_that_vanish_in_it_leaves_no_artifact(
    tiny_checkpoint: Checkpoint, tmp_path: Path, size: float
) -> None:
    last = tiny_checkpoint.encoder.get_submodule("layers.3.feed_forward_norm")
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.mul_(size)
    with pytest.raises(QualityError, match="held-out texts: .* cosine_mean at least 0.9995, .* Serve fp32"):
        export_artifact(tiny_checkpoint, tmp_path / "half", precision="fp16")
    assert not list(tmp_path.iterdir())


def test_bfloat16_without_kernels_for_it_leaves_no_artifact(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in Session.available_providers():
        pytest.skip("this machine has kernels for bfloat16")
    with pytest.raises(VerificationError, match="bf16 cannot be verified here.*or export fp16"):
        export_artifact(tiny_checkpoint, tmp_path / "bf16", precision="bf16", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_default_model_passes_the_whole_grid(default_checkpoint: Checkpoint, tmp_path: Path) -> None:
    manifest = export_artifact(default_checkpoint, tmp_path / "fp32")
    assert manifest.parity["longest"] == manifest.config.max_positions
    assert manifest.parity["attentions"] < 1e-5


@pytest.mark.slow
def test_int8_of_the_default_model_passes_its_gate(
    default_checkpoint: Checkpoint, default_artifact: Path, tmp_path: Path
) -> None:
    manifest = export_artifact(default_checkpoint, tmp_path / "int8", precision="int8")
    quality = manifest.parity["quality"]
    assert manifest.precision == "int8"
    assert quality["cosine_mean"] >= 0.998
    assert quality["cosine_worst"] >= 0.99
    assert np.array(quality["attention_kl"]).shape == (6, 12)
    assert manifest.files[GRAPH].size < 65_000_000
    session = Session(tmp_path / "int8" / GRAPH, threads=1)
    generator = np.random.default_rng(0)
    rows = [generator.integers(1000, 30000, length) for length in (1, 2, 7, 33, 64, 128)]
    together = session.run(batch_of(manifest.config, rows))["pooled"]
    for row, pooled in zip(rows, together, strict=True):
        assert np.array_equal(session.run(batch_of(manifest.config, [row]))["pooled"][0], pooled)
    _check_each_head_removed(session, Session(default_artifact / GRAPH, threads=1), default_checkpoint)


def _check_each_head_removed(int8: Session, fp32: Session, checkpoint: Checkpoint) -> None:
    """Ranges are calibrated with every head there; without one the embedding must be as close as the gate asks."""
    ids = np.array(checkpoint.tokenizer.encode("The trophy does not fit into the suitcase.").ids)
    inputs = {**batch_of(checkpoint.encoder.config, [ids] * 72), HEAD_GATES: 1 - np.eye(72, dtype=np.float32)}
    found, expected = int8.run(inputs)["pooled"], fp32.run(inputs)["pooled"]
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.mean() >= 0.998
    assert cosines.min() >= 0.99
