"""What does a GPU give: is the answer right there, how much of the card is used, by which kernels, in which batches?

`parity`: each artifact on the device against the fp32 artifact of the same weights on the CPU. `peak`: the rate of ONNX
Runtime's own large matrix product in each precision (int8: float32), on the device, on random data. `rates`: full
batches of real tokens, from few to many, with one worker and with two (the second prepares while the first computes).
`nodes`: what runs where, and which attention kernel. `--provider cpu` runs the same on the CPU, to try it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from benchmarks.lib.command import CannotMeasure, last_line, parser_of, program, whole
from benchmarks.lib.comparison import Engine, run_pass
from benchmarks.lib.report import Spread, Table, emit, in_turns, percentiles
from benchmarks.lib.texts import load_texts, make_batch, tokenize
from export.similarity import row_cosines
from model.artifact import Artifact
from model.config import EncoderConfig
from service.inference.backend import Batch
from service.inference.onnx_backend import PROVIDERS, OnnxBackend

PARITY_TEXTS = 16
RUNS = 4  # of each worker in one measurement
LAYOUTS = ((1, 1), (2, 1))  # workers and their threads

SHAPE = (8, 128)  # texts x tokens of the run whose kernels are printed
MOST_OPERATORS = 8  # named in a row
KERNEL = re.compile(r"SdpaKernel=(\w+)")  # AttentionKernelDebugInfo::Print

CHAIN = 8  # products of one run that measures the peak
PEAK_SECONDS = 1.0
ELEMENTS = {"fp16": "float16", "bf16": "bfloat16"}  # all else multiplies float32


def compare_with_reference(engines: Sequence[Engine], references: Sequence[Engine], texts: Sequence[str]) -> Table:
    """Vectors and all layers' weights of one ragged batch, where an fp32 artifact of the same weights was given."""
    table = Table("parity", f"{len(texts)} texts in one batch")
    by_weights = {engine.artifact.manifest.source.sha256: engine for engine in references}
    for engine in engines:
        reference = by_weights.get(engine.artifact.manifest.source.sha256)
        if reference is None:
            table.add(engine=engine.name, reference="none of its weights: --reference")
            continue
        batch = make_batch(tokenize(engine.artifact, texts), tuple(range(engine.artifact.manifest.config.num_layers)))
        found, expected = (next(iter(one.backends.values())).run(batch) for one in (engine, reference))
        vectors, exact = np.stack(list(found.output)), np.stack(list(expected.output))
        differences = [
            np.abs(weights[row, :, :length] - expected.attentions[layer][row, :, :length]).max(initial=0.0)
            for layer, weights in found.attentions.items()
            for row, length in enumerate(batch.lengths)  # of real tokens
        ]
        table.add(
            engine=engine.name,
            reference=reference.name,
            cosine_min=float(row_cosines(vectors, exact).min()),
            pooled_max_diff=float(np.abs(vectors - exact).max()),
            attention_max_diff=float(max(differences, default=0.0)),
        )
    return table


