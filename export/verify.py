"""Checks an exported graph against the encoder it was made from; a failed verification leaves no artifact.

Are the inputs and outputs those of the contract, is attention fused in every layer as ONNX Runtime runs it, and are the
tensors those of the PyTorch encoder over a grid of batch sizes, lengths and paddings, under random gates too?
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray
from tqdm import tqdm

from export.errors import FusionError, ParityError, VerificationError
from export.graph import fused_attention, input_names, output_names
from export.reference import LONGEST_OF_EVERY_LAYER, float64_reference
from export.runtime import Session
from export.texts import Inputs, graph_inputs, run_encoder
from model.artifact import (
    ATTENTION_LAYERS,
    HEAD_GATES,
    LAST_HIDDEN_STATE,
    NORM_LAYERS,
    attentions_name,
    value_norms_name,
)
from model.config import EncoderConfig
from model.config_parts import OUTPUT_NAMES
from model.encoder import Encoder
from model.tasks import PER_TOKEN

Outputs = dict[str, NDArray[np.float32]]
GATED = "gated"  # prefix of outputs under gates
FAR_ABOVE = 10  # times the tolerance: more than rounding explains, so the rest of the grid is skipped


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a tensor may be from its reference, relative to the reference's largest value (or 1).

    Attributes:
        largest: of any element.
        mean: over the tensor; tells a wrong graph from a few elements that round to the other side.
        rounding: or this many times PyTorch's own largest error in the encoder's precision, if that
            is more; 0 for no such allowance. Rounding grows with depth and differs from text to text: an attention of
            all-mpnet-base-v2 (12 layers) is 9.4e-6 from float64 in PyTorch and 1.1e-5 in the graph, on the same tokens.
            It is measured where `largest` is not enough.
    """

    largest: float
    mean: float
    rounding: float = 0.0


@dataclass(slots=True)
class Parity:
    """Largest differences found so far, relative to the largest reference value (at least 1).

    Attributes:
        tolerance: how large they may be.
        cases: batches compared.
        longest: tokens of the longest row among them.
        differences: of the graph, by output.
        scales: the largest reference value of each output.
        rounding: of PyTorch's evaluation in the encoder's own precision, by output; empty if no difference needed it.
    """

    tolerance: Tolerance
    cases: int = 0
    longest: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)

    def record(self, name: str, found: NDArray[np.float32], expected: NDArray[np.float64]) -> None:
        """Compares an output's tensor.

        Raises:
            ParityError: another shape, a value on either side that is not finite, or a difference above the tolerance;
                where rounding is allowed for, only one far above, since `judge_parity` knows how much at the end.
        """
        if found.shape != expected.shape:
            raise ParityError(f"{name} has shape {found.shape}, the encoder gives {expected.shape}")
        if not found.size:
            return
        if not np.isfinite(found).all():
            raise ParityError(f"{name} holds values that are not finite")
        if not np.isfinite(expected).all():
            raise ParityError(f"the PyTorch encoder's {name} holds values that are not finite: are its weights?")
        tolerance, scale = self.tolerance, max(1.0, float(np.abs(expected).max()))
        error = np.abs(found - expected)
        worst, mean = float(error.max()) / scale, float(error.mean()) / scale
        largest = tolerance.largest * (FAR_ABOVE if tolerance.rounding else 1)
        if not (worst <= largest and mean <= tolerance.mean):  # so that NaN does not pass
            raise ParityError(
                f"{name} differs from the PyTorch encoder by {worst:.2e} at most and {mean:.2e} on average, relative "
                f"to {scale:.3g}; allowed are {tolerance.largest:.0e} and {tolerance.mean:.0e}"
            )
        self.differences[name] = max(self.differences.get(name, 0.0), worst)
        output = _output(name)
        self.scales[output] = max(self.scales.get(output, 0.0), float(np.abs(expected).max()))

    def record_rounding(self, name: str, rounded: NDArray[np.float32], expected: NDArray[np.float64]) -> None:
        """How far PyTorch's own tensor of an output, in the encoder's precision, is from the reference."""
        if rounded.size:
            rounding = float(np.abs(rounded - expected).max()) / max(1.0, float(np.abs(expected).max()))
            self.rounding[_output(name)] = max(self.rounding.get(_output(name), 0.0), rounding)

    def count(self, sequence: int) -> None:
        """Counts a compared batch, whose longest row has `sequence` tokens."""
        self.cases += 1
        self.longest = max(self.longest, sequence)

    def excess(self) -> str | None:
        """What is above the tolerance, of all batches together; None for nothing.

        An output's largest difference is compared with PyTorch's largest rounding of that output.
        """
        tolerance = self.tolerance
        for name, worst in self.differences.items():
            rounding = self.rounding.get(_output(name), 0.0)
            scale = self.scales.get(_output(name), 1.0) if tolerance.rounding else 1.0
            allowed = tolerance.largest * min(1.0, scale)  # all values of an output may be small
            if not (worst <= allowed or worst <= tolerance.rounding * rounding):
                return (
                    f"{name} differs from the PyTorch encoder by {worst:.2e} at most; allowed are "
                    f"{allowed:.0e}, or {tolerance.rounding:g} times PyTorch's own rounding of {rounding:.2e}"
                )
        return None

    def to_dict(self) -> dict[str, Any]:
        """The figures, for the manifest: the largest of an output over all layers, and of everything under gates."""
        kinds = {"attentions": 0.0, "value_norms": 0.0, GATED: 0.0}  # of a network without heads there are none
        for name, difference in self.differences.items():
            kind = name.split(".")[0]
            kinds[kind] = max(kinds.get(kind, 0.0), difference)
        figures = {"cases": self.cases, "longest": self.longest, "tolerance": self.tolerance.largest}
        return {**kinds, **figures, **({"rounding": self.rounding} if self.rounding else {})}


