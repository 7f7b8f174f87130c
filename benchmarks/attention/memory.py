"""How much memory attention takes as texts grow, with and without its weights; each figure from a process of its own.

Ways: the exported graph without weights, with those of the last layer and of all layers; the encoder in PyTorch, eager
and fused; and two operators of ONNX Runtime alone, the standard `Attention` that the graph uses and the contrib
`MultiHeadAttention`, which takes no padding in its memory-saving form. A process imports only what its way needs:
libraries would blur the figure, and the start would take longer than the run.
"""

import math
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.lib.report import Table

HEADS, SIZE, LAYERS = 4, 16, 3
LENGTHS = (256, 512, 1024, 2048, 4096)
LONGEST = LENGTHS[-1]
SHORT = 16
WANTED = {"none": slice(0), "last": slice(-1, None), "all": slice(None)}
WAYS: Mapping[str, str] = {
    "none": "graph, no weights",
    "last": "graph, last layer's weights",
    "all": "graph, all layers' weights",
    "sdpa": "PyTorch, fused",
    "eager": "PyTorch, eager",
    "Attention": "operator Attention",
    "MultiHeadAttention": "operator MultiHeadAttention",
}
OPERATORS: Mapping[str, str] = {
    "Attention": f"Attention <q_num_heads = {HEADS}, kv_num_heads = {HEADS}>",
    "MultiHeadAttention": f"com.microsoft.MultiHeadAttention <num_heads = {HEADS}>",
}


def memory() -> Table:
    """Growth of the resident set in MB, by tokens, and the exponent of the last doubling."""
    weights = HEADS * LONGEST**2 * 4 / 2**20
    title = f"Peak memory in MB, {HEADS} heads, {LAYERS} layers (weights of one layer at {LONGEST}: {weights:.0f} MB)"
    table = Table("memory", title)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        write_graphs(Path(folder))
        for way, name in WAYS.items():
            found = [pool.submit(grown_mb, Path(folder), way, tokens).result() for tokens in LENGTHS]
            growth = found[-1] / found[-2] if min(found[-2:]) > 0 else None  # short texts may take nothing new
            exponent = growth and math.log2(growth) / math.log2(LENGTHS[-1] / LENGTHS[-2])
            table.add(way=name, **dict(zip(map(str, LENGTHS), found, strict=True)), exponent=exponent)
    return table


def write_graphs(folder: Path) -> None:
    """The exported encoder, and each operator alone."""
    import onnx  # noqa: PLC0415 - the measured processes need it as little as the next
    import onnx_ir  # noqa: PLC0415

    from benchmarks.attention.claims import network  # noqa: PLC0415
    from export.graph import trace  # noqa: PLC0415

    onnx_ir.save(trace(network((HEADS,) * LAYERS, SIZE, SIZE, max_positions=LONGEST)), folder / "graph.onnx")
    kind = f"float[batch, sequence, {HEADS * SIZE}]"
    for name, operator in OPERATORS.items():
        model = onnx.parser.parse_model(f"""
            <ir_version: 11, opset_import: ["": 24, "com.microsoft": 1]>
            alone ({kind} query, {kind} key, {kind} value) => ({kind} context) {{
                context = {operator} (query, key, value)
            }}""")
        onnx.save(model, folder / f"{name}.onnx")


def runner(folder: Path, way: str) -> Callable[[int], object]:
    """A function that runs one text of a number of tokens."""
    if way in ("sdpa", "eager"):
        import torch  # noqa: PLC0415

        from benchmarks.attention.claims import network  # noqa: PLC0415

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        made = network((HEADS,) * LAYERS, SIZE, SIZE, max_positions=LONGEST).use("sdpa" if way == "sdpa" else "eager")
        return lambda tokens: made(torch.ones(1, tokens, dtype=torch.int64), torch.tensor([tokens]))
    from export.runtime import Session  # noqa: PLC0415

    if way in WANTED:
        session, wanted = Session(folder / "graph.onnx", threads=1), np.zeros(LAYERS, np.bool_)
        wanted[WANTED[way]] = True
        return lambda tokens: session.run(
            {"attention_layers": wanted, "input_ids": np.ones((1, tokens), np.int64), "lengths": np.array([tokens])}
        )
    operator = Session(folder / f"{way}.onnx", threads=1)
    return lambda tokens: operator.run(
        {name: np.full((1, tokens, HEADS * SIZE), 0.1, np.float32) for name in ("query", "key", "value")}
    )


def grown_mb(folder: Path, way: str, tokens: int) -> float:
    """MB by which this process grows at most in one run over `tokens`, after one over few."""
    run = runner(folder, way)
    run(SHORT)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM (proc(5))
    before = _status("VmRSS")
    run(tokens)
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    """Kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])
