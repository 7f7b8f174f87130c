"""The attention part of an answer in the form "decomposition": what each input token gives to its text's vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from model.analysis.arrays import Float64Array
from service.answers.contribution_table import sum_words
from service.answers.network import with_biases
from service.answers.vectors import SMALLEST_LENGTH
from service.inference.decomposer import TokenParts
from service.requests.axes import label_axes, plan_axes
from service.requests.decomposition import DecompositionPlan
from service.requests.schemas import EncodeRequest
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

ROUNDING = 1e-6  # of the longest part: a shorter one, as of a network without biases, is rounding and points nowhere


def build_contributions(
    plan: DecompositionPlan,
    request: EncodeRequest,
    tokenized: Sequence[TokenizedInput],
    parts: Sequence[TokenParts],
    tokenizer: Tokenizer,
) -> list[dict[str, Any]]:
    """One entry an input.

    Raises:
        InferenceFailed: a part is not finite.
    """
    entries = []
    for axes, item, found in zip(plan_axes(plan.options, tokenized, tokenizer), tokenized, parts, strict=True):
        rows = sum_words(with_biases(found)[:, : request.dimensions], axes.words, 0)
        norms, cosines = _norms_and_cosines(rows, normalize=request.normalize)
        labels = label_axes(plan.options, axes, item, tokenizer.tokens(item))
        entries.append({**labels, "form": plan.options.form, "norms": norms, "cosines": cosines})
    return entries


def _norms_and_cosines(parts: Float64Array, *, normalize: bool) -> Sequence[Any]:
    """Of parts [N, D'] and what they add up to, float32 [N] each."""
    whole = parts.sum(axis=0)
    norms, length = np.linalg.norm(parts, axis=1), max(float(np.linalg.norm(whole)), SMALLEST_LENGTH)
    has_direction = norms > ROUNDING * norms.max()
    cosines = np.where(has_direction, parts @ whole / (np.maximum(norms, SMALLEST_LENGTH) * length), 0.0)
    if normalize:
        norms = norms / length
    return norms.astype(np.float32), cosines.astype(np.float32)
