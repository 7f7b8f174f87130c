"""How well each head points along the arcs of a treebank, against a rule without a head and an untrained network.

A head follows a relation where it beats the best fixed offset by 10 points (Voita et al. 2019) with p < 0.05, one-sided
over sentences and adjusted for all relations, directions and heads together, and its interval lies above that of the
untrained network's best head. Cases of one sentence are not independent: tests and intervals count sentences.

What a head may be called (`RULES`), by rules that can fail: a threshold passed with significance, or no name. A rule
holds if the mean over texts is above the threshold with p < 0.05 in a one-sided t test over texts, adjusted for all
heads and rules together (Holm). The role is the rule passed by the largest part of what is left above its threshold; a
head that passes none may be syntactic, and is otherwise unlabelled, which is the common case.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from export.heads.corpus import Sentence
from export.heads.intervals import Estimate, holm, p_above, wilson
from export.texts import TokenizedText
from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.statistics import best_offset, predict_heads
from model.analysis.words import Span, to_words

SIGNIFICANCE = 0.05
UNLABELLED = "unlabelled"
SYNTACTIC = "syntactic"
FEWEST_CASES = 30  # rarer relations are counted but not tested: every test makes the others' levels stricter


RULES = (  # role, statistic, and what a head must exceed to have the role
    ("previous", "offset_previous", 0.5),  # Clark et al. 2019, section 3.1, as the next two
    ("self", "offset_self", 0.5),
    ("next", "offset_next", 0.5),
    ("special", "special_mass", 0.6),  # Clark et al. 2019, their code, as the next
    ("punctuation", "punctuation_mass", 0.6),
    ("repeated_token", "repeated_token", 0.5),  # half of what a query gives when its token stands elsewhere too
    ("rare_token", "rare_token", 0.5),  # Voita et al. 2019 saw 0.5 and 0.66
    ("broad", "normalized_entropy", 0.78),  # Clark et al. 2019: 3.8 nats at 128 tokens
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
    tested = [rule for rule in RULES if rule[1] in estimates]
    found: list[list[Evidence]] = [[] for _ in range(heads)]
    if not tested:
        return found
    adjusted = holm(np.stack([p_above(estimates[statistic], threshold) for _, statistic, threshold in tested]))
    for (role, statistic, threshold), values in zip(tested, adjusted, strict=True):
        estimate = estimates[statistic]
        for head in np.flatnonzero(values < SIGNIFICANCE):
            mean, p = float(estimate.mean[head]), float(values[head])
            found[head].append(Evidence(role, statistic, mean, threshold, p, int(estimate.n[head])))
    return [sorted(passed, key=lambda evidence: -evidence.strength) for passed in found]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Scores of one relation: dependents, sentences that hold one, and [2, H] by direction and head right predictions.

    Bounds are of the share's 95 % interval; p is one-sided, that the head is not above the baseline, not yet adjusted.
    """

    cases: int
    sentences: int
    hits: Float64Array
    low: Float64Array
    high: Float64Array
    p: Float64Array


class _Sums:
    """Sums over sentences that an accuracy, its interval and its test are made from; predictors are [...]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sentences = self.cases = self.cases_squared = 0
        self.hits, self.hits_squared, self.hits_cases = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.above, self.above_squared = np.zeros(shape), np.zeros(shape)

    def add(self, hits: Float64Array, cases: int, baseline_hits: int) -> None:
        """Takes one sentence."""
        self.sentences += 1
        self.cases += cases
        self.cases_squared += cases**2
        self.hits += hits
        self.hits_squared += hits**2
        self.hits_cases += hits * cases
        self.above += hits - baseline_hits
        self.above_squared += (hits - baseline_hits) ** 2

    def accuracy(self) -> Accuracy:
        """Share, interval and test over the sentences taken; p as `p_above` has it, of hits less the baseline's."""
        n, share = self.sentences, self.hits / self.cases
        # Variance of a ratio of sums over sentences (Cochran 1977, equation 2.39 without finite correction).
        residual = self.hits_squared - 2 * share * self.hits_cases + share**2 * self.cases_squared
        independent = share * (1 - share) * self.cases
        clustered = residual * n / max(n - 1, 1)
        effect = np.where(independent > 0, clustered / np.where(independent > 0, independent, 1.0), 1.0)
        low, high = wilson(self.hits, self.cases, effect)
        mean = self.above / n
        variance = np.maximum(self.above_squared / n - mean**2, 0.0)
        varies = (variance > 1e-12) & (n > 1)
        t = mean / np.sqrt(np.where(varies, variance, 1.0) / max(n - 1, 1))
        p = np.where(varies, stats.t.sf(t, max(n - 1, 1)), np.where(mean > 0, 0.5**n, 1.0))
        return Accuracy(self.cases, n, self.hits, low, high, p)


