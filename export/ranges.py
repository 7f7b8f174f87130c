"""Measures between which values an embedder's vectors lie, for callers that ask for them in 8 bits.

They are measured on the graph itself, so they are of what is served, whatever its precision. They are of vectors of
length 1 with all their dimensions, which is what the service answers unless a request says otherwise.
"""

from pathlib import Path

import numpy as np

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.inputs import batch_inputs
from export.int8.calibration import TEXTS, text_batches
from export.runtime import Session
from model.graph_names import POOLED
from model.manifest import VectorRanges

SMALLEST_LENGTH = 1e-12  # torch.nn.functional.normalize's eps: a vector of 0 stays 0


def measure_ranges(path: Path, checkpoint: Checkpoint, calibration: Path | None = None) -> VectorRanges | None:
    """The least and the greatest value of each dimension over calibration text.

    Args:
        path: of the graph.
        checkpoint: what it was made from.
        calibration: text, one a line; None for the text that ships with the project.

    Returns:
        None where the task is no embedding, or where the shipped text holds nothing that the model can read.

    Raises:
        SourceError: the calibration text cannot be used.
    """
    config = checkpoint.encoder.config
    if config.task != "embedding":
        return None
    try:
        batches = text_batches(calibration or TEXTS, checkpoint.tokenizer, checkpoint.max_sequence_length)
    except SourceError:
        if calibration is None:
            return None
        raise
    session = Session(path)
    pooled = np.concatenate([session.run(batch_inputs(config, batch))[POOLED] for batch in batches])
    vectors = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), np.float32(SMALLEST_LENGTH))
    return VectorRanges(minimum=tuple(vectors.min(axis=0).tolist()), maximum=tuple(vectors.max(axis=0).tolist()))
