"""How near do healed networks come to the whole one, and what is left of quality and gained in speed?

Cosine to the whole network's vectors over the sentences of rated pairs, each once; Spearman on the pairs; recall of
definitions by their words in an index that the whole network filled, as a share of its own. Speed is CPU time of a
batch of 8 on one thread, in turns with the whole. Pairs: a CSV without a header, sentence, sentence, rating (the STS
benchmark's format). Definitions: a CSV without a header, word, definition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.lib.command import new_file, parser_of, positive, program, whole
from benchmarks.lib.report import Table, emit, labels
from benchmarks.quality.formats import inner_product, read_definitions, recall
from benchmarks.quality.pairs import Vectors, embed, require_same_size
from benchmarks.quality.pruning import share_removed, time_in_turns
from export.heads.pairs import Pairs, read_pairs
from export.pruning.picture import Panel, draw_panels
from export.similarity import row_cosines
from model.artifact import Artifact

BATCH_SIZE = 8
COLUMNS = ("artifact", "heads", "removed %", "cosine mean", "first percentile", "worst", "spearman", "recall %", "x 8")
WHAT_IS_DRAWN = (
    ("Cosine to the whole network", "cosine mean"),
    ("Spearman x 100", "spearman"),
    (f"Times faster, batch {BATCH_SIZE}", "x 8"),
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """What every artifact is measured by: the whole network's vectors and what they are of."""

    whole: Path
    pairs: Pairs
    sentences: list[str]  # of the pairs, each once
    words: list[str]
    vectors: Vectors  # of the sentences
    definitions: Vectors
    own_recall: float
    seconds: float

    @classmethod
    def of(cls, whole: Path, pairs: Pairs, defined: Sequence[tuple[str, str]], seconds: float) -> "Measure":
        """Embeds with the whole network."""
        sentences = list(dict.fromkeys([*pairs.left, *pairs.right]))
        words = [word for word, _ in defined]
        vectors = embed(whole, [*sentences, *words, *(definition for _, definition in defined)])
        ends = (len(sentences), len(sentences) + len(words))
        of_sentences, of_words, definitions = np.split(vectors, ends)
        own_recall = recall(of_words.astype(np.float64), definitions.astype(np.float64), inner_product)
        return cls(whole, pairs, sentences, words, of_sentences, definitions, own_recall, seconds)

    def row(self, directory: Path, name: str) -> Row:
        """The cells of one artifact."""
        artifact = Artifact.open(directory)
        vectors, words = np.split(embed(directory, [*self.sentences, *self.words]), [len(self.sentences)])
        require_same_size(vectors, self.vectors, directory)
        cosines = row_cosines(vectors, self.vectors)
        found = recall(words.astype(np.float64), self.definitions.astype(np.float64), inner_product)
        faster = time_in_turns(self.whole, directory, self.sentences, self.seconds)[BATCH_SIZE][1]
        figures = (float(cosines.mean()), float(np.quantile(cosines, 0.01)), float(cosines.min()))
        described = (name, sum(artifact.manifest.config.num_heads))
        removed = 100 * share_removed(artifact, Artifact.open(self.whole))
        cells = (*described, removed, *figures, self._spearman(vectors), 100 * found / self.own_recall, faster)
        return dict(zip(COLUMNS, cells, strict=True))

    def _spearman(self, vectors: Vectors) -> float:
        place = {sentence: index for index, sentence in enumerate(self.sentences)}
        left, right = (vectors[[place[text] for text in side]] for side in (self.pairs.left, self.pairs.right))
        return 100 * float(spearmanr((left * right).sum(axis=1), self.pairs.ratings)[0])


def panels(whole: Row, pruned: Sequence[Row], healed: Sequence[Row]) -> list[Panel]:
    """A panel a figure: not healed and healed, against the share of heads removed, from the whole network on."""
    lines = (("not healed", "a", pruned), ("healed", "c", healed))
    return [
        Panel(
            title,
            [
                (name, kind, [(row["removed %"] / 100, row[column]) for row in (whole, *_by_share(rows))])
                for name, kind, rows in lines
                if rows
            ],
        )
        for title, column in WHAT_IS_DRAWN
    ]


def _by_share(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: float(row["removed %"]))


@program
def main() -> None:
    """Prints a row an artifact, then JSON; draws the picture where one is asked for."""
    parser = parser_of(__doc__, takes="about a minute an artifact")
    parser.add_argument("whole", type=Path, metavar="DIR", help="artifact of the whole network")
    parser.add_argument("--pruned", type=Path, nargs="+", default=[], metavar="DIR", help="artifacts that lost heads")
    parser.add_argument("--healed", type=Path, nargs="+", required=True, metavar="DIR", help="healed artifacts")
    parser.add_argument("--pairs", type=Path, required=True, metavar="CSV", help="rated pairs of sentences")
    parser.add_argument("--definitions", type=Path, required=True, metavar="CSV", help="words and their definitions")
    parser.add_argument("--words", type=whole, default=3_000, help="words to find, among as many definitions")
    parser.add_argument("--seconds", type=positive, default=2.0, help="CPU time a batch size and artifact")
    parser.add_argument("--plot", type=new_file, metavar="SVG", help="picture of cosine, Spearman and speed")
    arguments = parser.parse_args()
    directories = [arguments.whole, *arguments.pruned, *arguments.healed]
    for directory in directories:
        Artifact.open(directory)  # said before the first one takes its time
    defined = read_definitions(arguments.definitions, arguments.words)
    measure = Measure.of(arguments.whole, read_pairs(arguments.pairs), defined, arguments.seconds)
    names, table = labels(directories), Table("healing", "healed networks beside the whole one", COLUMNS)
    rows = [measure.row(directory, names[directory]) for directory in directories]
    for row in rows:
        table.add(**row)
    if arguments.plot:
        end = 1 + len(arguments.pruned)
        drawn = panels(rows[0], rows[1:end], rows[end:])
        arguments.plot.write_text(draw_panels("Healed and not healed", drawn), encoding="utf-8")
    emit("quality healing", [table], pairs=len(measure.pairs.ratings), own_recall=measure.own_recall)
