"""The vector of a text that was read in windows."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from service.batching.jobs import JobResult
from service.tokenization.tokenized import TokenizedInput


def mean_of_windows(tokenized: Sequence[TokenizedInput], results: Sequence[JobResult]) -> list[JobResult]:
    """One result a text: the mean of its windows' pooled vectors, weighted by their tokens, special ones included.

    This is vLLM's way with long texts. With mean pooling it is the mean over the tokens of all windows.
    """
    rest = iter(results)
    return [_mean(item.windows, list(islice(rest, len(item.windows)))) for item in tokenized]


def _mean(windows: Sequence[TokenizedInput], results: Sequence[JobResult]) -> JobResult:
    if len(results) == 1:
        return results[0]
    tokens = [len(window.input_ids) for window in windows]
    mean = np.average(np.stack([result.output for result in results]), axis=0, weights=tokens)
    return replace(results[0], output=mean.astype(np.float32))