def _output(name: str) -> str:
    """What a name is of: the layers of an output together, with and without gates."""
    return name.removeprefix(f"{GATED}.").split(".")[0]


SEED = 20240229
LONGEST_SWITCHED = 16  # tokens a row of the runs for one layer; switches do not know lengths
LONGEST_GATED = 64  # tokens a row; gates do not know positions, so longer rows would only cost time
LONGEST_WITH_WEIGHTS = 1024  # tokens a row; up to here the weights of one layer of a kind are compared
LONGEST = 2048  # tokens a row; longer ones are not compared


@dataclass(frozen=True, slots=True)
class Case:
    """One batch of the grid: `lengths [B]` of real tokens in rows of `sequence` tokens, padding included.

    The weights and value norms of `layers` are compared too.
    """

    lengths: tuple[int, ...]
    sequence: int
    layers: tuple[int, ...]

    def generator(self) -> np.random.Generator:
        """Of the batch's random inputs, the same ones every time."""
        return np.random.default_rng([SEED, self.sequence, *self.lengths])

    def inputs(self, config: EncoderConfig, generator: np.random.Generator) -> Inputs:
        """Random ids in every place, padding too: its ids must not matter."""
        shape = (len(self.lengths), self.sequence)
        ids = generator.integers(0, config.vocab_size, shape)
        types = generator.integers(0, config.type_vocab_size, shape) if config.type_vocab_size else None
        lengths = np.array(self.lengths)
        seen = generator.integers(1, lengths + 1) if config.has_unseen_tokens else None
        return graph_inputs(config, ids, lengths, layers=self.layers, token_type_ids=types, seen_lengths=seen)

    def gates(self, config: EncoderConfig, generator: np.random.Generator) -> NDArray[np.float32]:
        """Random gates, a third each of 0, of 1, and between; the last row is all 1."""
        drawn = generator.uniform(-1, 2, (len(self.lengths), sum(config.num_heads))).clip(0, 1)
        drawn[-1] = 1
        return drawn.astype(np.float32)


