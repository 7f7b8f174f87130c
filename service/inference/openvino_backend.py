"""Plain answers from OpenVINO, everything else from ONNX Runtime.

OpenVINO's bf16 is fast on processors with AMX or AVX512-BF16, but it computes graphs with branches wrongly. So it runs
`plain.onnx`, which gives the task's output and nothing else. Attention weights, value norms, heads switched off and
token vectors come from the float32 `model.onnx`, which is loaded when it is first asked for. Both name the same bytes
on disk.

A text's vector depends on its batch mates here, by 5e-7 at most in float32 and 4e-3 of one component in bf16.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model.artifact import OPENVINO, PLAIN_GRAPH, Artifact, ArtifactError
from model.processor import compile_in_openvino
from service.inference.backend import Batch, BatchOutput, Int64Array, ProviderUnavailable
from service.inference.feeds import SPLITS, blank_batch, plan_feeds, warm_up_lengths
from service.machine import lower_thread_priority, release_mapped_files

if TYPE_CHECKING:
    from service.inference.onnx_backend import OnnxBackend

_STEP, _LONGEST_FILLED = 8, 128  # tokens
_NICE = 5  # of OpenVINO's threads, which inherit it from the thread that starts them; the workers' own

logger = logging.getLogger(__name__)


class OpenVinoBackend:
    """A compiled `plain.onnx`, for any number of threads at once, and ONNX Runtime's session behind it.

    Attributes:
        computes_in: `bf16` or `f32`.

    Args:
        artifact: a verified artifact whose engine is OpenVINO.
        workers: runs at the same time.
        intra_op_threads: threads of one run.

    Raises:
        ArtifactError: the graph does not load, or keeps weights outside of its folder, which OpenVINO refuses.
        ProviderUnavailable: OpenVINO is not installed.
    """

    def __init__(self, artifact: Artifact, *, workers: int = 1, intra_op_threads: int = 1) -> None:
        manifest, path = artifact.manifest, artifact.path(PLAIN_GRAPH)
        self._artifact = artifact
        self._intra_op_threads = intra_op_threads
        self._output = manifest.task_output
        self._split = SPLITS[manifest.task]
        self._longest_filled = min(_LONGEST_FILLED, manifest.max_sequence_length)
        threads = workers * intra_op_threads
        try:
            with ThreadPoolExecutor(1, initializer=lower_thread_priority, initargs=(_NICE,)) as thread:
                compiling = thread.submit(
                    compile_in_openvino, path, manifest.precision, streams=workers, threads=threads
                )
                self._compiled, self.computes_in = compiling.result()
        except ImportError:
            raise ProviderUnavailable(
                f"{artifact.directory} was exported for OpenVINO, which is not installed: "
                "pip install 'polyhead[openvino]', or export it without --engine openvino"
            ) from None
        except RuntimeError as error:
            raise ArtifactError(f"{path} does not load in OpenVINO {version('openvino')}: {error}") from error
        if manifest.precision == "bf16" and self.computes_in != "bf16":
            logger.warning("this processor has no bf16 (AMX or AVX512-BF16): computing in float32, at its speed")
        names = {entry.get_any_name() for entry in self._compiled.inputs}
        self._feeds = [(name, feed) for name, feed in plan_feeds(artifact) if name in names]
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._idle: list[Any] = []  # inference requests that no run uses
        self._full: OnnxBackend | None = None

    def run(self, batch: Batch) -> BatchOutput:
        """As `Backend.run`."""
        if batch.attention_layers or batch.wants_tokens or batch.head_gates is not None:
            return self._full_backend().run(batch)
        filled = self._fill_up(batch)
        with self._lock:
            request = self._idle.pop() if self._idle else self._compiled.create_infer_request()
        try:
            request.start_async({name: feed(filled) for name, feed in self._feeds}, share_inputs=True)
            batch.cancellation.on_cancel(request.cancel)
            request.wait()
            found = np.array(request.get_tensor(self._output).data)  # the request's own memory is used again
        finally:
            batch.cancellation.on_cancel(None)  # one that comes late must not end the next run
        with self._lock:  # one that failed or was cancelled is dropped
            self._idle.append(request)
        return BatchOutput(self._split(found, filled.lengths)[: len(batch.lengths)], None, {})

    def warm_up(self) -> None:
        """Runs texts of several lengths, so that first requests are not slower.

        Then OpenVINO has its own copies of the weights in its layouts. Of the mapped files it uses few pages again, the
        embedding table's, and of its libraries little but the plugin, which keeps its pages.

        Raises:
            Exception: whatever OpenVINO raises; such an artifact does not run here.
        """
        import openvino  # noqa: PLC0415 - an extra

        for length in warm_up_lengths(self._artifact.manifest.max_sequence_length):
            self.run(blank_batch(length))
        libraries = (Path(openvino.__file__).parent / "libs").glob("*.so*")
        release_mapped_files(self._artifact.directory, *(path for path in libraries if "_plugin" not in path.name))

    def close(self) -> None:
        """Frees both engines; runs that are under way keep theirs until they end."""
        self._idle.clear()
        if self._full is not None:
            self._full.close()
        del self._compiled

    def _fill_up(self, batch: Batch) -> Batch:
        """A short text by itself with a second one behind it, so that both have a multiple of `_STEP` tokens.

        OpenVINO compiles kernels for every shape. Short texts then have sixteen shapes, whose kernels are few and stay.
        """
        tokens = int(batch.lengths[0])
        rest = -tokens % _STEP
        if len(batch.lengths) > 1 or not rest or tokens + rest > self._longest_filled:
            return batch

        def fill(rows: Int64Array) -> Int64Array:
            filled = np.zeros((2, tokens + rest), np.int64)
            filled[0, :tokens] = rows[0, :tokens]
            return filled

        types, seen = batch.token_type_ids, batch.seen_lengths
        return replace(
            batch,
            input_ids=fill(batch.input_ids),
            lengths=np.append(batch.lengths, rest),
            token_type_ids=None if types is None else fill(types),
            seen_lengths=None if seen is None else np.append(seen, rest),
        )

    def _full_backend(self) -> "OnnxBackend":
        with self._loading:  # seconds, in which plain answers go on
            if self._full is None:
                logger.info("loading the graph for attention weights, norms, head masks and token vectors")
                self._artifact.check()  # the folder may hold another model by now
                self._full = _onnx_backend(self._artifact, self._intra_op_threads)
            return self._full


def load_backend(
    artifact: Artifact, *, workers: int, intra_op_threads: int, provider: str
) -> "OnnxBackend | OpenVinoBackend":
    """The backend that an artifact was exported for; on a GPU always ONNX Runtime.

    Raises:
        ArtifactError, ProviderUnavailable: as of the backends.
    """
    if artifact.manifest.engine == OPENVINO and provider == "cpu":
        return OpenVinoBackend(artifact, workers=workers, intra_op_threads=intra_op_threads)
    return _onnx_backend(artifact, intra_op_threads, provider)


def _onnx_backend(artifact: Artifact, intra_op_threads: int, provider: str = "cpu") -> "OnnxBackend":
    """ONNX Runtime is imported only where it runs: 15 MB of memory that plain answers of OpenVINO do without."""
    from service.inference.onnx_backend import OnnxBackend  # noqa: PLC0415 - see above

    return OnnxBackend(artifact, intra_op_threads=intra_op_threads, provider=provider)
