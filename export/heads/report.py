"""The report as JSON: `heads.json` of an artifact. `docs/heads.md` describes every field."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

from export.heads.corpus import Sample
from export.heads.intervals import LEVEL, Estimate, holm
from export.heads.measure import Behaviour, Scores
from export.heads.redundancy import ALIKE, mean_divergences
from export.heads.relations import FEWEST_CASES, Accuracy
from export.heads.roles import SIGNIFICANCE, SYNTACTIC, UNLABELLED, find_roles
from model.analysis.arrays import Float64Array
from model.analysis.relations import DIRECTIONS
from model.config import EncoderConfig
from model.manifest import Source

SCHEMA_VERSION = 1
DIGITS = 5
MARGIN = 0.1  # by which a syntactic head beats the best offset (Voita et al. 2019)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was measured, before it is judged and written down."""

    model: str
    source: Source
    config: EncoderConfig
    corpus: Sample
    longest: int
    behaviour: Behaviour
    importance: Mapping[str, Estimate]
    importance_texts: int
    pairs: Mapping[str, Any] | None
    relations: tuple[Scores, Scores] | None
    parses: Mapping[str, Any] | None
    pruned: Sequence[Sequence[int]] | None


def build_report(measured: Measured) -> dict[str, Any]:
    """The whole report as JSON types."""
    behaviour, config = measured.behaviour, measured.config
    importance = {**measured.importance, "output_norm": behaviour.statistics["output_norm"]}
    followed, relations = _relations(measured.relations, config) if measured.relations else ({}, None)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": measured.model,
        "source": asdict(measured.source),
        "num_heads": list(config.num_heads),
        "pruned": measured.pruned,
        "corpus": {
            "name": measured.corpus.name,
            "sha256": measured.corpus.sha256,
            "texts_in_file": measured.corpus.seen,
            "texts": behaviour.texts,
            "tokens": behaviour.tokens,
            "max_tokens": measured.longest,
        },
        "confidence_level": LEVEL,
        "significance": SIGNIFICANCE,
        "heads": _heads(config, behaviour, importance, followed),
        "importance": {
            "texts": measured.importance_texts,
            "pairs": measured.pairs,
            "agreement": _agreement(importance),
        },
        "redundancy": _redundancy(behaviour, config),
        "relations": {**measured.parses, **relations} if measured.parses and relations else None,
    }


