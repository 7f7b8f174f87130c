"""What a head may be called, by rules that can fail: a threshold passed with significance, or no name.

    role            statistic            above   source of the threshold
    previous, next  offset_previous, ..  0.5     Clark et al. 2019, section 3.1
    self            offset_self          0.5     the same
    special         special_mass         0.6     Clark et al. 2019, their code
    punctuation     punctuation_mass     0.6     the same
    repeated_token  repeated_token       0.5     half of what a query gives when its token stands elsewhere too
    rare_token      rare_token           0.5     Voita et al. 2019 saw 0.5 and 0.66
    broad           normalized_entropy   0.78    Clark et al. 2019: 3.8 nats at 128 tokens
    syntactic       relation accuracy    see `export.heads.relations`

A rule holds where the mean over texts is above the threshold with p < 0.05 in a one-sided t test over texts, adjusted
for all heads and rules together (Holm). The role is the rule passed by the largest part of what is left above its
threshold; a head that passes none may be syntactic, and is else unlabelled, which is the common case.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from export.heads.intervals import Estimate, holm, p_above

SIGNIFICANCE = 0.05
UNLABELLED = "unlabelled"
SYNTACTIC = "syntactic"


@dataclass(frozen=True, slots=True)
class Rule:
    """A role and what a head must exceed to have it."""

    role: str
    statistic: str
    threshold: float


RULES = (
    Rule("previous", "offset_previous", 0.5),
    Rule("self", "offset_self", 0.5),
    Rule("next", "offset_next", 0.5),
    Rule("special", "special_mass", 0.6),
    Rule("punctuation", "punctuation_mass", 0.6),
    Rule("repeated_token", "repeated_token", 0.5),
    Rule("rare_token", "rare_token", 0.5),
    Rule("broad", "normalized_entropy", 0.78),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One rule that one head passes: the mean, the threshold, the adjusted p, and from how many texts."""

    role: str
    statistic: str
    mean: float
    threshold: float
    p: float
    n: int

    @property
    def strength(self) -> float:
        """Share of the way from the threshold to 1."""
        return (self.mean - self.threshold) / (1 - self.threshold)


def find_roles(estimates: Mapping[str, Estimate], heads: int) -> list[list[Evidence]]:
    """The rules that each head passes, strongest first; one list a head, most of them empty."""
    tested = [(rule, estimates[rule.statistic]) for rule in RULES if rule.statistic in estimates]
    found: list[list[Evidence]] = [[] for _ in range(heads)]
    if not tested:
        return found
    adjusted = holm(np.stack([p_above(estimate, rule.threshold) for rule, estimate in tested]))
    for (rule, estimate), values in zip(tested, adjusted, strict=True):
        for head in np.flatnonzero(values < SIGNIFICANCE):
            mean, p = float(estimate.mean[head]), float(values[head])
            found[head].append(Evidence(rule.role, rule.statistic, mean, rule.threshold, p, int(estimate.n[head])))
    return [sorted(passed, key=lambda evidence: -evidence.strength) for passed in found]
