"""Judges a graph on text: how far a lower precision is from float32, and which ranges its vectors have.

Ranges are for callers that ask for vectors in 8 bits: of what the graph itself gives, at length 1 with all dimensions.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.errors import QualityError, SourceError
from export.runtime import Session
from export.similarity import row_cosines
from export.tasks.definition import Threshold
from export.tasks.registry import EXPORTS
from export.tasks.vectors import measure_token_outputs
from export.texts import TEXTS, TextBatch, batch_inputs, run_encoder, text_batches
from model.analysis.arrays import Float64Array
from model.artifact import INPUT_IDS, LAST_HIDDEN_STATE, VectorRanges, attentions_name, value_norms_name
from model.config_parts import OUTPUT_NAMES, Task
from model.encoder import Encoder, EncoderOutput
from model.tasks import PER_TOKEN

WITH_RANGES = ("embedding", "multi_vector")  # tasks whose vectors may be asked for in 8 bits
SMALLEST_LENGTH = 1e-12  # torch.nn.functional.normalize's eps: a vector of 0 stays 0


def require_quality(quality: Mapping[str, Any], thresholds: Sequence[Threshold], otherwise: str) -> None:
    """Holds a lower precision's figures against thresholds; a QualityError ends with the advice `otherwise`."""
    figures = {name: value for name, value in quality.items() if isinstance(value, float)}
    if not all(threshold.holds(figures) for threshold in thresholds):
        found = ", ".join(f"{name} {value:.5f}" for name, value in figures.items())
        raise QualityError(
            f"compared with float32 over {quality['texts']} held-out texts: {found}; expected "
            f"{', '.join(map(str, thresholds))}. {otherwise}"
        )


def measure_quality(
    path: Path, encoder: Encoder, batches: Sequence[TextBatch], token_layers: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, Any]:
    """Compares the graph at a path with the float32 encoder over batches of held-out texts.

    `token_layers` are an embedder's `Checkpoint.further_outputs`, whose outputs are compared too.

    Returns:
        For the manifest: the number of `texts`, or pairs; how far the task's output is from float32's (see
        `export.tasks`); of what a graph gives besides, `hidden_cosine_mean`, `attention_kl_mean`, and
        `value_norm_difference`, relative to the mean norm; and `attention_kl`, a layer a row, a head a column: the KL
        divergence of the graph's from the float32 attention in nats, mean over queries.
    """
    session, config = Session(path), encoder.config
    rows: tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]] = [], []
    divergences = [np.zeros(heads) for heads in config.num_heads]
    hidden, norms = [], np.zeros(2)  # cosines of tokens; sums of differences and of norms
    states: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []  # a text's last ones, float32's, and its tokens
    for batch in tqdm(batches, desc="judging", unit="batch", leave=False):
        inputs = batch_inputs(config, batch, layers=range(config.num_layers))
        found, expected = session.run(inputs), run_encoder(encoder.use("eager"), inputs)
        lengths = batch.lengths.tolist()
        outputs = found[OUTPUT_NAMES[config.task]], expected.task_output.numpy()
        for kept, output in zip(rows, outputs, strict=True):
            kept.extend(split_by_text(output, lengths, config.task))
        for layer, weights in enumerate(expected.attentions):
            if config.num_heads[layer] and weights is not None:
                divergences[layer] += _divergence(found[attentions_name(layer)], weights.numpy(), lengths)
        for row, length in enumerate(lengths):
            own, reference = found[LAST_HIDDEN_STATE][row, :length], expected.last_hidden_state[row, :length].numpy()
            hidden.append(row_cosines(own, reference))
            if token_layers:
                states.append((own, reference, inputs[INPUT_IDS][row, :length]))
            norms += _norm_sums(found, expected, row, length)
    queries = sum(int(batch.lengths.sum()) for batch in batches)
    figures = {
        **EXPORTS[config.task].measure(*rows),
        "hidden_cosine_mean": float(np.concatenate(hidden).mean()),
        "attention_kl_mean": float(np.concatenate(divergences).sum()) / queries / max(sum(config.num_heads), 1),
        "value_norm_difference": float(norms[0] / norms[1]) if norms[1] else 0.0,
    }
    if token_layers:
        figures |= measure_token_outputs(token_layers, *zip(*states, strict=True))
    divergence = [[round(value, 6) for value in (sums / queries).tolist()] for sums in divergences]
    return {"texts": len(rows[0]), **figures, "attention_kl": divergence}


def split_by_text(output: NDArray[np.float32], lengths: list[int], task: Task) -> list[NDArray[np.float32]]:
    """An array a text, without the rows of padding if there is a vector a token."""
    return [row[:length] if task in PER_TOKEN else row for row, length in zip(output, lengths, strict=True)]


def _norm_sums(found: dict[str, NDArray[np.float32]], expected: EncoderOutput, row: int, length: int) -> Float64Array:
    """Of one text's value norms in all layers: the sum of differences, and the sum of the expected norms."""
    sums = np.zeros(2)
    for layer, norms in enumerate(expected.value_norms):
        if norms is not None and len(norms):
            reference, own = norms[row, :, :length].numpy(), found[value_norms_name(layer)][row, :, :length]
            sums += np.abs(own - reference).sum(dtype=np.float64), reference.sum(dtype=np.float64)
    return sums


def _divergence(found: NDArray[np.float32], expected: NDArray[np.float32], lengths: list[int]) -> NDArray[np.float64]:
    """KL(expected || found), summed over the queries of every text, a value a head [H]; both are [B, H, S, S]."""
    total = np.zeros(expected.shape[1])
    smallest = np.finfo(np.float32).tiny
    for row, length in enumerate(lengths):
        p = expected[row, :, :length, :length].astype(np.float64).clip(smallest)
        q = found[row, :, :length, :length].astype(np.float64).clip(smallest)
        total += (p * np.log(p / q)).sum(axis=(1, 2))
    return total


def measure_ranges(path: Path, checkpoint: Checkpoint, calibration: Path | None) -> VectorRanges | None:
    """The least and the greatest value of each dimension of a graph's vectors over calibration text, one a line.

    Returns:
        None where the task has no vectors, or where the shipped text holds nothing that the model can read.

    Raises:
        SourceError: the calibration text cannot be used.
    """
    config = checkpoint.encoder.config
    if config.task not in WITH_RANGES:
        return None
    try:
        batches = text_batches(calibration or TEXTS, checkpoint.tokenizer, checkpoint.max_sequence_length)
    except SourceError:
        if calibration is None:
            return None
        raise
    session = Session(path)
    least, greatest = [], []
    for batch in tqdm(batches, desc="measuring ranges", unit="batch", leave=False):
        output = session.run(batch_inputs(config, batch))[OUTPUT_NAMES[config.task]]
        if config.task in PER_TOKEN:
            output = np.concatenate(split_by_text(output, batch.lengths.tolist(), config.task))
        vectors = output / np.maximum(np.linalg.norm(output, axis=1, keepdims=True), np.float32(SMALLEST_LENGTH))
        least.append(vectors.min(axis=0))
        greatest.append(vectors.max(axis=0))
    return VectorRanges(minimum=tuple(np.min(least, axis=0).tolist()), maximum=tuple(np.max(greatest, axis=0).tolist()))
