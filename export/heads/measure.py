"""The passes over text that the report is made from, each a stream of batches with a progress bar."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from export.heads.corpus import Sentence, TokenizedPairs
from export.heads.importance import drift, embed, embed_without_each, jacobian, loss_gradient, spearman_loss
from export.heads.intervals import Estimate, estimate
from export.heads.relations import Accuracy, RelationScores
from export.heads.statistics import Capture, CorpusStatistics, HeadsOfText, Redundancy, describe_redundancy
from export.similarity import pair_cosines
from export.texts import TokenizedText, batches, tokenize
from model.analysis.arrays import Float64Array
from model.analysis.statistics import jensen_shannon
from model.encoder import Encoder
from model.initialise import make_untrained

MOST_DIVERGENCE_TEXTS = 256  # pairs of heads times weights: 2,556 pairs a text for 72 heads
MOST_VARIED_TEXTS = 500  # whose first positions are kept: 72 heads take 14 MB


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What heads do on a corpus: statistics by name, redundancy, and the control's divergences [H, H]."""

    texts: int
    tokens: int
    statistics: Mapping[str, Estimate]
    redundancy: Redundancy
    control_divergences: Float64Array


def measure_behaviour(encoder: Encoder, texts: Sequence[TokenizedText]) -> Behaviour:
    """Statistics and redundancy of every head over tokenised texts."""
    occurrences = Counter(token for text in texts for token in text.ids.tolist())
    statistics = CorpusStatistics(occurrences, encoder.config)
    varied, compared = spread(texts, MOST_VARIED_TEXTS), spread(texts, MOST_DIVERGENCE_TEXTS)
    heads_altogether = sum(encoder.config.num_heads)
    divergences, control = np.zeros((2, heads_altogether, heads_altogether))
    for text, heads in each_text(encoder, texts, "statistics"):
        statistics.add(text, heads, keep_corner=text.place in varied)
        if text.place in compared:
            divergences += jensen_shannon(heads.weights)
    untrained = make_untrained(encoder.config)
    for _, heads in each_text(untrained, [text for text in texts if text.place in compared], "control"):
        control += jensen_shannon(heads.weights)
    return Behaviour(
        texts=len(texts),
        tokens=sum(len(text.ids) for text in texts),
        statistics=statistics.estimates(),
        redundancy=describe_redundancy(divergences / len(compared), len(compared)),
        control_divergences=control / len(compared),
    )


def measure_relations(
    encoder: Encoder, sentences: Sequence[Sentence], tokenizer: Tokenizer, longest: int
) -> Iterator[Mapping[str, tuple[Accuracy, Accuracy]]]:
    """Accuracies of every head on every relation: of the network, and of the untrained control."""
    texts = tokenize([sentence.text for sentence in sentences], tokenizer, longest)
    for network, name in ((encoder, "relations"), (make_untrained(encoder.config), "relations, control")):
        scores = RelationScores(sentences, sum(encoder.config.num_heads))
        for text, heads in each_text(network, texts, name):
            scores.add(text, heads.weights)
        yield scores.accuracies()


def measure_importance(
    encoder: Encoder, texts: Sequence[TokenizedText], pairs: TokenizedPairs | None
) -> dict[str, Estimate]:
    """Importance of every head by the definitions of `export.heads.importance`, except `output_norm`.

    Texts of rated pairs take the place of `texts`.
    """
    texts = pairs.texts if pairs else list(texts)
    whole = embed(encoder, texts)
    drifts, cosines = [], []
    for without in embed_without_each(encoder, texts):
        drifts.append(drift(without, whole))
        if pairs:
            cosines.append(pair_cosines(without))
    found = {"leave_one_out": estimate(np.stack(drifts, axis=1)), "jacobian": jacobian(encoder, texts)}
    if pairs:
        found["spearman_loss"] = spearman_loss(pair_cosines(whole), np.stack(cosines, axis=1), pairs.ratings)
        found["loss_gradient"] = loss_gradient(encoder, pairs)
    return {name: mean for name, mean in found.items() if mean}


def each_text(
    encoder: Encoder, texts: Sequence[TokenizedText], name: str
) -> Iterator[tuple[TokenizedText, HeadsOfText]]:
    """Every text with its heads, a batch in memory at a time."""
    capture = Capture(encoder)
    with tqdm(total=sum(len(text.ids) for text in texts), desc=name, unit="token", leave=False) as bar:
        for batch in batches(texts, sum(encoder.config.num_heads)):
            yield from zip(batch.texts, capture.run(batch), strict=True)
            bar.update(int(batch.lengths.sum()))


def spread(texts: Sequence[TokenizedText], most: int) -> set[int]:
    """Places of at most `most` texts, evenly over the sample."""
    chosen = min(most, len(texts))
    return {texts[index * len(texts) // chosen].place for index in range(chosen)}
