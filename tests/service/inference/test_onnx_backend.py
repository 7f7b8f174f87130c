import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from export.checkpoint import Checkpoint
from export.exporter import export_artifact
from model.artifact import GRAPH, Artifact, ArtifactError, describe_files, write_manifest
from service.inference import feeds, onnx_backend
from service.inference.backend import Batch, BatchOutput, ProviderUnavailable
from service.inference.onnx_backend import OnnxBackend, load_session
from tests import loop_reference
from tests.task_artifacts import LONGEST, SIZES, TaskArtifact, quick_export

ROOT = Path(__file__).parents[3]
TOLERANCE = 1e-5
VOCAB_SIZE, NUM_HEADS = SIZES["vocab_size"], SIZES["num_attention_heads"]
HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


@pytest.fixture(scope="module")
def artifact(embedder: TaskArtifact) -> Artifact:
    return Artifact.open(embedder.artifact)


@pytest.fixture(scope="module")
def backend(artifact: Artifact) -> OnnxBackend:
    return padding_to(1, artifact)


@cache
def original(folder: Path) -> Any:
    from transformers import AutoModel  # noqa: PLC0415 - seconds to import

    return AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def changed(artifact: Artifact, directory: Path, *, graph: bytes | None = None, **fields: Any) -> Artifact:
    """A copy with another graph, or with other fields in its manifest, which fits its files."""
    shutil.copytree(artifact.directory, directory, dirs_exist_ok=True)
    if graph is not None:
        (directory / GRAPH).write_bytes(graph)
    write_manifest(directory, replace(artifact.manifest, files=describe_files(directory), **fields))
    return Artifact.open(directory)


