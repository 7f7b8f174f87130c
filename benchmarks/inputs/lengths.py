"""How long are the texts that the other commands use?"""

from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
from tokenizers import Tokenizer

from benchmarks.lib.command import CannotMeasure, parser_of, program, seed, whole
from benchmarks.lib.report import Table, emit
from benchmarks.lib.texts import Corpus, fingerprint, load_texts


def histogram(corpus: Corpus, lengths: list[int]) -> Table:
    """How many texts fall into each range of token counts, and their share of all tokens."""
    edges = [0, 8, 16, 32, 64, 128, 256, 512, 1 << 30]
    title = f"{corpus}: {len(lengths)} texts, {np.mean(lengths):.1f} tokens on average"
    table = Table(corpus, title, ("tokens", "texts", "%"))
    counts, _ = np.histogram(lengths, bins=edges)
    for (low, high), count in zip(pairwise(edges), counts.tolist(), strict=True):
        label = f"{low}-{high - 1}" if high <= 512 else f"{low} and more"
        table.add(**{"tokens": label, "texts": count, "%": 100 * count / len(lengths)})
    return table


@program
def main() -> None:
    """Prints both corpora's length histograms, in tokens of an artifact's tokenizer, before any truncation."""
    parser = parser_of(__doc__, takes="seconds")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of the model")
    parser.add_argument("--count", type=whole, default=2000, help="texts of each corpus")
    parser.add_argument("--seed", type=seed, default=0, help="of the sample of texts")
    arguments = parser.parse_args()
    tokenizer = _read_tokenizer(arguments.tokenizer)
    tables, prints = [], {}
    for corpus in get_args(Corpus):
        texts = load_texts(corpus, arguments.count, arguments.seed)
        tables.append(histogram(corpus, [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]))
        prints[corpus] = fingerprint(texts)
    emit("inputs lengths", tables, fingerprints=prints)


def _read_tokenizer(path: Path) -> Tokenizer:
    """One that neither pads nor truncates."""
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise CannotMeasure(f"{path} cannot be read as a tokenizer.json: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
