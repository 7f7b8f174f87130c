"""Labels that a model was not trained for, ranked: by entailment, or by cosines."""

from collections.abc import Iterator, Sequence

import numpy as np

from service.answers.scores import best
from service.errors import InferenceFailed
from service.inference.backend import Float32Array
from service.requests.zero_shot import ZeroShotPlan

Labelled = tuple[list[str], list[float]]
"""Labels and their scores, best first."""


def entailment_scores(logits: Float32Array, *, entailment: int, multi_label: bool) -> Float32Array:
    """How well hypotheses fit texts, [texts, hypotheses], from logits [texts, hypotheses, labels].

    The softmax of entailment over a text's hypotheses; or, each by itself, of entailment and contradiction, which is
    the first of the model's labels, or the last one if entailment is the first (as the pipeline of `transformers`).
    """
    if not np.isfinite(logits).all():
        raise InferenceFailed()
    wide = logits.astype(np.float64)
    own = wide[..., entailment]
    if multi_label or logits.shape[1] == 1:
        other = wide[..., -1 if entailment == 0 else 0]
        judged: Float32Array = np.exp(-np.logaddexp(0.0, other - own)).astype(np.float32)
        return judged
    exponentials = np.exp(own - own.max(axis=1, keepdims=True))
    shares: Float32Array = (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def label_cosines(texts: Float32Array, labels: Float32Array) -> Float32Array:
    """[texts, labels] of vectors of length 1."""
    cosines: Float32Array = (texts @ labels.T).clip(-1, 1)
    return cosines


def sorted_labels(scores: Float32Array, labels: Sequence[str]) -> Iterator[Labelled]:
    """Each row's labels, best first."""
    for row in scores:
        order = best(row, None)
        yield [labels[at] for at in order], row[order].tolist()


def zero_shot_labels(plan: ZeroShotPlan, found: Float32Array) -> Iterator[Labelled]:
    """Labels of each text, best first, from the logits or the vectors that the plan's request is answered with."""
    wanted, texts = plan.wanted, len(plan.wanted.texts)
    if plan.method == "cosine":
        return sorted_labels(label_cosines(found[:texts], found[texts:]), wanted.labels)
    logits = found.reshape(texts, len(wanted.labels), -1)
    scores = entailment_scores(logits, entailment=plan.entailment, multi_label=wanted.multi_label)
    return sorted_labels(scores, wanted.labels)