class RelationScores:
    """Takes sentences one by one and scores every head on every relation."""

    def __init__(self, sentences: Sequence[Sentence], heads: int) -> None:
        """Chooses the baselines from the parses; the heads come later."""
        offsets: dict[str, list[int]] = defaultdict(list)
        for sentence in sentences:
            for arc in sentence.arcs:
                offsets[arc.relation].append(arc.head - arc.dependent)
        self.baselines = {relation: best_offset(found) for relation, found in sorted(offsets.items())}
        self._sentences = sentences
        self._sums = {relation: _Sums((2, heads)) for relation in self.baselines}
        self._baseline_sums = {relation: _Sums((1,)) for relation in self.baselines}

    def add(self, text: TokenizedText, weights: Float32Array) -> None:
        """Takes one sentence's weights [H, n, n]; `text.place` is the sentence's."""
        sentence = self._sentences[text.place]
        words, unit_of_word = align(text, sentence.units)
        word_of = {unit: word for word, unit in enumerate(unit_of_word) if unit >= 0}
        arcs = [arc for arc in sentence.arcs if arc.dependent in word_of and arc.head in word_of]
        if not arcs:
            return
        candidates = np.array([unit >= 0 for unit in unit_of_word])
        predicted = predict_heads(to_words(weights, words), candidates)  # [2, H, W]
        for relation in {arc.relation for arc in arcs}:
            chosen = [arc for arc in arcs if arc.relation == relation]
            dependents = [word_of[arc.dependent] for arc in chosen]
            heads = np.array([word_of[arc.head] for arc in chosen])
            by_rule = sum(arc.head - arc.dependent == self.baselines[relation] for arc in chosen)
            hits = (predicted[:, :, dependents] == heads).sum(axis=-1).astype(np.float64)  # [2, H]
            self._sums[relation].add(hits, len(chosen), by_rule)
            self._baseline_sums[relation].add(np.array([float(by_rule)]), len(chosen), by_rule)

    def accuracies(self) -> dict[str, tuple[Accuracy, Accuracy]]:
        """By relation that has a case: of the heads, and of the fixed offset."""
        return {
            relation: (sums.accuracy(), self._baseline_sums[relation].accuracy())
            for relation, sums in self._sums.items()
            if sums.cases
        }


def align(text: TokenizedText, units: Sequence[Span]) -> tuple[list[Span], list[int]]:
    """The words of a tokenised sentence as spans of tokens, and which unit each is; -1 for what is none.

    A token belongs to the unit that holds its last character: some tokenizers count the space before a token to it.
    Special tokens are words of their own.
    """
    starts = np.array([start for start, _ in units])
    unit = np.searchsorted(starts, text.offsets[:, 1] - 1, side="right") - 1
    unit = np.where(text.special | (unit < 0), -1, unit)
    words: list[Span] = []
    unit_of_word: list[int] = []
    for token, found in enumerate(unit.tolist()):
        if found >= 0 and unit_of_word and unit_of_word[-1] == found:
            words[-1] = (words[-1][0], token + 1)
        else:
            words.append((token, token + 1))
            unit_of_word.append(found)
    return words, unit_of_word
