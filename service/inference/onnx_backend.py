"""The backend of the service: an artifact's graphs in ONNX Runtime.

It feeds the inputs that the manifest lists and fetches the outputs that a batch wants; it knows no requests. Sessions
are opened for a machine that other programs use too, and never fall back to another provider. No other module of the
service imports ONNX Runtime.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # releases since 1.29 report by default; the API call comes after the first

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnxruntime

from model.artifact import (
    EXPLAIN_GRAPH,
    GRAPH,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    NORM_LAYERS,
    OWN_SHARES,
    PARTS,
    PLACE,
    SOURCES,
    TOKEN_TYPE_IDS,
    WHOLE,
    Artifact,
    ArtifactError,
    attentions_name,
    value_norms_name,
)
from model.processor import length_step, session_entries
from service.inference.backend import (
    Batch,
    BatchOutput,
    Cancellation,
    Float32Array,
    Int64Array,
    ProviderUnavailable,
    TokenParts,
    WholeText,
)
from service.inference.feeds import SPLITS, blank_batch, plan_feeds, warm_up_lengths

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# On a GPU shape arithmetic stays on the CPU. TensorFloat-32, on by default there, has 10 bits: too few for fp32 parity.
PROVIDERS: Mapping[str, tuple[tuple[str, dict[str, str]], ...]] = MappingProxyType(
    {"cpu": ((CPU, {}),), "cuda": ((CUDA, {"use_tf32": "0"}), (CPU, {}))}
)

_SEVERITY_FATAL = 4  # errors are raised as exceptions too; ONNX Runtime's log lines would not be JSON

# The memory arena is shrunk after runs that need much more than others. Otherwise it keeps its largest size forever.
_SHRINK_AFTER = 1.0  # seconds: by then the answer has been sent, and its memory can be given back
_LARGE_OUTPUT = 8 * 2**20  # bytes of one run's outputs
_LARGE_SCORES = 64 * 2**20  # bytes of one layer's scores
_LARGE_EXPLAINED = 1024  # token vectors of a run of the explaining graph


class OnnxBackend:
    """One session of a verified artifact, for any number of threads at once: each runs its batch on itself.

    Args:
        intra_op_threads: threads of one run, the calling one included.
        provider: `cpu` or `cuda`.

    Raises:
        ArtifactError: the graph does not load, or is not what its manifest says.
        ProviderUnavailable: the provider cannot be used.
    """

    def __init__(self, artifact: Artifact, *, intra_op_threads: int = 1, provider: str = "cpu") -> None:
        manifest = artifact.manifest
        self._output = manifest.task_output
        self._split = SPLITS[manifest.task]
        self._num_layers = manifest.config.num_layers
        self._most_heads = max(manifest.config.num_heads)
        self._max_length = manifest.max_sequence_length
        self._has_norms = NORM_LAYERS in manifest.inputs
        self._length_step = length_step() if provider == "cpu" else 1
        self._large_output_at: float | None = None
        self._feeds = plan_feeds(artifact)
        self._session = load_session(artifact, GRAPH, intra_op_threads=intra_op_threads, provider=provider)
        if provider == "cuda":
            self._check_cuda_runs()

    def run(self, batch: Batch) -> BatchOutput:
        """As `Backend.run`, with the session's other threads, if it has any."""
        batch, layers = batch.padded(self._length_step), batch.attention_layers
        names = [self._output, *([LAST_HIDDEN_STATE] if batch.wants_tokens else []), *map(attentions_name, layers)]
        names += map(value_norms_name, layers) if batch.wants_norms else ()
        feeds = {name: feed(batch) for name, feed in self._feeds}
        options = _run_options(batch.cancellation, shrinks=self._should_shrink())
        outputs: list[Float32Array] = self._session.run(names, feeds, options)
        if self._used_much_memory(batch, outputs):
            self._large_output_at = time.monotonic()
        found = dict(zip(names, outputs, strict=True))
        return BatchOutput(
            output=self._split(found[self._output], batch.lengths),
            last_hidden_state=found.get(LAST_HIDDEN_STATE),
            attentions={layer: found[attentions_name(layer)] for layer in layers},
            value_norms={layer: found[value_norms_name(layer)] for layer in layers if batch.wants_norms},
        )

    def _used_much_memory(self, batch: Batch, outputs: list[Float32Array]) -> bool:
        rows, length = batch.input_ids.shape
        scores = 4 * rows * self._most_heads * length**2
        wants_more = len(outputs) > 1 and sum(output.nbytes for output in outputs) > _LARGE_OUTPUT
        return wants_more or scores > _LARGE_SCORES

    def _should_shrink(self) -> bool:
        """Whether this run gives unused memory back: the first one a second after a run that used much."""
        large_output_at = self._large_output_at
        if large_output_at is None or time.monotonic() - large_output_at < _SHRINK_AFTER:
            return False
        self._large_output_at = None
        return True

    def warm_up(self) -> None:
        """Runs texts of several lengths, one with every layer's attention, so that first requests are not slower.

        Raises:
            Exception: whatever ONNX Runtime raises; such an artifact does not run here.
        """
        for length in warm_up_lengths(self._max_length):
            self.run(blank_batch(length))
        layers, short = tuple(range(self._num_layers)), blank_batch(min(8, self._max_length))
        self.run(replace(short, attention_layers=layers, wants_tokens=True, wants_norms=self._has_norms))

    def operators(self) -> dict[str, list[str]]:
        """The operators of the nodes that each provider runs."""
        found: dict[str, list[str]] = {}
        for graph in self._session.get_provider_graph_assignment_info():
            found.setdefault(graph.ep_name, []).extend(node.op_type for node in graph.get_nodes())
        return found

    def _check_cuda_runs(self) -> None:
        """Refuses a session in which CUDA does not run the attention: most of the network would run on the CPU then."""
        used, run_by = self._session.get_providers(), self.operators()
        elsewhere = sorted(provider for provider, run in run_by.items() if "Attention" in run and provider != CUDA)
        if CUDA not in used or elsewhere:
            where = ", ".join(elsewhere or used)
            raise ProviderUnavailable(
                f"CUDA was asked for and {where} would run the graph: check the driver and the CUDA and cuDNN "
                "libraries (nvidia-smi; the gpu extra installs the libraries), or use --provider cpu"
            )

    def close(self) -> None:
        """Frees the session; runs that are under way keep it until they end."""
        del self._session


