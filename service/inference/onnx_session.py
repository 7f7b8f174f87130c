"""ONNX Runtime's session of an artifact: opened for a machine that other programs use too, and checked.

The one module of the service that imports ONNX Runtime. It never falls back to another provider.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # releases since 1.29 report by default; the API call comes after the first

from collections.abc import Mapping
from types import MappingProxyType

import onnxruntime

from model.artifact import GRAPH, Artifact
from model.graph_names import LAST_HIDDEN_STATE, NORM_LAYERS, attentions_name, value_norms_name
from model.manifest import ArtifactError
from model.processor import session_entries
from service.inference.backend import Cancellation
from service.inference.graph_files import check_graph_files

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# On a GPU shape arithmetic stays on the CPU. TensorFloat-32, on by default there, has 10 bits: too few for fp32 parity.
PROVIDERS: Mapping[str, tuple[tuple[str, dict[str, str]], ...]] = MappingProxyType(
    {"cpu": ((CPU, {}),), "cuda": ((CUDA, {"use_tf32": "0"}), (CPU, {}))}
)

_FUSED_OP = "Attention"
_SEVERITY_FATAL = 4  # errors are raised as exceptions too; ONNX Runtime's log lines would not be JSON


class ProviderUnavailable(Exception):
    """The provider that was asked for is not there, or does not run the graph; the message says what to do."""


def open_session(artifact: Artifact, *, intra_op_threads: int, provider: str) -> onnxruntime.InferenceSession:
    """A session that has the inputs and outputs of the artifact's manifest, and runs where it was asked to.

    Arguments and errors are those of `service.inference.onnx_backend.OnnxBackend`.
    """
    session = load_session(artifact, GRAPH, intra_op_threads=intra_op_threads, provider=provider)
    _check_names(artifact, session)
    if provider == "cuda":
        _check_cuda_runs(session)
    return session


def load_session(
    artifact: Artifact, graph: str, *, intra_op_threads: int, provider: str
) -> onnxruntime.InferenceSession:
    """A session of one of an artifact's graphs, by its file's name.

    Raises:
        ArtifactError: it does not load, or uses a file that the manifest does not list.
        ProviderUnavailable: the provider cannot be used.
    """
    if provider not in PROVIDERS:
        raise ProviderUnavailable(f"provider is {provider!r}: expected one of {', '.join(PROVIDERS)}")
    if intra_op_threads < 1:
        raise ValueError(f"intra_op_threads is {intra_op_threads}: expected at least 1")
    return _load(artifact, graph, intra_op_threads, provider)


def operators(session: onnxruntime.InferenceSession) -> dict[str, list[str]]:
    """The operators of the nodes that each provider runs."""
    found: dict[str, list[str]] = {}
    for graph in session.get_provider_graph_assignment_info():
        found.setdefault(graph.ep_name, []).extend(node.op_type for node in graph.get_nodes())
    return found


def run_options(cancellation: Cancellation | None, *, shrinks: bool) -> onnxruntime.RunOptions | None:
    """Options of a run that can be cancelled, or gives the arena's unused memory back; None for neither."""
    if not shrinks and cancellation is None:
        return None
    options = onnxruntime.RunOptions()
    if shrinks:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    if cancellation is not None:
        cancellation.on_cancel(lambda: setattr(options, "terminate", True))  # looked at before every node
    return options


def _load(artifact: Artifact, graph: str, intra_op_threads: int, provider: str) -> onnxruntime.InferenceSession:
    check_graph_files(artifact, graph)
    path, providers = artifact.path(graph), PROVIDERS[provider]
    name, _ = providers[0]
    if name not in onnxruntime.get_available_providers():
        raise ProviderUnavailable(
            f"{name} is not in this onnxruntime {onnxruntime.__version__}: install the gpu extra in place of "
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


def _check_names(artifact: Artifact, session: onnxruntime.InferenceSession) -> None:
    manifest, path = artifact.manifest, artifact.path(GRAPH)
    found = {entry.name for entry in session.get_inputs()}
    if found != set(manifest.inputs):
        raise ArtifactError(f"{path} has inputs {', '.join(sorted(found))}, its manifest says {manifest.inputs}")
    layers = range(manifest.config.num_layers)
    wanted = {manifest.task_output, LAST_HIDDEN_STATE, *map(attentions_name, layers)}
    wanted |= set(map(value_norms_name, layers)) if NORM_LAYERS in manifest.inputs else set()
    if missing := sorted(wanted - {entry.name for entry in session.get_outputs()}):
        raise ArtifactError(f"{path} lacks outputs {', '.join(missing)}; export it again")


def _check_cuda_runs(session: onnxruntime.InferenceSession) -> None:
    """Raises if CUDA does not run the attention: most of the network would run on the CPU then."""
    used, run_by = session.get_providers(), operators(session)
    elsewhere = sorted(provider for provider, run in run_by.items() if _FUSED_OP in run and provider != CUDA)
    if CUDA not in used or elsewhere:
        where = ", ".join(elsewhere or used)
        raise ProviderUnavailable(
            f"CUDA was asked for and {where} would run the graph: check the driver and the CUDA and cuDNN libraries "
            "(nvidia-smi; the gpu extra installs the libraries), or use --provider cpu"
        )
