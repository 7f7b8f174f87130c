"""How long it takes to write attention weights in each form, and how many bytes they are: no network, no HTTP.

The weights are random rows that sum to 1; the code that writes them is the service's own.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.lib.report import Table
from benchmarks.lib.timing import Spread, in_turns
from service.answers.packing import pack_base64, pack_safetensors
from service.answers.serialize import serialize_in_pieces
from service.inference.backend import Float32Array
from service.wire import Piece

LAYERS = HEADS = 12  # of the networks that most encoders are
HIDDEN_SIZE = 768
SHARPNESS = 2.0  # standard deviation of the scores: a few weights of a row are large, most are small, as in real heads
COLUMNS = ("tokens", "form", "ms", "spread", "MB", "MB_per_s")

Write = Callable[[], Sequence[Piece]]


def writing_costs(lengths: Sequence[int], rounds: int, seconds: float) -> Table:
    """Every form of every length in turns: milliseconds by the median round, megabytes, and float32 MB a second.

    Args:
        lengths: tokens of a text.
        rounds: measured rounds; one more warms up.
        seconds: that all of them take together, more where a single writing takes longer.
    """
    title = f"writing the weights of {LAYERS} x {HEADS} heads, without HTTP and network; MB_per_s of float32 weights"
    table = Table("writing", title, COLUMNS)
    with asyncio.Runner() as runner:
        forms = {(n, name): write for n in lengths for name, write in _forms(make_answer(n), runner).items()}
        share = seconds / (len(forms) * (rounds + 1))
        sizes = {key: sum(map(len, write())) for key, write in forms.items()}
        found = in_turns({key: partial(seconds_each, write, share) for key, write in forms.items()}, rounds)
    for (tokens, name), each in found.items():
        spread = Spread.of(each)
        weights = 4e-6 * LAYERS * HEADS * tokens**2
        cells = {"ms": 1000 * spread.median, "MB": sizes[tokens, name] / 1e6, "MB_per_s": weights / spread.median}
        table.add(tokens=tokens, form=name, spread=str(spread), **cells)
    return table


def make_answer(tokens: int) -> dict[str, Any]:
    """One text's answer with all weights of all heads, as the service builds it."""
    generator = np.random.default_rng(0)
    layers = list(range(LAYERS))
    entry = {
        "layers": layers,
        "heads": [list(range(HEADS)) for _ in layers],
        "weights": [_make_weights(generator, tokens) for _ in layers],
    }
    embeddings = generator.standard_normal((1, HIDDEN_SIZE), dtype=np.float32)
    return {"embeddings": embeddings, "attention": [entry]}


def seconds_each(write: Write, seconds: float) -> float:
    """Mean duration of a writing, over as many as start within the given time, at least one."""
    began, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - began < seconds:
        write()
        count += 1
    return (time.perf_counter() - began) / count


def _make_weights(generator: np.random.Generator, tokens: int) -> Float32Array:
    """Random weights `[heads, queries, keys]`."""
    scores = SHARPNESS * generator.standard_normal((HEADS, tokens, tokens), dtype=np.float32)
    weights: Float32Array = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _listed_anew(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The same arrays in new lists."""
    entries = [
        {name: list(value) if isinstance(value, list) else value for name, value in entry.items()}
        for entry in answer["attention"]
    ]
    return {**answer, "attention": entries}


def _forms(answer: Mapping[str, Any], runner: asyncio.Runner) -> dict[str, Write]:
    """What writes the answer, by form. Writing JSON empties the lists of an answer, so each gets lists of its own."""
    floats = sum(layer.size for layer in answer["attention"][0]["weights"])

    def as_json(make: Callable[[], Mapping[str, Any]]) -> Sequence[Piece]:
        return runner.run(serialize_in_pieces(make(), floats=floats))

    return {
        "JSON": partial(as_json, lambda: _listed_anew(answer)),
        "base64": partial(as_json, partial(pack_base64, answer)),
        "safetensors float32": partial(pack_safetensors, answer, is_half=False),
        "safetensors float16": partial(pack_safetensors, answer, is_half=True),
    }
