"""OpenVINO's answers beside ONNX Runtime's, of small networks of every task that it takes."""

import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from model.artifact import GRAPH, LENGTHS, PLAIN_GRAPH, Artifact, ArtifactError, write_manifest
from model.processor import openvino_settings
from polyhead import Engine
from polyhead.tune import held_memory
from service.inference import openvino_backend
from service.inference.backend import Batch, Cancellation, ProviderUnavailable
from service.inference.onnx_backend import OnnxBackend
from service.inference.openvino_backend import OpenVinoBackend, load_backend
from tests.service.fake_backend import PATIENCE
from tests.task_artifacts import TaskArtifact, for_openvino

openvino = pytest.importorskip("openvino")

TOLERANCE = 1e-5
TASKS = (
    *("embedder", "reranker", "token_classifier", "expanding_encoder", "yes_no_reranker", "sparse_encoder"),
    # Outputs like a reranker's, and an expanding encoder's without what is expanded.
    *(pytest.param(task, marks=pytest.mark.exhaustive) for task in ("classifier", "multi_vector_encoder")),
)


@pytest.fixture(scope="module")
def artifact(embedder: TaskArtifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return for_openvino(embedder.artifact, tmp_path_factory.mktemp("openvino") / "embedder")


@pytest.fixture(scope="module")
def backend(artifact: Artifact) -> OpenVinoBackend:
    return OpenVinoBackend(artifact, workers=2)


def batch(artifact: Artifact, lengths: list[int], seed: int = 0, **wanted: Any) -> Batch:
    config = artifact.manifest.config
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, (len(lengths), max(lengths)))
    return Batch(ids, np.array(lengths), **wanted)


