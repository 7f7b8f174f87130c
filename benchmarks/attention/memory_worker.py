"""One measurement of `attention_memory`, in a process of its own: how far one run raises the peak of its memory.

Only what a way needs is imported: libraries would blur the figure, and the start would take longer than the run.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

HEADS, SIZE, LAYERS, LONGEST = 4, 16, 3, 8192
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
Run = Callable[[int], object]


def runner(folder: Path, way: str) -> Run:
    """What runs one text of so many tokens."""
    if way in WANTED:
        return _graph(folder, WANTED[way])
    return _pytorch(way) if way in ("sdpa", "eager") else _operator(folder, way)


def _graph(folder: Path, layers: slice) -> Run:
    from export.runtime import Session  # noqa: PLC0415 - see above

    session, wanted = Session(folder / "graph.onnx", threads=1), np.zeros(LAYERS, np.bool_)
    wanted[layers] = True
    inputs = {"attention_layers": wanted}
    return lambda tokens: session.run(
        {**inputs, "input_ids": np.ones((1, tokens), np.int64), "lengths": np.array([tokens])}
    )


def _operator(folder: Path, name: str) -> Run:
    from export.runtime import Session  # noqa: PLC0415 - see above

    session = Session(folder / f"{name}.onnx", threads=1)
    return lambda tokens: session.run(
        {name: np.full((1, tokens, HEADS * SIZE), 0.1, np.float32) for name in ("query", "key", "value")}
    )


def _pytorch(way: str) -> Run:
    import torch  # noqa: PLC0415 - see above

    from benchmarks.attention.shapes import network  # noqa: PLC0415 - see above

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    made = network((HEADS,) * LAYERS, SIZE, SIZE, max_positions=LONGEST).use("sdpa" if way == "sdpa" else "eager")
    return lambda tokens: made(torch.ones(1, tokens, dtype=torch.int64), torch.tensor([tokens]))


def grown_mb(run: Run, tokens: int) -> float:
    """MB that the resident set's peak lies above where it stood before the run (proc(5): VmHWM, reset by 5)."""
    run(SHORT)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run(tokens)
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    """Kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def main() -> None:
    """Prints one figure as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the graphs are")
    parser.add_argument("way", choices=list(WAYS))
    parser.add_argument("tokens", type=int)
    arguments = parser.parse_args()
    print(json.dumps({"grown_mb": grown_mb(runner(arguments.folder, arguments.way), arguments.tokens)}))


if __name__ == "__main__":
    main()
