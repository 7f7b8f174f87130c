"""Checks an exported graph against the encoder it was made from; an export that does not verify does not exist.

Three questions: are the inputs and outputs those of the contract, is attention fused in every layer as ONNX Runtime
runs it, and are the tensors those of the PyTorch encoder over a grid of batch sizes, lengths and paddings: embeddings,
attention weights, norms of values, and on ragged batches all of them again under random gates on the heads.
"""

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from export.errors import FusionError, ParityError, VerificationError
from export.graph import fused_attention, input_names, output_names
from export.runtime import Session
from model.artifact import (
    ATTENTION_LAYERS,
    HEAD_GATES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LENGTHS,
    NORM_LAYERS,
    POOLED,
    TOKEN_TYPE_IDS,
    attentions_name,
    value_norms_name,
)
from model.config import EncoderConfig
from model.encoder import Encoder, EncoderOutput

SEED = 20240229
GATED = "gated"  # prefix of what is compared under gates
LONGEST_GATED = 64  # tokens a row; gates do not know positions, so longer rows would only cost time


@dataclass(frozen=True, slots=True)
class Case:
    """One batch of the grid: `lengths [B]` of real tokens in rows of `sequence` tokens."""

    lengths: tuple[int, ...]
    sequence: int

    def inputs(self, config: EncoderConfig, generator: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """Random ids in every place, padding too: what stands there must not matter."""
        shape = (len(self.lengths), self.sequence)
        inputs: dict[str, NDArray[np.generic]] = {
            INPUT_IDS: generator.integers(0, config.vocab_size, shape),
            LENGTHS: np.array(self.lengths, np.int64),
            ATTENTION_LAYERS: np.ones(config.num_layers, np.bool_),
            NORM_LAYERS: np.ones(config.num_layers, np.bool_),
        }
        if config.type_vocab_size:
            inputs[TOKEN_TYPE_IDS] = generator.integers(0, config.type_vocab_size, shape)
        return inputs

    @property
    def is_gated(self) -> bool:
        """Whether it is run under gates too: batches of texts that differ."""
        return len(set(self.lengths)) > 1 and self.sequence <= LONGEST_GATED

    def gates(self, config: EncoderConfig, generator: np.random.Generator) -> NDArray[np.float32]:
        """Random gates, a third each of 0, of 1, and between; the last row is all 1."""
        drawn = generator.uniform(-1, 2, (len(self.lengths), sum(config.num_heads))).clip(0, 1)
        drawn[-1] = 1
        return drawn.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a tensor may be from its reference, relative to the reference's largest value (or 1).

    Attributes:
        largest: of any element.
        mean: over the tensor; tells a wrong graph from a few elements that round to the other side.
    """

    largest: float
    mean: float


@dataclass(slots=True)
class Parity:
    """Largest differences found so far, relative to the largest reference value (or 1, where that is smaller)."""

    cases: int = 0
    differences: dict[str, float] = field(default_factory=dict)

    def record(
        self, name: str, found: NDArray[np.float32], expected: NDArray[np.float64], tolerance: Tolerance
    ) -> None:
        """Compares one tensor.

        Raises:
            ParityError: another shape, a value that is not finite, or a difference above the tolerance.
        """
        if found.shape != expected.shape:
            raise ParityError(f"{name} has shape {found.shape}, the encoder gives {expected.shape}")
        if not found.size:
            return
        if not np.isfinite(found).all():
            raise ParityError(f"{name} holds values that are not finite")
        scale = max(1.0, float(np.abs(expected).max()))
        error = np.abs(found - expected)
        worst, mean = float(error.max()) / scale, float(error.mean()) / scale
        if worst > tolerance.largest or mean > tolerance.mean:
            raise ParityError(
                f"{name} differs from the PyTorch encoder by {worst:.2e} at most and {mean:.2e} on average, relative "
                f"to {scale:.3g}; allowed are {tolerance.largest:.0e} and {tolerance.mean:.0e}"
            )
        self.differences[name] = max(self.differences.get(name, 0.0), worst)


def verify(path: Path, encoder: Encoder, *, tolerance: Tolerance) -> tuple[dict[str, int], dict[str, float]]:
    """Verifies the graph at a path.

    Args:
        path: model.onnx.
        encoder: what it was made from; its `eager` attention in float64 is the reference.
        tolerance: how far a tensor may be from the reference, which is in float64 so that the whole allowance is the
            graph's.

    Returns:
        Fused attention nodes by operator, and the parity figures: largest difference by output and number of cases.

    Raises:
        FusionError: attention is not fused in every layer that has heads.
        ParityError: a tensor differs, or depends on whether attention was asked for.
        VerificationError: the inputs or outputs are not those of the contract.
    """
    config = encoder.config
    with tempfile.TemporaryDirectory() as directory:
        optimized = Path(directory) / "optimized.onnx"
        session = _load(path, optimized)
        fused = _check_fusion(optimized, config)
    _check_names(session, config)
    parity = Parity()
    reference = copy.deepcopy(encoder).double().use("eager")
    for case in tqdm(list(grid(config)), desc="verifying", unit="batch", leave=False):
        _check_case(case, session, reference, parity, tolerance)
    return fused, {**_summary(parity.differences), "cases": parity.cases, "tolerance": tolerance.largest}


def _summary(differences: dict[str, float]) -> dict[str, float]:
    """Largest difference by kind of output: layers of a kind together, and everything under gates."""
    kinds = {POOLED: 0.0, LAST_HIDDEN_STATE: 0.0, "attentions": 0.0, "value_norms": 0.0, GATED: 0.0}
    for name, difference in differences.items():
        kind = name.split(".")[0]
        kinds[kind] = max(kinds[kind], difference)
    return kinds


def grid(config: EncoderConfig) -> Iterator[Case]:
    """Batch sizes, lengths and paddings: alone, full, ragged, one token, padded past the longest, the longest."""
    longest = config.max_positions
    lengths = [n for n in (1, 2, 3, 7, 8, 16, 17, 33, 64, 100, 128) if n < longest] + [longest]
    for length in lengths:
        yield Case((length,), length)
    for length in (n for n in lengths if n <= 128):
        yield Case((length, 1, (length + 1) // 2), length)
        yield Case((length,) * 8, length)
    padded = min(longest, 40)
    yield Case((padded // 2, 1, max(1, padded // 3)), padded)
    yield Case(tuple(1 + 5 * i % padded for i in range(16)), padded)
    yield Case((longest, 1), longest)


def _load(path: Path, optimized: Path) -> Session:
    try:
        return Session(path, optimized=optimized)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise VerificationError(f"ONNX Runtime refuses the graph: {error}") from error


def _check_names(session: Session, config: EncoderConfig) -> None:
    for kind, found, expected in (
        ("inputs", session.input_names, input_names(config)),
        ("outputs", session.output_names, output_names(config)),
    ):
        if found != expected:
            raise VerificationError(f"the graph's {kind} are {', '.join(found)}; expected {', '.join(expected)}")


def _check_fusion(optimized: Path, config: EncoderConfig) -> dict[str, int]:
    """Counts in the graph as it runs: an operator without a kernel would have been expanded into its parts there."""
    fused = fused_attention(onnx_ir.load(optimized))
    expected = sum(heads > 0 for heads in config.num_heads)
    if sum(fused.values()) != expected:
        raise FusionError(
            f"ONNX Runtime runs {sum(fused.values())} fused attention nodes; expected {expected}: {fused}"
        )
    return fused


def _check_case(case: Case, session: Session, reference: Encoder, parity: Parity, tolerance: Tolerance) -> None:
    config = reference.config
    generator = np.random.default_rng([SEED, case.sequence, *case.lengths])
    inputs = case.inputs(config, generator)
    found = session.run(inputs)
    _compare(case, found, _run_reference(reference, inputs), parity, tolerance)
    _check_independence(session, inputs, found, config)
    if case.is_gated:
        inputs[HEAD_GATES] = case.gates(config, generator)
        gated = session.run(inputs)
        _compare(case, gated, _run_reference(reference, inputs), parity, tolerance, prefix=f"{GATED}.")
        if not np.array_equal(gated[POOLED][-1], found[POOLED][-1]):
            raise ParityError(f"{POOLED} of a text whose gates are all 1 changes with the gates of its batch mates")
    parity.cases += 1


def _compare(
    case: Case,
    found: dict[str, NDArray[np.float32]],
    expected: EncoderOutput,
    parity: Parity,
    tolerance: Tolerance,
    *,
    prefix: str = "",
) -> None:
    """Compares every output on its real tokens."""
    parity.record(prefix + POOLED, found[POOLED], expected.pooled.numpy(), tolerance)
    for row, length in enumerate(case.lengths):
        hidden = found[LAST_HIDDEN_STATE][row, :length], expected.last_hidden_state[row, :length].numpy()
        parity.record(prefix + LAST_HIDDEN_STATE, *hidden, tolerance)
        for layer, (weights, norms) in enumerate(zip(expected.attentions, expected.value_norms, strict=True)):
            if weights is None or norms is None or not len(weights):
                continue  # no heads
            name = attentions_name(layer)  # every key: padding must be 0
            parity.record(prefix + name, found[name][row, :, :length], weights[row, :, :length].numpy(), tolerance)
            name = value_norms_name(layer)
            parity.record(prefix + name, found[name][row, :, :length], norms[row, :, :length].numpy(), tolerance)


def _check_independence(
    session: Session,
    inputs: dict[str, NDArray[np.generic]],
    found: dict[str, NDArray[np.float32]],
    config: EncoderConfig,
) -> None:
    """Without attention and norms: the same bits in the embedding, and nothing in what was not asked for."""
    none = np.zeros(config.num_layers, np.bool_)
    without = session.run({**inputs, ATTENTION_LAYERS: none, NORM_LAYERS: none})
    for name in (POOLED, LAST_HIDDEN_STATE):
        if not np.array_equal(without[name], found[name]):
            raise ParityError(f"{name} changes with whether attention weights are asked for")
    for layer in range(config.num_layers):
        for name in (attentions_name(layer), value_norms_name(layer)):
            if without[name].size:
                raise ParityError(f"{name} is computed although it was not asked for")


def _run_reference(reference: Encoder, inputs: dict[str, NDArray[np.generic]]) -> EncoderOutput:
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    gates = tensors.get(HEAD_GATES)
    with torch.inference_mode():
        output: EncoderOutput = reference(
            tensors[INPUT_IDS],
            tensors[LENGTHS],
            token_type_ids=tensors.get(TOKEN_TYPE_IDS),
            head_gates=None if gates is None else gates.double(),
            norm_layers=tensors[NORM_LAYERS],
        )
    return output