def grid(config: EncoderConfig) -> Iterator[Case]:
    """Batch sizes, lengths and paddings: alone, full, ragged, one token, padded past the longest, the longest."""
    for lengths, sequence in _short(min(config.max_positions, LONGEST_OF_EVERY_LAYER)):
        yield Case(lengths, sequence, tuple(range(config.num_layers)))
    if config.max_positions > LONGEST_OF_EVERY_LAYER:
        length = min(config.max_positions, LONGEST_WITH_WEIGHTS)
        yield Case((length,), length, one_of_a_kind(config))
    if config.max_positions > LONGEST_WITH_WEIGHTS:
        length = min(config.max_positions, LONGEST)
        ragged = (length // 2 + 3, 1) if config.local_layers else ()  # blocks of queries know lengths
        yield Case((length, *ragged), length, ())


def one_of_a_kind(config: EncoderConfig) -> tuple[int, ...]:
    """The last layer with heads that sees the whole text, and the last that sees a window of it."""
    last = {layer in config.local_layers: layer for layer, heads in enumerate(config.num_heads) if heads}
    return tuple(sorted(last.values()))


def _short(longest: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Real tokens of each row, and tokens a row."""
    lengths = [n for n in (1, 2, 3, 7, 8, 16, 17, 33, 64, 100, 128) if n < longest] + [longest]
    for length in lengths:
        yield (length,), length
    for length in (n for n in lengths if n <= 128):
        yield (length, 1, (length + 1) // 2), length
    for length in (n for n in lengths if n <= 64):  # of eight longer rows nothing new would be seen, for a third more
        yield (length,) * 8, length
    padded = min(longest, 40)
    yield (padded // 2, 1, max(1, padded // 3)), padded
    yield tuple(1 + 5 * i % padded for i in range(16)), padded
    yield (longest, 1), longest


def verify(path: Path, encoder: Encoder, *, tolerance: Tolerance) -> tuple[dict[str, int], dict[str, Any]]:
    """Verifies the graph at a path.

    The reference is the encoder in float64, so that the whole tolerance is the graph's, with `eager` attention where
    weights are wanted.

    Returns:
        Fused attention nodes by operator, and the parity figures: largest difference by output, number of cases,
        longest text.

    Raises:
        FusionError: attention is not fused in every layer that has heads.
        ParityError: a tensor differs, depends on whether attention was asked for, or is another layer's than asked for.
        VerificationError: the inputs or outputs differ from the contract.
    """
    config = encoder.config
    with tempfile.TemporaryDirectory() as directory:
        optimized = Path(directory) / "optimized.onnx"
        try:
            session = Session(path, optimized=optimized)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise VerificationError(f"ONNX Runtime refuses the graph: {error}") from error
        fused = _check_fusion(optimized, config)
    for kind, found, expected in (
        ("inputs", session.input_names, input_names(config)),
        ("outputs", session.output_names, output_names(config)),
    ):
        if found != expected:
            raise VerificationError(f"the graph's {kind} are {', '.join(found)}; expected {', '.join(expected)}")
    parity, reference = Parity(tolerance), float64_reference(encoder)
    for case in tqdm(list(grid(config)), desc="verifying", unit="batch", leave=False):
        _check_case(case, session, reference, parity)
    _check_switches(session, config)
    judge_parity(parity, reference, encoder)
    return fused, parity.to_dict()


def judge_parity(parity: Parity, reference: Encoder, encoder: Encoder) -> None:
    """Judges the differences over the grid; measures the encoder's own rounding if a difference needs it.

    Batches of many texts come first, which have most values for their time; as soon as enough rounding is found the
    rest is left out.

    Raises:
        ParityError: a difference is above the tolerance.
    """
    if parity.tolerance.rounding and parity.excess():
        cases = sorted(grid(encoder.config), key=lambda case: -len(case.lengths))
        for case in tqdm(cases, desc="measuring rounding", unit="batch", leave=False):
            inputs = case.inputs(encoder.config, case.generator())
            own, exact = (_real_parts(case, each, inputs) for each in (encoder, reference))
            for (name, _, rounded), (_, _, expected) in zip(own, exact, strict=True):
                parity.record_rounding(name, rounded, expected)
            if not parity.excess():
                return
    if excess := parity.excess():
        raise ParityError(excess)


def _check_fusion(optimized: Path, config: EncoderConfig) -> dict[str, int]:
    """Counts in the graph as it runs: an operator without a kernel would have been expanded into its parts there."""
    fused = fused_attention(onnx_ir.load(optimized))
    expected = sum(heads > 0 for heads in config.num_heads)
    if sum(fused.values()) != expected:
        raise FusionError(
            f"ONNX Runtime runs {sum(fused.values())} fused attention nodes; expected {expected}: {fused}"
        )
    return fused


def _check_case(case: Case, session: Session, reference: Encoder, parity: Parity) -> None:
    """Compares one batch with the reference."""
    config, generator = reference.config, case.generator()
    output = OUTPUT_NAMES[config.task]
    inputs = case.inputs(config, generator)
    found = compare(case, session.run, reference, inputs, parity)
    if case.layers:
        _check_independence(session, inputs, found, config)
    if len(set(case.lengths)) > 1 and case.sequence <= LONGEST_GATED:  # texts that differ
        inputs[HEAD_GATES] = case.gates(config, generator)
        gated = compare(case, session.run, reference, inputs, parity, prefix=f"{GATED}.")
        if not np.array_equal(gated[output][-1], found[output][-1]):
            raise ParityError(f"{output} of a text whose gates are all 1 changes with the gates of its batch mates")
    parity.count(case.sequence)


def compare(
    case: Case,
    run: Callable[[Inputs], Outputs],
    reference: Encoder,
    inputs: Inputs,
    parity: Parity,
    *,
    prefix: str = "",
) -> Outputs:
    """What a graph gives, each output compared on its real tokens with the reference's.

    Raises:
        ParityError: as `Parity.record`.
    """
    found = run(inputs)
    for name, real, expected in _real_parts(case, reference, inputs):
        if name in found:
            parity.record(prefix + name, found[name][real], expected)
    return found


def _real_parts(
    case: Case, encoder: Encoder, inputs: Inputs
) -> Iterator[tuple[str, tuple[slice | int, ...], NDArray[Any]]]:
    """What an encoder gives for a batch: outputs by name, and the parts of them that belong to real tokens.

    Of weights these have every key, since padding must be 0.
    """
    config, output = encoder.config, run_encoder(encoder.use("sdpa").use("eager", case.layers), inputs)
    per_token = {LAST_HIDDEN_STATE: output.last_hidden_state}
    if config.task in PER_TOKEN:
        per_token[OUTPUT_NAMES[config.task]] = output.task_output
    else:
        yield OUTPUT_NAMES[config.task], (slice(None),), output.task_output.numpy()
    heads = list(zip(output.attentions, output.value_norms, strict=True))
    for row, length in enumerate(case.lengths):
        for name, tensor in per_token.items():
            yield name, (row, slice(length)), tensor[row, :length].numpy()
        for layer, (weights, norms) in enumerate(heads):
            if weights is not None and norms is not None and len(weights):  # else not to be compared, or no heads
                real = row, slice(None), slice(length)
                yield attentions_name(layer), real, weights[real].numpy()
                yield value_norms_name(layer), real, norms[real].numpy()


def _check_independence(session: Session, inputs: Inputs, found: Outputs, config: EncoderConfig) -> None:
    """Without attention and norms: the same bits in the task's output, and nothing in what was not asked for."""
    none = np.zeros(config.num_layers, np.bool_)
    without = session.run({**inputs, ATTENTION_LAYERS: none, NORM_LAYERS: none})
    for name in (OUTPUT_NAMES[config.task], LAST_HIDDEN_STATE):
        if not np.array_equal(without[name], found[name]):
            raise ParityError(f"{name} changes with whether attention weights are asked for")
    for layer in range(config.num_layers):
        for name in (attentions_name(layer), value_norms_name(layer)):
            if without[name].size:
                raise ParityError(f"{name} is computed although it was not asked for")


def _check_switches(session: Session, config: EncoderConfig) -> None:
    """Each layer's weights alone, then each layer's norms: the bits of the run with everything, and nothing besides.

    The grid asks every layer or none for both, so it would not tell one switch from another.
    """
    sequence = min(config.max_positions, LONGEST_SWITCHED)
    case = Case((sequence, 1, (sequence + 1) // 2), sequence, tuple(range(config.num_layers)))
    inputs = case.inputs(config, np.random.default_rng([SEED, *case.lengths]))
    everything = session.run(inputs)
    none = np.zeros(config.num_layers, np.bool_)
    for switch, name_of in ((ATTENTION_LAYERS, attentions_name), (NORM_LAYERS, value_norms_name)):
        for layer in range(config.num_layers):
            only = np.arange(config.num_layers) == layer
            found = session.run({**inputs, ATTENTION_LAYERS: none, NORM_LAYERS: none, switch: only})
            wanted = (OUTPUT_NAMES[config.task], LAST_HIDDEN_STATE, name_of(layer))
            for name, tensor in found.items():
                if name in wanted and not np.array_equal(tensor, everything[name]):
                    raise ParityError(f"{name} changes where {switch} asks for layer {layer} alone")
                if name not in wanted and tensor.size:
                    raise ParityError(f"{name} is computed where {switch} asks for layer {layer} alone")
