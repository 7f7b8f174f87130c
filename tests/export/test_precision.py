"""Precisions: what a graph of each is verified against, and how it is judged on text."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import quantize_embeddings

from export.checkpoint import Checkpoint
from export.errors import QualityError, SourceError, VerificationError
from export.exporter import export_artifact
from export.precision import judge
from export.quality import measure_ranges, require_quality
from export.runtime import Session
from export.tasks.definition import Threshold
from export.tasks.registry import EXPORTS
from export.texts import HELD_OUT_TEXTS, TEXTS, read_texts, task_batches
from model.artifact import GRAPH, HEAD_GATES, Artifact
from model.encoder import Encoder
from tests.family_models import read
from tests.networks import batch_of, draw_weights, vary
from tests.task_artifacts import TaskArtifact, quick_export


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


@pytest.mark.parametrize("figures", [(0.9975, 0.9975), (0.9999, 0.985), (math.nan, math.nan)])
def test_a_figure_out_of_its_bounds_or_no_number_is_refused(figures: tuple[float, float]) -> None:
    thresholds, names = EXPORTS["embedding"].thresholds["int8"], ("cosine_mean", "cosine_worst")
    require_quality({"texts": 100, "cosine_mean": 0.9989, "cosine_worst": 0.991}, thresholds, "Serve fp32")
    message = "over 100 held-out texts: cosine_mean .*; expected cosine_mean at least 0.998, .* at least 0.99. Serve"
    with pytest.raises(QualityError, match=message):
        require_quality({"texts": 100, **dict(zip(names, figures, strict=True))}, thresholds, "Serve fp32")


def test_one_label_is_judged_by_the_order_and_several_by_the_best(generator: np.random.Generator) -> None:
    expected = generator.normal(size=(40, 1))
    found = expected + generator.normal(size=(40, 1)) * 0.3
    measure = EXPORTS["classification"].measure
    largest = np.abs(found - expected).max()
    figures = {"largest_difference": largest, "relative_difference": largest / expected.std()}
    tau = kendalltau(found, expected).statistic
    assert measure(list(found), list(expected)) == pytest.approx({**figures, "kendall_tau": tau})
    rows = np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 0.0, 0.5]])
    other = np.array([[1.0, 2.1, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 0.0, 0.5]])
    several = measure(list(other), list(rows))
    assert (several["same_best_label"], several["largest_difference"]) == (0.75, 3.0)
    assert "kendall_tau" not in several


def test_sparse_weights_are_judged_by_their_largest_words() -> None:
    expected = np.zeros((2, 200))
    expected[:, :64] = 2.0
    expected[:, 64:80] = 1.0
    found = expected.copy()
    found[0, :16], found[0, 64:80] = 1.0, 2.0  # sixteen of the first text's 64 largest words are others
    figures = EXPORTS["sparse"].measure(list(found), list(expected))
    assert figures["jaccard_worst"] == pytest.approx(48 / 80)
    assert figures["jaccard_mean"] == pytest.approx((1 + 48 / 80) / 2)
    largest = float((expected[0] * expected[0]).sum())
    assert figures["dot_product_difference"] == pytest.approx(16 / largest)  # 272 with itself; 256 with the other
    figures = EXPORTS["sparse"].measure([np.zeros(100)], [np.zeros(100)])
    assert figures == {"jaccard_mean": 1.0, "jaccard_worst": 1.0, "dot_product_difference": 0.0}


def test_token_vectors_are_judged_by_their_cosines() -> None:
    expected = [np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])]
    found = [np.array([[2.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 1.0]])]
    figures = EXPORTS["multi_vector"].measure(found, expected)
    assert figures["cosine_mean"] == pytest.approx((1 + 0 + 2**-0.5) / 3)
    assert figures["cosine_worst"] == pytest.approx(0.5)


def test_a_threshold_holds_only_for_a_figure_that_was_measured() -> None:
    assert not Threshold("cosine_mean", least=0.5).holds({"cosine_worst": 1.0})
    either = Threshold("kendall_tau", least=0.5, instead="same_best_label")
    assert either.holds({"same_best_label": 0.6})
    assert not either.holds({"same_best_label": 0.4})
    assert str(either) == "kendall_tau or same_best_label at least 0.5"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("reranker", "kendall_tau"),
        ("classifier", "same_best_label"),
        ("sparse_encoder", "jaccard_mean"),
        ("multi_vector_encoder", "cosine_mean"),
    ],
)
def test_a_lower_precision_of_every_task_is_judged(
    name: str, figure: str, precision: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: TaskArtifact = request.getfixturevalue(name)
    checkpoint = read(made.folder)
    manifest = export_artifact(checkpoint, tmp_path / precision, precision=precision)  # type: ignore[arg-type]
    quality = manifest.parity["quality"]
    assert quality["texts"] == 256
    assert 0.8 < quality[figure] <= 1
    assert len(quality["attention_kl"]) == checkpoint.encoder.config.num_layers


def test_a_network_of_pairs_is_calibrated_and_judged_on_pairs(reranker: TaskArtifact) -> None:
    checkpoint: Checkpoint = read(reranker.folder)
    batches = task_batches(HELD_OUT_TEXTS, checkpoint)
    types = [batch.token_type_ids for batch in batches]
    assert sum(len(batch.lengths) for batch in batches) == 256
    assert all(part is not None and part.any() for part in types)
    assert max(int(batch.lengths.max()) for batch in batches) <= checkpoint.max_sequence_length


def test_a_lower_precision_is_judged_by_attention_and_norms_too(tiny_checkpoint: Checkpoint, tiny_graph: Path) -> None:
    judge(tiny_graph, tiny_checkpoint, "bf16")
    with torch.no_grad():
        tiny_checkpoint.encoder.get_parameter("layers.3.attention.query.weight").mul_(0.25)
    with pytest.raises(QualityError, match="expected .* attention_kl_mean at most 0.01, .* Serve fp16 or fp32"):
        judge(tiny_graph, tiny_checkpoint, "bf16")


def test_the_ranges_are_those_of_sentence_transformers(embedder: TaskArtifact) -> None:
    manifest = Artifact.open(embedder.artifact).manifest
    assert manifest.vector_ranges is not None
    model = SentenceTransformer(str(embedder.folder), device="cpu")
    vectors = model.encode(read_texts(TEXTS), convert_to_numpy=True, normalize_embeddings=True)
    found = np.array([manifest.vector_ranges.minimum, manifest.vector_ranges.maximum], np.float32)
    np.testing.assert_allclose(found, [vectors.min(axis=0), vectors.max(axis=0)], atol=1e-5, rtol=0)
    quantized = np.asarray(quantize_embeddings(vectors, "uint8", ranges=found))
    assert quantized.min() == 0
    assert quantized.max() >= 254


def test_other_text_gives_other_ranges(embedder: TaskArtifact, tmp_path: Path) -> None:
    checkpoint = read(embedder.folder)
    (tmp_path / "texts").write_text("the cats sat on the mats\n" * 16)
    found = measure_ranges(embedder.artifact / GRAPH, checkpoint, tmp_path / "texts")
    assert found is not None
    np.testing.assert_allclose(found.minimum, found.maximum, atol=1e-6)
    (tmp_path / "texts").write_text("too few\n")
    with pytest.raises(SourceError, match="holds 1 texts"):
        measure_ranges(embedder.artifact / GRAPH, checkpoint, tmp_path / "texts")
