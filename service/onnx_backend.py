"""The backend that is used: an artifact's graph in ONNX Runtime. The one module of the service that imports it.

It feeds the inputs that the manifest lists and fetches the outputs that a batch wants; it never falls back to another
provider, and knows no requests.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # releases since 1.29 report by default; the API call comes after the first

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from model.artifact import (
    ATTENTION_LAYERS,
    GRAPH,
    HEAD_GATES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LENGTHS,
    NORM_LAYERS,
    POOLED,
    TOKEN_TYPE_IDS,
    Artifact,
    ArtifactError,
    attentions_name,
    value_norms_name,
)
from model.processor import length_step, session_entries
from service.backend import Batch, BatchOutput, Cancellation, Float32Array
from service.graph_files import check_graph_files

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# On a GPU shape arithmetic stays on the CPU. TensorFloat-32, on by default there, has 10 bits: too few for fp32 parity.
PROVIDERS: Mapping[str, tuple[tuple[str, dict[str, str]], ...]] = MappingProxyType(
    {"cpu": ((CPU, {}),), "cuda": ((CUDA, {"use_tf32": "0"}), (CPU, {}))}
)

_FUSED_OP = "Attention"
_SEVERITY_FATAL = 4  # whatever is an error comes as an exception too; the log line would not be ours
_LARGE_OUTPUT = 8 * 2**20  # bytes of one run's outputs after which the arena is worth shrinking
_SHRINK_AFTER = 1.0  # seconds: by then such an answer has been sent; memory still in use cannot be given back
# Kernels choose their tiling by length. The longest text is added, up to a limit: scores grow with the square, and at
# 8,192 tokens take gigabytes that may never be needed.
_WARM_UP_LENGTHS = (1, 8, 32, 128)
_LONGEST_WARM_UP = 512
_LARGE_SCORES = 64 * 2**20  # bytes of one layer's scores, likewise

Feed = Callable[[Batch], NDArray[Any]]


class ProviderUnavailable(Exception):
    """The provider that was asked for is not there, or does not run the graph; the message says what to do."""


class OnnxBackend:
    """One session, for any number of threads at once: each runs its batch on itself.

    Args:
        artifact: a verified artifact.
        intra_op_threads: threads of one run, the calling one included.
        provider: `cpu` or `cuda`.

    Raises:
        ArtifactError: the graph does not load, or is not what its manifest says.
        ProviderUnavailable: the provider cannot be used.
    """

    def __init__(self, artifact: Artifact, *, intra_op_threads: int = 1, provider: str = "cpu") -> None:
        if provider not in PROVIDERS:
            raise ProviderUnavailable(f"provider is {provider!r}: expected one of {', '.join(PROVIDERS)}")
        if intra_op_threads < 1:
            raise ValueError(f"intra_op_threads is {intra_op_threads}: expected at least 1")
        manifest = artifact.manifest
        self._num_layers = manifest.config.num_layers
        self._most_heads = max(manifest.config.num_heads)
        self._max_length = manifest.max_sequence_length
        self._has_norms = NORM_LAYERS in manifest.inputs
        self._length_step = length_step() if provider == "cpu" else 1
        self._large_output_at: float | None = None
        self._feeds = _plan_feeds(artifact)
        self._session = _open_session(artifact, intra_op_threads, provider)
        _check_names(artifact, self._session)
        if provider == "cuda":
            _check_cuda_runs(self._session)

    def run(self, batch: Batch) -> BatchOutput:
        """Computes one batch, on the calling thread (and the session's others, where it has any).

        Raises:
            Exception: whatever ONNX Runtime raises; also once the batch is cancelled.
        """
        batch, layers = batch.padded(self._length_step), batch.attention_layers
        names = [POOLED, *([LAST_HIDDEN_STATE] if batch.wants_tokens else []), *map(attentions_name, layers)]
        names += map(value_norms_name, layers) if batch.wants_norms else ()
        outputs: list[Float32Array] = self._session.run(
            names, {name: feed(batch) for name, feed in self._feeds}, self._run_options(batch.cancellation)
        )
        if self._took_much(batch, outputs):
            self._large_output_at = time.monotonic()
        found = dict(zip(names, outputs, strict=True))
        return BatchOutput(
            pooled=found[POOLED],
            last_hidden_state=found.get(LAST_HIDDEN_STATE),
            attentions={layer: found[attentions_name(layer)] for layer in layers},
            value_norms={layer: found[value_norms_name(layer)] for layer in layers if batch.wants_norms},
        )

    def _took_much(self, batch: Batch, outputs: list[Float32Array]) -> bool:
        """Whether a run took so much memory that the arena is worth shrinking afterwards."""
        rows, length = batch.input_ids.shape
        scores = 4 * rows * self._most_heads * length**2
        wants_more = len(outputs) > 1 and sum(output.nbytes for output in outputs) > _LARGE_OUTPUT
        return wants_more or scores > _LARGE_SCORES

    def _run_options(self, cancellation: Cancellation | None) -> onnxruntime.RunOptions | None:
        """Lets a run be ended early; and has one run, a while after one that took much, return what is unused.

        ONNX Runtime's arena keeps its largest size for ever otherwise, and attention weights, and the scores of long
        texts, are far larger than all else a run needs.
        """
        large_output_at = self._large_output_at
        shrinks = large_output_at is not None and time.monotonic() - large_output_at >= _SHRINK_AFTER
        if not shrinks and cancellation is None:
            return None
        options = onnxruntime.RunOptions()
        if shrinks:
            self._large_output_at = None
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        if cancellation is not None:
            cancellation.on_cancel(lambda: setattr(options, "terminate", True))  # looked at before every node
        return options

    def warm_up(self) -> None:
        """Runs short texts and a long one, one with every layer's attention: the first requests pay for nothing.

        Raises:
            Exception: whatever ONNX Runtime raises; such an artifact does not run here.
        """
        for length in (*_WARM_UP_LENGTHS, min(self._max_length, _LONGEST_WARM_UP)):
            if length <= self._max_length:
                self.run(_blank_batch(length))
        layers, length = tuple(range(self._num_layers)), min(8, self._max_length)
        self.run(_blank_batch(length, layers, wants_tokens=True, wants_norms=self._has_norms))

    def operators(self) -> dict[str, list[str]]:
        """Which nodes each provider runs, by their operators."""
        return _operators(self._session)

    def close(self) -> None:
        """Frees the session; runs that are under way keep it until they end."""
        del self._session


def _plan_feeds(artifact: Artifact) -> list[tuple[str, Feed]]:
    """What is fed to each input of the manifest."""
    config = artifact.manifest.config
    num_layers, no_gates = config.num_layers, np.zeros((0, sum(config.num_heads)), dtype=np.float32)
    feeds: dict[str, Feed] = {
        INPUT_IDS: lambda batch: batch.input_ids,
        LENGTHS: lambda batch: batch.lengths,
        ATTENTION_LAYERS: lambda batch: _layer_mask(batch.attention_layers, num_layers),
        NORM_LAYERS: lambda batch: _layer_mask(batch.attention_layers if batch.wants_norms else (), num_layers),
        HEAD_GATES: lambda batch: no_gates if batch.head_gates is None else batch.head_gates,
        TOKEN_TYPE_IDS: lambda batch: np.zeros_like(batch.input_ids),
    }
    if unknown := [name for name in artifact.manifest.inputs if name not in feeds]:
        raise ArtifactError(f"{artifact.path(GRAPH)} wants {', '.join(unknown)}: this version feeds {', '.join(feeds)}")
    return [(name, feeds[name]) for name in artifact.manifest.inputs]


def _layer_mask(layers: tuple[int, ...], num_layers: int) -> NDArray[np.bool_]:
    mask = np.zeros(num_layers, dtype=np.bool_)
    mask[list(layers)] = True
    return mask


def _open_session(artifact: Artifact, intra_op_threads: int, provider: str) -> onnxruntime.InferenceSession:
    check_graph_files(artifact)
    path, providers = artifact.path(GRAPH), PROVIDERS[provider]
    name, _ = providers[0]
    if name not in onnxruntime.get_available_providers():
        raise ProviderUnavailable(
            f"{name} is not in this onnxruntime {onnxruntime.__version__}: install the gpu extra in place of "
            "the cpu one (onnxruntime-gpu), or use --provider cpu"
        )
    if provider == "cuda":
        onnxruntime.preload_dlls()  # the CUDA and cuDNN of installed packages, where the system has none
    try:
        options = _session_options(intra_op_threads)
        return onnxruntime.InferenceSession(str(path), options, providers=list(providers), enable_fallback=0)
    except Exception as error:  # its exceptions share no base class
        raise ArtifactError(f"{path} does not load in onnxruntime {onnxruntime.__version__}: {error}") from error


def _session_options(intra_op_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SEVERITY_FATAL
    options.intra_op_num_threads = intra_op_threads  # its own choice ignores cgroups, and pins threads to cores
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # one is kept for every shape ever seen, and none is evicted
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are shared
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # which provider runs which node
    for name, value in session_entries().items():
        options.add_session_config_entry(name, value)
    return options


def _check_names(artifact: Artifact, session: onnxruntime.InferenceSession) -> None:
    manifest, path = artifact.manifest, artifact.path(GRAPH)
    found = {entry.name for entry in session.get_inputs()}
    if found != set(manifest.inputs):
        raise ArtifactError(f"{path} has inputs {', '.join(sorted(found))}, its manifest says {manifest.inputs}")
    layers = range(manifest.config.num_layers)
    wanted = {POOLED, LAST_HIDDEN_STATE, *map(attentions_name, layers)}
    wanted |= set(map(value_norms_name, layers)) if NORM_LAYERS in manifest.inputs else set()
    if missing := sorted(wanted - {entry.name for entry in session.get_outputs()}):
        raise ArtifactError(f"{path} lacks outputs {', '.join(missing)}; export it again")


def _check_cuda_runs(session: onnxruntime.InferenceSession) -> None:
    """Raises where CUDA is loaded and does not run the attention: then most of the network would be on the CPU."""
    used, operators = session.get_providers(), _operators(session)
    elsewhere = sorted(provider for provider, run in operators.items() if _FUSED_OP in run and provider != CUDA)
    if CUDA not in used or elsewhere:
        where = ", ".join(elsewhere or used)
        raise ProviderUnavailable(
            f"CUDA was asked for and {where} would run the graph: check the driver and the CUDA and cuDNN libraries "
            "(nvidia-smi; the gpu extra installs the libraries), or use --provider cpu"
        )


def _operators(session: onnxruntime.InferenceSession) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for graph in session.get_provider_graph_assignment_info():
        found.setdefault(graph.ep_name, []).extend(node.op_type for node in graph.get_nodes())
    return found


def _blank_batch(
    length: int, layers: tuple[int, ...] = (), *, wants_tokens: bool = False, wants_norms: bool = False
) -> Batch:
    input_ids, lengths = np.zeros((1, length), np.int64), np.array([length], np.int64)
    return Batch(input_ids, lengths, layers, wants_tokens, wants_norms)
