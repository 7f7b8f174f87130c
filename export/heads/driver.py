"""Makes the report of a checkpoint. Files are read before networks run, so that a mistake in one is found early."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.checkpoint import Checkpoint, require_embedding
from export.errors import SourceError
from export.heads.corpus import FEWEST_TEXTS, sample_corpus
from export.heads.measure import measure_behaviour, measure_importance, measure_relations, spread
from export.heads.pairs import TokenizedPairs, read_pairs, require_ratings, shuffle_places, tokenize_pairs
from export.heads.parses import Sentence, read_parses
from export.heads.report import Measured, build_report
from export.tokens import tokenize
from model.artifact import hash_file


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRequest:
    """What the report is to be made from.

    Attributes:
        corpus: text, one text a line.
        texts: drawn from it at most.
        max_tokens: read of each text at most.
        importance_texts: texts, or pairs where they are given, that importance is measured on.
        pairs: rated pairs, or None.
        parses: dependency parses, or None.
        sentences: parses read, or None for all.
    """

    corpus: Path
    texts: int = 1000
    max_tokens: int = 128
    importance_texts: int = 200
    pairs: Path | None = None
    parses: Path | None = None
    sentences: int | None = None


def make_report(
    checkpoint: Checkpoint, request: ReportRequest, pruned: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    """Measures everything and returns the report as JSON types.

    Args:
        checkpoint: the network.
        request: what it is looked at on.
        pruned: heads, as [layer, head] of the network before, that it has lost; None where it is whole.

    Raises:
        SourceError: a file cannot be used, or the network has no heads.
        UnsupportedModel: the network is for another task than embedding.
    """
    require_embedding(checkpoint, "a head's importance is measured")
    encoder, longest = checkpoint.encoder, min(request.max_tokens, checkpoint.max_sequence_length)
    if not sum(encoder.config.num_heads):
        raise SourceError(f"{checkpoint.name} has no heads left to report on")
    sample = sample_corpus(request.corpus, request.texts)
    parses = read_parses(request.parses, request.sentences) if request.parses else None
    pairs = _choose_pairs(checkpoint, request, longest) if request.pairs else None
    texts = tokenize(sample.texts, checkpoint.tokenizer, longest)
    if len(texts) < FEWEST_TEXTS:
        raise SourceError(f"{request.corpus}: {len(texts)} texts hold a token that the model knows how to read")
    chosen = spread(texts, request.importance_texts)
    weighed = [text for text in texts if text.place in chosen]
    return build_report(
        Measured(
            model=checkpoint.name,
            source=checkpoint.source,
            config=encoder.config,
            corpus=sample,
            longest=longest,
            behaviour=measure_behaviour(encoder, texts),
            importance=measure_importance(encoder, weighed, pairs),
            importance_texts=len(pairs.texts) if pairs else len(weighed),
            pairs=_describe(request.pairs, pairs=len(pairs.left)) if request.pairs and pairs else None,
            relations=measure_relations(encoder, parses, checkpoint.tokenizer, longest) if parses else None,
            parses=_describe_parses(request.parses, parses) if request.parses and parses else None,
            pruned=pruned,
        )
    )


def _choose_pairs(checkpoint: Checkpoint, request: ReportRequest, longest: int) -> TokenizedPairs:
    """Pairs drawn from the whole file."""
    if request.pairs is None:
        raise ValueError("no pairs were asked for")
    pairs = read_pairs(request.pairs)
    places = sorted(shuffle_places(len(pairs.left))[: request.importance_texts])
    chosen = tokenize_pairs(pairs.choose(places), checkpoint.tokenizer, longest)
    return require_ratings(chosen, request.pairs, "to measure importance on")


def _describe_parses(path: Path, parses: Sequence[Sentence]) -> dict[str, Any]:
    return _describe(path, sentences=len(parses), arcs=sum(len(sentence.arcs) for sentence in parses))


def _describe(path: Path, **counts: int) -> dict[str, Any]:
    return {"name": path.name, "sha256": hash_file(path), **counts}