def padding_to(step: int, artifact: Artifact) -> OnnxBackend:
    """As on a processor that needs lengths which are multiples of this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_backend, "length_step", lambda: step)
        return OnnxBackend(artifact)


def make_batch(lengths: list[int], *, layers: tuple[int, ...] = (), wants_tokens: bool = False, seed: int = 0) -> Batch:
    """Random ids, padding of other random ids."""
    ids = np.random.default_rng(seed).integers(0, VOCAB_SIZE, (len(lengths), max(lengths)))
    return Batch(ids, np.array(lengths, dtype=np.int64), layers, wants_tokens)


def assert_matches_original(embedder: TaskArtifact, batch: Batch, output: BatchOutput) -> None:
    """Each text as `transformers` computes it alone."""
    assert np.stack(list(output.output)).dtype == np.float32
    assert tuple(output.attentions) == batch.attention_layers
    assert (output.last_hidden_state is not None) == batch.wants_tokens
    for row, length in enumerate(batch.lengths):
        with torch.inference_mode():
            ids = torch.from_numpy(batch.input_ids[row : row + 1, :length])
            expected = original(embedder.folder)(ids, output_attentions=True)
        hidden = expected.last_hidden_state[0].numpy()
        np.testing.assert_allclose(output.output[row], hidden.mean(axis=0), atol=TOLERANCE, rtol=0)
        if output.last_hidden_state is not None:
            np.testing.assert_allclose(output.last_hidden_state[row, :length], hidden, atol=TOLERANCE, rtol=0)
        for layer, weights in output.attentions.items():
            assert weights.shape[:2] == (len(batch.lengths), NUM_HEADS)
            assert weights.shape[2] == weights.shape[3] >= max(batch.lengths)
            real = weights[row, :, :length, :length]
            np.testing.assert_allclose(real, expected.attentions[layer][0], atol=TOLERANCE, rtol=0)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=5),
    layers=st.sampled_from([(), (0,), (1,), (0, 1)]),
    wants_tokens=st.booleans(),
    seed=st.integers(0, 9),
)
def test_computes_what_the_original_does(
    embedder: TaskArtifact,
    backend: OnnxBackend,
    lengths: list[int],
    layers: tuple[int, ...],
    wants_tokens: bool,
    seed: int,
) -> None:
    batch = make_batch(lengths, layers=layers, wants_tokens=wants_tokens, seed=seed)
    assert_matches_original(embedder, batch, backend.run(batch))


def test_layers_may_differ_in_heads_and_have_none(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with quick_export():
        export_artifact(tiny_checkpoint, tmp_path / "artifact", explains=False)
    encoder, ids = tiny_checkpoint.encoder, np.arange(7)
    batch = Batch(ids[np.newaxis], np.array([len(ids)]), tuple(range(encoder.config.num_layers)), wants_tokens=True)
    output = padding_to(1, Artifact.open(tmp_path / "artifact")).run(batch)
    expected = loop_reference.run(encoder.config, encoder.state_dict(), torch.from_numpy(ids))
    assert output.last_hidden_state is not None
    np.testing.assert_allclose(output.last_hidden_state[0], expected.hidden, atol=TOLERANCE, rtol=0)
    for layer, heads in enumerate(encoder.config.num_heads):
        assert output.attentions[layer].shape[1] == heads
        if heads:
            np.testing.assert_allclose(output.attentions[layer][0], expected.weights[layer], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [1, 4, 7, 30])
def test_pads_to_the_lengths_that_a_processor_needs(embedder: TaskArtifact, artifact: Artifact, length: int) -> None:
    backend = padding_to(4, artifact)
    batch = make_batch([length, 1], layers=(0, 1), wants_tokens=True)
    output = backend.run(batch)
    assert output.last_hidden_state is not None
    assert output.last_hidden_state.shape[1] == -(-length // 4) * 4
    assert_matches_original(embedder, batch, output)


@pytest.fixture
def session(artifact: Artifact) -> Mock:
    """Passes runs on to a session and writes down what they asked for."""
    return Mock(wraps=load_session(artifact, GRAPH, intra_op_threads=1, provider="cpu"))


@pytest.fixture
def spied(artifact: Artifact, session: Mock, monkeypatch: pytest.MonkeyPatch) -> OnnxBackend:
    """A backend over the session that is watched."""
    monkeypatch.setattr(onnx_backend, "load_session", lambda *_, **__: session)
    return padding_to(1, artifact)


def asked(session: Mock) -> tuple[list[list[str]], list[list[bool]], list[int]]:
    """Of each run: outputs, layers, the length of its texts."""
    names, feeds, _ = zip(*(call.args for call in session.run.call_args_list), strict=True)
    return (
        list(names),
        [feed["attention_layers"].tolist() for feed in feeds],
        [feed["input_ids"].shape[1] for feed in feeds],
    )


def test_asks_for_nothing_that_is_not_wanted(spied: OnnxBackend, session: Mock) -> None:
    spied.run(make_batch([3]))
    spied.run(make_batch([3], layers=(1,)))
    spied.run(make_batch([3], layers=(0, 1), wants_tokens=True))
    names, layers, _ = asked(session)
    assert names == [
        ["pooled"],
        ["pooled", "attentions.1"],
        ["pooled", "last_hidden_state", "attentions.0", "attentions.1"],
    ]
    assert layers == [[False, False], [False, True], [True, True]]


def test_warms_up_with_the_longest_text_that_fits_any_memory_and_with_attention(
    spied: OnnxBackend, session: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spied.warm_up()
    _, layers, lengths = asked(session)
    assert (min(lengths), max(lengths)) == (1, LONGEST)
    assert [True, True] in layers
    session.run.reset_mock()
    monkeypatch.setattr(feeds, "_WARM_UP_LENGTHS", (1, 8))
    monkeypatch.setattr(feeds, "_LONGEST_WARM_UP", 20)
    spied.warm_up()
    assert max(asked(session)[2]) == 20


def test_a_bad_token_is_an_exception_and_nothing_is_written(backend: OnnxBackend, capfd: Any) -> None:
    with pytest.raises(Exception, match="out of data bounds"):
        backend.run(Batch(np.array([[VOCAB_SIZE]]), np.array([1])))
    assert capfd.readouterr() == ("", "")


def test_a_closed_backend_runs_nothing(artifact: Artifact) -> None:
    backend = OnnxBackend(artifact)
    backend.close()
    with pytest.raises(AttributeError):
        backend.run(make_batch([1]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"graph": b"nonsense" * 10}, "model.onnx does not load in onnxruntime .*INVALID_"),
        ({"graph": b"\x08\x0a"}, "model.onnx does not load in onnxruntime .*INVALID_"),
        ({"inputs": ("input_ids", "head_mask")}, "model.onnx wants head_mask: this version feeds input_ids, lengths"),
    ],
)
def test_refuses_a_graph_that_is_not_the_manifests(
    artifact: Artifact, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        OnnxBackend(changed(artifact, tmp_path, **wrong))


@pytest.mark.parametrize("missing", ["token_type_ids", "last_hidden_state"])
def test_a_graph_without_what_its_manifest_says_does_not_warm_up(
    artifact: Artifact, tmp_path: Path, missing: str
) -> None:
    graph = artifact.path(GRAPH).read_bytes().replace(missing.encode(), missing.upper().encode())
    backend = OnnxBackend(changed(artifact, tmp_path, graph=graph))
    with pytest.raises(Exception, match=missing):
        backend.warm_up()


def test_refuses_providers_that_are_not_there(artifact: Artifact) -> None:
    refused = {"tpu": "provider is 'tpu': expected one of cpu, cuda"}
    if not HAS_CUDA:
        refused["cuda"] = "CUDAExecutionProvider is not in this onnxruntime .* the gpu extra"
    for provider, message in refused.items():
        with pytest.raises(ProviderUnavailable, match=message):
            OnnxBackend(artifact, provider=provider)


def test_cuda_that_does_not_run_the_graph_is_refused(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = load_session(artifact, GRAPH, intra_op_threads=1, provider="cpu")
    monkeypatch.setattr(onnx_backend, "load_session", lambda *_, **__: usual)  # CUDA was asked for in vain
    with pytest.raises(ProviderUnavailable, match="CUDA was asked for and CPUExecutionProvider would run the graph"):
        OnnxBackend(artifact, provider="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="this onnxruntime has no CUDA")
def test_cuda_computes_the_same(embedder: TaskArtifact, artifact: Artifact) -> None:
    backend = OnnxBackend(artifact, provider="cuda")
    batch = make_batch([3, 17, 32], wants_tokens=True)
    assert_matches_original(embedder, batch, backend.run(batch))


def test_threads_are_as_many_as_were_asked_for(artifact: Artifact) -> None:
    def added(threads: int) -> int:
        before = set(os.listdir("/proc/self/task"))
        backend = OnnxBackend(artifact, intra_op_threads=threads)
        after = set(os.listdir("/proc/self/task"))
        backend.close()
        return len(after - before)

    assert (added(1), added(3)) == (0, 2)  # the calling thread is one of them


def test_session_options_are_those_that_a_shared_machine_needs(artifact: Artifact) -> None:
    session = load_session(artifact, GRAPH, intra_op_threads=1, provider="cpu")
    options = session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert not session._enable_fallback


def test_the_first_run_a_second_after_a_large_one_returns_its_memory(
    spied: OnnxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(onnx_backend, "time", SimpleNamespace(monotonic=lambda: now))
    options = Mock(wraps=onnx_backend._run_options)
    monkeypatch.setattr(onnx_backend, "_run_options", options)
    monkeypatch.setattr(onnx_backend, "_LARGE_OUTPUT", 1000)
    monkeypatch.setattr(onnx_backend, "_LARGE_SCORES", 4 * NUM_HEADS * 31**2)
    spied.run(make_batch([3], layers=(0,)))
    spied.run(make_batch([31], layers=(0,)))  # its outputs are large
    spied.run(make_batch([3]))
    now += 1.0
    spied.run(make_batch([3]))
    spied.run(make_batch([32]))  # its scores are large
    now += 1.0
    spied.run(make_batch([3]))
    assert [call.kwargs["shrinks"] for call in options.call_args_list] == [False, False, False, True, False, True]


def printed(script: str, *arguments: Path) -> str:
    """By a process of its own: what other tests left in the heap decides what the allocator can give back."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(  # noqa: S603 - our own interpreter and source
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