def measure(
    engines: Sequence[Engine], texts: Sequence[str], peaks: Mapping[str, float], arguments: argparse.Namespace
) -> Table:
    """Tokens a second and the share of the peak, by length and batch."""
    table = Table("rates", "full batches, real tokens")
    for engine in engines:
        ids = list(chain.from_iterable(tokenize(engine.artifact, texts)))
        config = engine.artifact.manifest.config
        runs = {}
        for length, tokens in product(arguments.lengths, arguments.tokens):
            if length <= config.max_positions:
                batch = make_batch(np.resize(ids, (max(1, tokens // length), length)).tolist())
                for (workers, _), backend in engine.backends.items():
                    run = partial(run_pass, backend, [batch] * RUNS * workers, workers)
                    runs[length, len(batch.lengths), workers] = run
        for (length, in_batch, workers), passes in in_turns(runs, arguments.rounds).items():
            rate = Spread.of([one.tokens_per_s for one in passes])
            flops = rate.median * flops_per_token(config, length)
            table.add(
                engine=engine.name,
                length=length,
                texts=in_batch,
                workers=workers,
                tokens_per_s=rate.median,
                spread=str(rate),
                p50_ms=percentiles([latency for one in passes for latency in one.latencies])["p50_ms"],
                tflops=flops / 1e12,
                **{"peak_%": 100 * flops / peaks[engine.precision]},
            )
    return table


def flops_per_token(config: EncoderConfig, sequence_length: int) -> float:
    """Floating-point operations of one token of a text of S = `sequence_length` tokens; a multiply-add is two.

    A layer of H query heads and G key and value heads, with sizes K and V: Q [D, HK], K [D, GK], V [D, GV], the output
    [HV, D], the output gate [D, H] if there is one, the feed-forward [D, I] (twice if it is gated) and [I, D]; then S
    keys for each query head, K + V multiply-adds each.
    """
    of_hidden = attention = 0
    for layer, heads in enumerate(config.num_heads):
        sizes, shared = sum(config.head_sizes(layer)), len(config.groups(layer))
        of_hidden += (heads + shared) * sizes + heads * config.output_gate
        of_hidden += config.inner_size(layer) * (2 + config.gated)
        attention += heads * sizes
    return 2.0 * config.hidden_size * of_hidden + 2.0 * sequence_length * attention


def measure_peak(precision: str, provider: str, size: int) -> float:
    """Operations a second of [n, n] operands, n being the size; a multiply-add is two.

    int8 artifacts are held against fp32's, which their attention runs in. `cuda` and `cpu` have the service's options.
    """
    graph = _chain(ELEMENTS.get(precision, "float"), size)
    session = ort.InferenceSession(graph, providers=list(PROVIDERS[provider]), enable_fallback=0)
    binding = session.io_binding()
    x = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, provider, 0))
    binding.bind_output("y", provider, 0)
    for _ in range(2):
        session.run_with_iobinding(binding)
    began, runs = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < PEAK_SECONDS or not runs:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        runs += 1
    return 2.0 * size**3 * CHAIN * runs / elapsed


def _chain(element: str, size: int) -> bytes:
    """`x W W ... W` in the element type; W's scale keeps the values' size."""
    kind = getattr(onnx.TensorProto, element.upper())
    products = "\n".join(f"x{index + 1} = MatMul(x{index}, w)" for index in range(CHAIN))
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        peak (float[{size}, {size}] x) => ({element}[{size}, {size}] y) {{
            x0 = Cast<to = {kind}>(x)
            {products}
            y = Identity(x{CHAIN})
        }}""")
    weights = np.random.default_rng(1).standard_normal((size, size), dtype=np.float32) / np.sqrt(size)
    model.graph.initializer.append(numpy_helper.from_array(weights.astype(helper.tensor_dtype_to_np_dtype(kind)), "w"))
    return bytes(model.SerializeToString())


def inspect_nodes(directory: Path, provider: str) -> list[dict[str, Any]]:
    """A row for each provider that runs nodes: how many, of which operators; kernels as far as they are printed.

    ONNX Runtime prints its kernels to standard output if `ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO` was set when a
    session was made, so a process of its own runs the graph. Raises `CannotMeasure` if that fails.
    """
    command = [sys.executable, "-m", "benchmarks.gpu", str(directory), provider]
    environment = {**os.environ, "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)  # noqa: S603 - our own
    if done.returncode:
        raise CannotMeasure(last_line(done.stderr))
    operators, kernels = json.loads(done.stdout.splitlines()[-1]), Counter(KERNEL.findall(done.stdout))
    return [
        {
            "provider": provider.removesuffix("ExecutionProvider"),
            "nodes": len(names),
            "operators": _counted(Counter(names)),
            "attention_kernels": _counted(kernels) if "Attention" in names else "",
        }
        for provider, names in operators.items()
    ]


def _counted(counts: Counter[str]) -> str:
    return " ".join(f"{name}:{count}" for name, count in counts.most_common(MOST_OPERATORS))


@program
def main() -> None:
    """Opens the artifacts on the device, measures, and prints."""
    takes = "minutes on a GPU; on a CPU hours, unless --lengths, --tokens and --product are small"
    parser = parser_of(__doc__, takes=takes, rounds=5, texts=600, lengths=[32, 128, 512])
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts, of any precision")
    parser.add_argument(
        "--reference", type=Path, nargs="+", default=[], metavar="DIR", help="fp32 artifacts of the same weights"
    )
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda", help="what computes")
    tokens = [512, 2048, 8192, 32768, 131072]
    parser.add_argument("--tokens", type=whole, nargs="+", default=tokens, help="tokens of a batch")
    parser.add_argument("--product", type=whole, default=8192, help="N: the peak is measured with N x N by N x N")
    arguments = parser.parse_args()
    provider = arguments.provider
    engines = [Engine.open(path, provider=provider, layouts=LAYOUTS) for path in arguments.model]
    references = [Engine.open(path, layouts=LAYOUTS[:1]) for path in arguments.reference]
    texts = load_texts("mixed", arguments.texts)
    peaks = {
        precision: measure_peak(precision, provider, arguments.product)
        for precision in dict.fromkeys(engine.precision for engine in engines)
    }
    reached = [{"precision": precision, "tflops": rate / 1e12} for precision, rate in peaks.items()]
    peak = Table("peak", f"product of {arguments.product} x {arguments.product}", reached)
    parity = compare_with_reference(engines, references, texts[:PARITY_TEXTS])
    rates = measure(engines, texts, peaks, arguments)
    nodes = Table("nodes", "what runs where")
    for directory, engine in zip(arguments.model, engines, strict=True):
        for row in inspect_nodes(directory, provider):
            nodes.add(engine=engine.name, **row)
    emit("gpu rates", [parity, peak, rates, nodes], provider=provider)


def _print_operators(directory: Path, provider: str) -> None:
    """What the process of `inspect_nodes` does."""
    artifact = Artifact.open(directory)
    backend = OnnxBackend(artifact, provider=provider)
    texts, length = SHAPE[0], min(SHAPE[1], artifact.manifest.max_sequence_length)
    backend.run(Batch(np.zeros((texts, length), np.int64), np.full(texts, length, np.int64), ()))
    print(json.dumps(backend.operators()))


if __name__ == "__main__":
    _print_operators(Path(sys.argv[1]), sys.argv[2])
