"""The report as JSON, `heads.json` of an artifact, and `heads.html` for people; docs/heads.md has every field."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from scipy.stats import kendalltau, spearmanr

from export.checkpoint import Checkpoint, require_embedding
from export.errors import SourceError
from export.heads.corpus import (
    FEWEST_TEXTS,
    Sentence,
    TokenizedPairs,
    read_pairs,
    read_parses,
    require_ratings,
    sample_corpus,
    shuffle_places,
    tokenize_pairs,
)
from export.heads.intervals import LEVEL, Estimate, holm
from export.heads.measure import Behaviour, measure_behaviour, measure_importance, measure_relations, spread
from export.heads.page import render_page
from export.heads.relations import FEWEST_CASES, SIGNIFICANCE, SYNTACTIC, UNLABELLED, Accuracy, find_roles
from export.heads.statistics import ALIKE, mean_divergences
from export.texts import TokenizedText, tokenize
from model.analysis.arrays import Float64Array
from model.analysis.statistics import DIRECTIONS
from model.artifact import HEADS, HEADS_PAGE, hash_file, install_files, write_whole
from model.config import EncoderConfig

SCHEMA_VERSION = 1
DIGITS = 5
MARGIN = 0.1  # by which a syntactic head beats the best offset (Voita et al. 2019)


def make_report(
    checkpoint: Checkpoint,
    corpus: Path,
    *,
    most_texts: int = 1000,
    max_tokens: int,
    importance_texts: int,
    rated: Path | None,
    parsed: Path | None,
    sentences: int | None = None,
    pruned: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Measures everything and returns the report as JSON types.

    At most `most_texts` are drawn from the corpus, one a line, and `max_tokens` read of each. Importance is measured
    on `importance_texts` of them, or on as many pairs of the file `rated`. Of the file `parsed` the first `sentences`
    dependency parses are read, None for all. `pruned` are the heads, as [layer, head] of the network before, that it
    has lost; None if it is whole.

    Raises:
        SourceError: a file cannot be used, or the network has no heads.
        UnsupportedModel: the network is for another task than embedding.
    """
    require_embedding(checkpoint, "a head's importance is measured")
    encoder, longest = checkpoint.encoder, min(max_tokens, checkpoint.max_sequence_length)
    if not sum(encoder.config.num_heads):
        raise SourceError(f"{checkpoint.name} has no heads left to report on")
    # Files are read before networks run, so that a mistake in one is found early.
    drawn, texts = _draw_texts(checkpoint, corpus, most_texts, longest)
    parses = read_parses(parsed, sentences) if parsed else None
    pairs = _choose_pairs(checkpoint, rated, importance_texts, longest) if rated else None
    chosen = spread(texts, importance_texts)
    weighed = [text for text in texts if text.place in chosen]
    behaviour, config = measure_behaviour(encoder, texts), encoder.config
    importance = {**measure_importance(encoder, weighed, pairs), "output_norm": behaviour.statistics["output_norm"]}
    followed, relations = _relations(checkpoint, parsed, parses, longest)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": checkpoint.name,
        "source": asdict(checkpoint.source),
        "num_heads": list(config.num_heads),
        "pruned": pruned,
        "corpus": {**drawn, "texts": behaviour.texts, "tokens": behaviour.tokens, "max_tokens": longest},
        "confidence_level": LEVEL,
        "significance": SIGNIFICANCE,
        "heads": _heads(config, behaviour, importance, followed),
        "importance": {
            "texts": len(pairs.texts) if pairs else len(weighed),
            "pairs": {**_describe(rated), "pairs": len(pairs.left)} if rated and pairs else None,
            "agreement": _agreement(importance),
        },
        "redundancy": _redundancy(behaviour, config),
        "relations": relations,
    }


def _draw_texts(
    checkpoint: Checkpoint, corpus: Path, most: int, longest: int
) -> tuple[dict[str, Any], list[TokenizedText]]:
    """What the report says of the file, and the texts drawn from it."""
    drawn, seen = sample_corpus(corpus, most)
    texts = tokenize(drawn, checkpoint.tokenizer, longest)
    if len(texts) < FEWEST_TEXTS:
        raise SourceError(
            f"{corpus}: {len(texts)} of {len(drawn)} texts drawn hold a token that the model can read; "
            f"at least {FEWEST_TEXTS} are needed (--texts)"
        )
    return {**_describe(corpus), "texts_in_file": seen}, texts


def _describe(path: Path) -> dict[str, Any]:
    return {"name": path.name, "sha256": hash_file(path)}


def _choose_pairs(checkpoint: Checkpoint, path: Path, most: int, longest: int) -> TokenizedPairs:
    pairs = read_pairs(path)
    places = sorted(shuffle_places(len(pairs.left))[:most])
    chosen = tokenize_pairs(pairs.choose(places), checkpoint.tokenizer, longest)
    return require_ratings(chosen, path, "to measure importance on (--importance-texts)")


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
        **{name: {key: value and rounded(value) for key, value in values.items()} for name, values in means.items()},
    }


def _relations(
    checkpoint: Checkpoint, path: Path | None, parses: Sequence[Sentence] | None, longest: int
) -> tuple[dict[int, list[dict[str, Any]]], dict[str, Any] | None]:
    """What each head follows, and the report's part on relations; neither if there are no parses."""
    if path is None or not parses:
        return {}, None
    config = checkpoint.encoder.config
    trained, control = measure_relations(checkpoint.encoder, parses, checkpoint.tokenizer, longest)
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
    counts = {"sentences": len(parses), "arcs": sum(len(sentence.arcs) for sentence in parses), "tested": len(tested)}
    return followed, {**_describe(path), **counts, "relations": rows}


def _best(accuracy: Accuracy, config: EncoderConfig, p: Float64Array | None = None) -> dict[str, Any]:
    """The best head and direction; its adjusted p if it was tested."""
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


def write_report(report: Mapping[str, Any], destination: Path, *, into_artifact: bool) -> None:
    """Writes both files, each whole or not at all, into an artifact, whose manifest then lists them, or a directory."""
    contents = {HEADS: orjson.dumps(report) + b"\n", HEADS_PAGE: render_page(report).encode()}
    if into_artifact:
        install_files(destination, contents)
        return
    destination.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_whole(destination / name, content)
