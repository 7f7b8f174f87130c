"""What is counted of one run of the model. Whoever runs batches makes one, and the metrics take it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One run of the model that has ended. B texts, S the longest of them.

    Attributes:
        texts: B.
        tokens: real tokens.
        padded_tokens: B * S.
        inference_seconds: how long it ran.
    """

    texts: int
    tokens: int
    padded_tokens: int
    inference_seconds: float
