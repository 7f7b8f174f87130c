"""This side of xplainsim: its scores of tokens, from a process in an environment of its own."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.lib.command import last_line
from benchmarks.peers.environments import XPLAINSIM
from benchmarks.peers.process import QUIET, PeerFailed

STEPS = 10  # of the path; the library's default of 50 takes minutes a pair

PairScores = tuple[NDArray[np.float64], NDArray[np.float64]]


def token_scores(cache: Path, weights: Path, pairs: Sequence[tuple[str, str]]) -> list[PairScores]:
    """For each pair a score a token of its left and of its right text, special tokens included.

    Args:
        cache: folder that keeps the environment.
        weights: folder of the checkpoint, with mean pooling.
        pairs: the texts.

    Raises:
        PeerFailed: it ended before its last pair; the message is its last line.
    """
    task = {"weights": str(weights), "pairs": list(pairs), "steps": STEPS}
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryFile("w+") as told:
        told.write(json.dumps(task) + "\n")
        told.seek(0)
        process = subprocess.Popen(  # noqa: S603 - an interpreter that this project made, and its own module
            [str(XPLAINSIM.python(cache)), "-m", "benchmarks.peers.xplainsim_worker"],
            env={**os.environ, **QUIET, "OMP_NUM_THREADS": "1"},
            stdin=told,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            lines = list(tqdm(process.stdout, desc="xplainsim", total=len(pairs), leave=False, disable=None))
        finally:
            process.kill()
            process.wait()
        if len(lines) < len(pairs):
            log.seek(0)
            raise PeerFailed(last_line(log.read(), "it ended without a word")[-2000:])
    return [(np.array(left), np.array(right)) for left, right in map(json.loads, lines)]