@pytest.mark.parametrize("task", TASKS)
def test_plain_answers_are_those_of_onnx_runtime(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    artifact = for_openvino(request.getfixturevalue(task).artifact, tmp_path / task)
    backend, reference = OpenVinoBackend(artifact), OnnxBackend(artifact)
    longest = artifact.manifest.max_sequence_length
    for lengths in ([1], [5], [7, 3, 1], [16] * 4, [longest, 2, longest // 2], [1, 1], [4, 0, 2]):
        given = batch(artifact, lengths, seed=len(lengths))
        found, expected = backend.run(given), reference.run(given)
        for own, other in zip(found.output, expected.output, strict=True):
            np.testing.assert_allclose(own, other, atol=3 * TOLERANCE, rtol=TOLERANCE)
    assert backend._full is None, "nothing asked for the other graph"
    steps = backend._compiled.get_runtime_model().get_ordered_ops()
    made_from = " ".join(step.get_rt_info()["originalLayersNames"].astype(str) for step in steps)
    assert "Softmax" in made_from
    assert "IsNaN" not in made_from, "it would keep OpenVINO from fusing attention"


def test_short_texts_alone_share_few_shapes(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, counts = OpenVinoBackend(artifact), set()

    def counted(given: Batch) -> Any:
        counts.add(int(given.lengths.sum()))
        return given.lengths

    monkeypatch.setattr(
        backend, "_feeds", [(name, counted if name == LENGTHS else feed) for name, feed in backend._feeds]
    )
    longest = artifact.manifest.max_sequence_length
    for length in range(1, longest + 1):
        assert len(backend.run(batch(artifact, [length])).output) == 1
    assert len(counts) <= longest // 16 + 16, "kernels are compiled and kept for each"


def test_what_is_asked_for_besides_is_onnx_runtimes_to_the_bit(artifact: Artifact) -> None:
    backend, reference = OpenVinoBackend(artifact), OnnxBackend(artifact)
    gates = np.zeros((2, sum(artifact.manifest.config.num_heads)), np.float32)
    for wanted in (
        {"attention_layers": (0, 1)},
        {"attention_layers": (1,), "wants_norms": True},
        {"wants_tokens": True},
        {"head_gates": gates},
    ):
        given = batch(artifact, [9, 4], **wanted)
        found, expected = backend.run(given), reference.run(given)
        np.testing.assert_array_equal(found.output, expected.output)
        assert found.attentions.keys() == expected.attentions.keys()
        for layer, weights in expected.attentions.items():
            np.testing.assert_array_equal(found.attentions[layer], weights)
        for layer, norms in expected.value_norms.items():
            np.testing.assert_array_equal(found.value_norms[layer], norms)
        assert (found.last_hidden_state is None) == (expected.last_hidden_state is None)


def test_plain_answers_go_on_while_the_other_graph_loads(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, is_loading, may_load = OpenVinoBackend(artifact), threading.Event(), threading.Event()

    def load(*_: Any, **__: Any) -> OnnxBackend:
        is_loading.set()
        may_load.wait(PATIENCE)
        return OnnxBackend(artifact)

    monkeypatch.setattr(openvino_backend, "_onnx_backend", load)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(backend.run, batch(artifact, [3], wants_tokens=True))
        assert is_loading.wait(PATIENCE)
        plain = threads.submit(backend.run, batch(artifact, [3]))
        try:
            assert len(plain.result(PATIENCE / 2).output) == 1
        finally:
            may_load.set()
        assert waiting.result(PATIENCE).last_hidden_state is not None


def test_the_other_graph_is_the_one_that_was_verified(artifact: Artifact, tmp_path: Path) -> None:
    copy = Artifact(shutil.copytree(artifact.directory, tmp_path / "copy"), artifact.manifest)
    backend, graph = OpenVinoBackend(copy), copy.path(GRAPH)
    content = bytearray(graph.read_bytes())
    content[-len(content) // 4] ^= 1
    graph.write_bytes(content)
    with pytest.raises(ArtifactError, match="the manifest says"):
        backend.run(batch(artifact, [3], wants_tokens=True))


def test_the_graph_for_it_keeps_its_weights_in_the_other_ones_file(artifact: Artifact) -> None:
    assert artifact.path(PLAIN_GRAPH).stat().st_size < artifact.path(GRAPH).stat().st_size / 5


def test_a_cancelled_run_fails_and_ends_no_other(backend: OpenVinoBackend, artifact: Artifact) -> None:
    cancelled, late = Cancellation(), Cancellation()
    cancelled.cancel()
    with pytest.raises(RuntimeError, match=r"(?i)cancel"):
        backend.run(batch(artifact, [3], cancellation=cancelled))
    backend.run(batch(artifact, [3], cancellation=late))
    backend._idle[-1].cancel = Mock(side_effect=AssertionError("it ends the next one's run"))
    late.cancel()


def test_the_service_loads_it_and_says_what_computes(artifact: Artifact, embedder: TaskArtifact) -> None:
    with Engine.load(artifact.directory) as engine, Engine.load(embedder.artifact) as other:
        texts = ["the cat sat on the mat", "a dog ran"]
        np.testing.assert_allclose(engine.encode(texts).embeddings, other.encode(texts).embeddings, atol=TOLERANCE)
        own, usual = engine._runner.runtime, other._runner.runtime
        assert (own.engine, own.computes_in, own.batch_invariant) == ("openvino", "f32", False)
        assert (usual.engine, usual.computes_in, usual.batch_invariant) == ("onnxruntime", "", True)
        assert engine.encode(texts, attention={"layers": "all"}).attention is not None


def test_a_processor_without_bf16_says_so_and_computes_in_float32(
    embedder: TaskArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = OpenVinoBackend(for_openvino(embedder.artifact, tmp_path / "bf16", precision="bf16"))
    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert backend.computes_in == ("bf16" if has_bf16 else "f32")
    assert ("has no bf16 (AMX or AVX512-BF16)" in caplog.text) == (not has_bf16)


@pytest.mark.parametrize(
    ("precision", "capabilities", "features", "hint", "kernels"),
    [
        ("bf16", ["FP32", "BF16"], "avx512_bf16", "bf16", 32),
        ("bf16", ["FP32", "BF16"], "avx512_bf16 amx_bf16", "bf16", 1024),
        ("bf16", ["FP32"], "avx2", "f32", 32),
        ("fp32", ["FP32", "BF16"], "avx512_bf16 amx_bf16", "f32", 32),
    ],
)
def test_the_precision_is_never_openvinos_own_choice(
    precision: str, capabilities: list[str], features: str, hint: str, kernels: int, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags\t\t: {features}\n")
    assert openvino_settings(precision, capabilities, streams=2, threads=4, cpuinfo=cpuinfo) == {
        "INFERENCE_PRECISION_HINT": hint,
        "NUM_STREAMS": 2,
        "INFERENCE_NUM_THREADS": 4,
        "ENABLE_CPU_PINNING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": kernels,
    }


def test_without_the_package_it_says_how_to_get_it(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ProviderUnavailable, match=r"not installed: pip install 'polyhead\[openvino\]'"):
        load_backend(artifact, workers=1, intra_op_threads=1, provider="cpu")


def test_engines_and_graphs_that_are_not_there_are_refused(artifact: Artifact, tmp_path: Path) -> None:
    shutil.copytree(artifact.directory, tmp_path / "copy")
    write_manifest(tmp_path / "copy", replace(artifact.manifest, engine="tpu"))
    with pytest.raises(ArtifactError, match="names engine 'tpu'"):
        Artifact.open(tmp_path / "copy")
    files = {name: entry for name, entry in artifact.manifest.files.items() if name != PLAIN_GRAPH}
    write_manifest(tmp_path / "copy", replace(artifact.manifest, files=files))
    with pytest.raises(ArtifactError, match=r"lists no plain\.onnx; export it again"):
        Artifact.open(tmp_path / "copy")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_once_warm_the_files_weights_leave_memory(artifact: Artifact) -> None:
    backend = OpenVinoBackend(artifact)
    weights = re.escape(str(artifact.path(GRAPH)))
    before = backend.run(batch(artifact, [5])).output
    backend.warm_up()
    sizes = re.findall(
        rf"{weights}\n.*?^Rss: +(\d+) kB", Path("/proc/self/smaps").read_text(), re.DOTALL | re.MULTILINE
    )
    assert set(sizes) == {"0"}
    np.testing.assert_array_equal(backend.run(batch(artifact, [5])).output, before)


PLAIN_SERVICE = """
import sys
from pathlib import Path
from service.runner import Runner
runner = Runner.load(Path(sys.argv[1]))
print("onnxruntime" in sys.modules)
runner.close(5)
"""


def test_a_service_that_answers_plainly_does_not_hold_onnx_runtime(artifact: Artifact) -> None:
    command = [sys.executable, "-c", PLAIN_SERVICE, str(artifact.directory)]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "False\n"  # noqa: S603


@pytest.mark.slow
def test_memory_does_not_grow_with_every_shape(artifact: Artifact) -> None:
    backend = OpenVinoBackend(artifact)

    def held_after(counts: range) -> float | None:
        for count in counts:
            for length in range(1, artifact.manifest.max_sequence_length + 1):
                backend.run(batch(artifact, [length] * count))
        return held_memory(os.getpid())

    before, after = held_after(range(1, 3)), held_after(range(3, 12))
    if before is None or after is None:
        pytest.skip("the system does not say how much memory a process holds")
    assert after - before < 500, "megabytes; 1,300 were seen without a limit of the kernels that OpenVINO keeps"