def rounded(value: float) -> float | None:
    """Five significant digits; null for what is not a number."""
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _heads(
    config: EncoderConfig,
    behaviour: Behaviour,
    importance: Mapping[str, Estimate],
    followed: Mapping[int, list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    roles = find_roles(behaviour.statistics, sum(config.num_heads))
    redundancy = behaviour.redundancy
    heads = []
    for head, passed in enumerate(roles):
        layer, index = config.head_place(head)
        syntactic = SYNTACTIC if head in followed else UNLABELLED
        heads.append(
            {
                "layer": layer,
                "head": index,
                "role": passed[0].role if passed else syntactic,
                "rules_passed": [_rounded_values(asdict(evidence)) for evidence in passed],
                "relations_followed": followed.get(head, []),
                "statistics": {name: _estimate(found, head) for name, found in behaviour.statistics.items()},
                "importance": {name: _estimate(found, head) for name, found in importance.items()},
                "group": redundancy.groups[head],
                "nearest": _nearest(redundancy.divergences, head, config),
                "map": [rounded(value) for value in redundancy.points[head]],
            }
        )
    return heads


def _estimate(estimate: Estimate, head: int) -> dict[str, Any]:
    values = {name: float(getattr(estimate, name)[head]) for name in ("mean", "sd", "low", "high")}
    return {**_rounded_values(values), "n": int(estimate.n[head])}


def _nearest(divergences: Float64Array, head: int, config: EncoderConfig) -> dict[str, Any] | None:
    if len(divergences) < 2:
        return None
    others = divergences[head].copy()
    others[head] = np.inf
    layer, index = config.head_place(int(others.argmin()))
    return {"layer": layer, "head": index, "divergence": rounded(float(others.min()))}


def _agreement(importance: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """Rank correlations between every two definitions over the heads."""
    agreement = []
    for a, b in combinations(importance, 2):
        x, y = importance[a].mean, importance[b].mean
        if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
            continue
        rho, tau = spearmanr(x, y), kendalltau(x, y)
        found = {"spearman": rho[0], "spearman_p": rho[1], "kendall": tau[0], "kendall_p": tau[1]}
        agreement.append({"a": a, "b": b, "heads": len(x), **_rounded_values(found)})
    return agreement


def _redundancy(behaviour: Behaviour, config: EncoderConfig) -> dict[str, Any]:
    found = behaviour.redundancy
    means = {
        "means": mean_divergences(found.divergences, config.num_heads),
        "untrained_means": mean_divergences(behaviour.control_divergences, config.num_heads),
    }
    return {
        "texts": found.texts,
        "divergences": [[rounded(value) for value in row] for row in found.divergences.tolist()],
        "tree": [[rounded(value) for value in row] for row in found.tree.tolist()],
        "leaf_order": found.order,
        "group_divergence": ALIKE,
        "map_stress": rounded(found.stress),
        **{name: {key: _or_none(value) for key, value in values.items()} for name, values in means.items()},
    }


def _relations(
    scores: tuple[Scores, Scores], config: EncoderConfig
) -> tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]:
    """What each head follows, and the table of relations."""
    trained, control = scores
    tested = [name for name, (accuracy, _) in trained.items() if accuracy.cases >= FEWEST_CASES]
    adjusted = holm(np.stack([trained[name][0].p for name in tested])) if tested else np.zeros((0, 2, 0))
    p_of = dict(zip(tested, adjusted, strict=True))
    followed: dict[int, list[dict[str, Any]]] = {}
    rows = []
    for name, (accuracy, baseline) in sorted(trained.items(), key=lambda item: -item[1][0].cases):
        p = p_of.get(name)
        untrained = _best(control[name][0], config)
        rows.append(
            {
                "relation": name,
                "cases": accuracy.cases,
                "sentences": accuracy.sentences,
                "baseline": _share(baseline, (0,)),
                "best": _best(accuracy, config, p),
                "untrained": untrained,
                "accuracy": {
                    direction: [rounded(hits / accuracy.cases) for hits in accuracy.hits[row]]
                    for row, direction in enumerate(DIRECTIONS)
                },
            }
        )
        if p is None:
            continue
        above = accuracy.hits / accuracy.cases >= baseline.hits[0] / baseline.cases + MARGIN
        beats = above & (p < SIGNIFICANCE) & (accuracy.low > untrained["high"])
        for row, head in np.argwhere(beats):
            found = {"relation": name, "direction": DIRECTIONS[row], **_share(accuracy, (row, head))}
            followed.setdefault(int(head), []).append({**found, "p": rounded(float(p[row, head]))})
    return followed, {"tested": len(tested), "relations": rows}


def _best(accuracy: Accuracy, config: EncoderConfig, p: Float64Array | None = None) -> dict[str, Any]:
    """The best head and direction; its adjusted p where it was tested."""
    row, head = (int(value) for value in np.unravel_index(accuracy.hits.argmax(), accuracy.hits.shape))
    layer, index = config.head_place(head)
    best = {"layer": layer, "head": index, "direction": DIRECTIONS[row], **_share(accuracy, (row, head))}
    return best if p is None else {**best, "p": rounded(float(p[row, head]))}


def _share(accuracy: Accuracy, place: tuple[int, ...]) -> dict[str, Any]:
    values = {
        "accuracy": float(accuracy.hits[place]) / accuracy.cases,
        "low": float(accuracy.low[place]),
        "high": float(accuracy.high[place]),
    }
    return _rounded_values(values)


def _rounded_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rounded(value) if isinstance(value, float) else value for name, value in values.items()}


def _or_none(value: float | None) -> float | None:
    return None if value is None else rounded(value)
