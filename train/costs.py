"""Measures what heads, feed-forward neurons and layers cost ONNX Runtime on this machine.

The table of costs are differences between graphs of one and two layers. It knows no cache that only a whole network
fills: `train.shape` times the network that it chose beside the whole one.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from export.exporter import write_graph
from export.graph import trace
from export.precision import quantize
from export.runtime import Session
from export.texts import Inputs, TokenizedText, batch_inputs, collate
from model.analysis.arrays import Float64Array
from model.artifact import GRAPH
from model.config import EncoderConfig
from model.encoder import Encoder
from model.initialise import initialise
from train.parallel import from_first
from train.settings import CostPrecision

TIMED_TEXTS, BATCH = 32, 8
TURNS, SECONDS = 7, 6.0  # turns of timing at least, and CPU time of further ones
TIMED_VOCABULARY = 512


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of ONNX Runtime on one thread for texts of usual lengths."""

    heads: Float64Array  # [counts, 2], heads and seconds of a layer's attention, which takes 0 without heads
    neurons: Float64Array  # [counts, 2], neurons and seconds of a layer's feed-forward, which takes 0 without neurons
    layer: float  # what a layer takes besides
    rest: float  # what is outside the layers

    def of_layer(self, heads: Float64Array, neurons: Float64Array) -> Float64Array:
        """Seconds of layers with these numbers of heads and neurons, arrays of one shape."""
        attention, inner = np.interp(heads, *self.heads.T), np.interp(neurons, *self.neurons.T)
        return np.asarray(self.layer + attention + inner, dtype=np.float64)

    def of_network(self, heads: Sequence[int], neurons: Sequence[int]) -> float:
        """Seconds of a network with these numbers of heads and neurons, one of each a layer."""
        return self.rest + float(self.of_layer(np.array(heads, float), np.array(neurons, float)).sum())

    def to_dict(self) -> dict[str, Any]:
        """Microseconds, as JSON types."""
        return {
            "heads": np.round(self.heads * [1, 1e6], 1).tolist(),
            "neurons": np.round(self.neurons * [1, 1e6], 1).tolist(),
            "layer": round(1e6 * self.layer, 1),
            "rest": round(1e6 * self.rest, 1),
        }


def measure_costs(config: EncoderConfig, texts: Sequence[TokenizedText], precision: CostPrecision) -> Costs:
    """Times networks of one layer with fewer heads or neurons, and one of two layers, alternately."""
    heads, neurons = max(config.num_heads), max(map(config.inner_size, range(config.num_layers)))
    readers = max(max(config.groups(layer), default=1) for layer in range(config.num_layers))
    fewer = sorted({0, readers * (heads // readers // 2)} - {heads})
    narrower = sorted({max(1, neurons // 16), neurons // 2} - {neurons})
    variants = [(heads, neurons, 1), (heads, neurons, 2)]
    variants += [(count, neurons, 1) for count in fewer] + [(heads, count, 1) for count in narrower]
    encoders = [initialise(Encoder(_timed_config(config, *variant, readers)), 0).eval() for variant in variants]
    short = [replace(text, ids=text.ids % encoders[0].config.vocab_size) for text in texts]
    one, two, *others = time_networks(encoders, short, precision)
    of_heads = _table([*fewer, heads], [*others[: len(fewer)], one])
    of_neurons = _table([*narrower, neurons], [*others[len(fewer) :], one])
    # a product's time grows with its size from nothing on: the line through the measured points begins there
    slope = (of_neurons[-1, 1] - of_neurons[0, 1]) / (of_neurons[-1, 0] - of_neurons[0, 0])
    of_neurons[:, 1] += slope * of_neurons[0, 0]
    layer = max(0.0, two - one - float(of_heads[-1, 1] + of_neurons[-1, 1]))
    return Costs(of_heads, np.vstack([[0.0, 0.0], of_neurons]), layer, max(0.0, 2 * one - two))


def _table(counts: Sequence[int], seconds: Sequence[float]) -> Float64Array:
    rising = np.maximum.accumulate(np.array(seconds) - seconds[0])  # noise does not let more take less
    return np.array([counts, rising], dtype=np.float64).T


def _timed_config(config: EncoderConfig, heads: int, neurons: int, layers: int, readers: int) -> EncoderConfig:
    """A network of some equal layers like the given one's, with a small vocabulary."""
    alike: dict[str, Any] = dict.fromkeys(
        ("query_groups", "kept_heads", "value_residual", "intermediate_sizes", "local_layers", "shared_layers"), ()
    )
    return replace(
        config,
        vocab_size=min(config.vocab_size, TIMED_VOCABULARY),
        num_heads=(heads,) * layers,
        num_key_value_heads=(heads // readers,) * layers if config.num_key_value_heads else (),
        intermediate_size=neurons,
        original_heads=0,
        window=None,
        **alike,
    )


def time_networks(encoders: Sequence[Encoder], texts: Sequence[TokenizedText], precision: CostPrecision) -> list[float]:
    """CPU seconds of each network's graph over texts of usual lengths in batches of 8, medians of turns.

    Processes that train together have the first one's: by others they would remove other parts.
    """
    chosen = sorted(texts, key=lambda text: len(text.ids))[:: max(1, len(texts) // TIMED_TEXTS)]
    rows = [collate(chosen[start : start + BATCH]) for start in range(0, len(chosen), BATCH)]
    runs: list[tuple[Session, list[Inputs]]] = []
    with tempfile.TemporaryDirectory() as directory:
        for encoder in tqdm(encoders, desc="tracing", unit="graph", leave=False):
            write_graph(trace(quantize(encoder, rows)[0] if precision == "int8" else encoder), Path(directory))
            session = Session(Path(directory) / GRAPH, threads=1)
            runs.append((session, [batch_inputs(encoder.config, batch) for batch in rows]))
    times: list[list[list[float]]] = []
    end = time.process_time() + SECONDS
    while len(times) < TURNS or time.process_time() < end:
        times.append([[session.cpu_seconds(each) for each in inputs] for session, inputs in runs])
    seconds: list[float] = from_first(torch.tensor(np.median(np.array(times[1:]), axis=0).sum(axis=1))).tolist()
    return seconds