MEMORY_CHECK = """
import gc, os, sys
from pathlib import Path
import numpy as np
from model.artifact import GRAPH, Artifact
from service.inference import onnx_backend
from service.inference.backend import Batch

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def batch(length, layers=()):
    return Batch(np.zeros((1, length), np.int64), np.array([length]), layers)

onnx_backend._SHRINK_AFTER = 0.0
backend = onnx_backend.OnnxBackend(Artifact.open(Path(sys.argv[1])))
backend.run(batch(1))
before = resident()
large = backend.run(batch(512, layers=tuple(range(6))))
size = sum(weights.nbytes for weights in large.attentions.values())
grown = resident() - before
del large
backend.run(batch(1))
print(size, grown, resident() - before)
"""


def test_memory_of_large_attention_answers_is_returned(default_artifact: Path) -> None:
    size, grown, kept = map(int, printed(MEMORY_CHECK, default_artifact).split())
    assert grown >= size == 6 * 12 * 4 * 512**2
    assert kept < size / 4, f"{kept / 2**20:.0f} of {grown / 2**20:.0f} MiB kept"


PEAK_CHECK = """
import resource, sys
from pathlib import Path
import numpy as np
from model.artifact import GRAPH, Artifact
from service.inference.backend import Batch
from service.inference.onnx_backend import OnnxBackend

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

backend = OnnxBackend(Artifact.open(Path(sys.argv[1])))
backend.warm_up()
before = peak()
backend.run(Batch(np.full((16, 256), 2000, np.int64), np.full(16, 256)))
print(peak() - before)
"""


def test_a_run_keeps_nothing_of_the_layers_before(default_artifact: Path) -> None:
    layers, padded = 6, 3 * 4 * 16 * 256 * 384  # queries, keys and values of a layer
    # With ONNX Runtime's usual order and plan 217 MiB: what computes the weights comes last, and keeps all of these.
    assert int(printed(PEAK_CHECK, default_artifact)) < layers * padded