class OnnxDecomposer:
    """An artifact's `explain.onnx`.

    Raises:
        ArtifactError: the graph does not load.
        ProviderUnavailable: the provider cannot be used.
    """

    def __init__(self, artifact: Artifact, *, provider: str = "cpu") -> None:
        self._session = load_session(artifact, EXPLAIN_GRAPH, intra_op_threads=1, provider=provider)
        self._has_types = TOKEN_TYPE_IDS in {entry.name for entry in self._session.get_inputs()}

    def run(self, text: WholeText, sources: Int64Array, cancellation: Cancellation) -> TokenParts:
        """As `Decomposer.run`."""
        ids, types = text.input_ids, text.type_ids
        feeds = {INPUT_IDS: ids[np.newaxis], SOURCES: sources}
        if self._has_types:
            feeds[TOKEN_TYPE_IDS] = (np.zeros_like(ids) if types is None else types)[np.newaxis]
        if text.place is not None:
            feeds[PLACE] = np.array([text.place])
        options = _run_options(cancellation, shrinks=len(sources) * len(ids) > _LARGE_EXPLAINED)
        return TokenParts(*self._session.run([PARTS, WHOLE, OWN_SHARES], feeds, options))


def load_session(
    artifact: Artifact, graph: str, *, intra_op_threads: int, provider: str
) -> onnxruntime.InferenceSession:
    """Opens one of an artifact's graphs, by its file's name.

    Raises:
        ArtifactError: it does not load, or keeps weights outside of its folder, which ONNX Runtime refuses.
        ProviderUnavailable: the provider cannot be used.
    """
    if provider not in PROVIDERS:
        raise ProviderUnavailable(f"provider is {provider!r}: expected one of {', '.join(PROVIDERS)}")
    path, providers = artifact.path(graph), PROVIDERS[provider]
    name, _ = providers[0]
    if name not in onnxruntime.get_available_providers():
        raise ProviderUnavailable(
            f"{name} is not in this onnxruntime {onnxruntime.__version__}: install the gpu extra instead of "
            "the cpu one (onnxruntime-gpu), or use --provider cpu"
        )
    if provider == "cuda":
        onnxruntime.preload_dlls()  # the CUDA and cuDNN of installed packages, where the system has none
    try:
        options = _session_options(intra_op_threads, provider, fits_16_bits=artifact.manifest.fits_16_bits)
        return onnxruntime.InferenceSession(str(path), options, providers=list(providers), enable_fallback=0)
    except Exception as error:  # its exceptions share no base class
        raise ArtifactError(f"{path} does not load in onnxruntime {onnxruntime.__version__}: {error}") from error


def _session_options(intra_op_threads: int, provider: str, *, fits_16_bits: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SEVERITY_FATAL
    options.intra_op_num_threads = intra_op_threads  # the default ignores cgroups, and pins threads to cores
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it keeps one for every shape ever seen
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are shared
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # which provider runs which node
    for name, value in session_entries(fits_16_bits=fits_16_bits).items():
        options.add_session_config_entry(name, value)
    if provider == "cpu":  # not measured elsewhere
        # ONNX Runtime's default order runs the attention-weight branches last, and keeps all their inputs until then.
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        # The memory plan reuses buffers that have left the cache; the arena hands out the one that was freed last.
        options.enable_mem_reuse = False
    return options


def _run_options(cancellation: Cancellation, *, shrinks: bool) -> onnxruntime.RunOptions:
    """Options of a run that can be cancelled, and shrinks the arena or not."""
    options = onnxruntime.RunOptions()
    if shrinks:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    cancellation.on_cancel(lambda: setattr(options, "terminate", True))  # looked at before every node
    return options
