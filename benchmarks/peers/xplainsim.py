"""xplainsim's integrated Jacobians from the embedding layer on: scores of the tokens of both texts of a pair.

It runs in an environment of its own, as `python -m benchmarks.peers.xplainsim`, and differentiates every dimension of a
vector by itself, which takes half a minute of processor time a pair.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
    from tqdm import tqdm  # noqa: PLC0415 - of this project, not of the worker's environment

    from benchmarks.lib.command import last_line  # noqa: PLC0415
    from benchmarks.peers.peers import QUIET, XPLAINSIM, PeerFailed  # noqa: PLC0415

    task = {"weights": str(weights), "pairs": list(pairs), "steps": STEPS}
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryFile("w+") as told:
        told.write(json.dumps(task) + "\n")
        told.seek(0)
        process = subprocess.Popen(  # noqa: S603 - an interpreter that this project made, and its own module
            [str(XPLAINSIM.python(cache)), "-m", "benchmarks.peers.xplainsim"],
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


def _work() -> None:
    """Reads the task; for each pair writes the matrix of its tokens, summed over the other text, as a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints, at its import too
    import torch  # noqa: PLC0415
    from xplain.attribution import ModelFactory  # type: ignore[import-not-found]  # noqa: PLC0415

    task = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    model = ModelFactory.build(task["weights"], layer_idx=0, N_steps=task["steps"]).eval()
    for left, right in task["pairs"]:
        contributions, *_ = model.explain_similarity(left, right, move_to_cpu=True, verbose=False)
        answers.write(json.dumps([contributions.sum(1).tolist(), contributions.sum(0).tolist()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _work()
