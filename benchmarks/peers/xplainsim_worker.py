"""xplainsim's integrated Jacobians from the embedding layer on: scores of the tokens of both texts of a pair.

Runs in the environment `environments.XPLAINSIM`. It differentiates every dimension of a vector by itself, which takes
half a minute of processor time a pair. One JSON object a line in both directions: first the task, with `weights` (a
folder), `pairs` and `steps` of the path; then for each pair the matrix of its tokens, summed over the other text.
"""

import json
import os
import sys

import torch


def main() -> None:
    """Reads the task and writes a line a pair."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints, at its import too
    from xplain.attribution import ModelFactory  # type: ignore[import-not-found]  # noqa: PLC0415

    task = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    model = ModelFactory.build(task["weights"], layer_idx=0, N_steps=task["steps"]).eval()
    for left, right in task["pairs"]:
        contributions, *_ = model.explain_similarity(left, right, move_to_cpu=True, verbose=False)
        answers.write(json.dumps([contributions.sum(1).tolist(), contributions.sum(0).tolist()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
