"""From texts to what networks are fed: token ids, batches of similar length, and inputs under the graph's names."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from export.errors import SourceError
from model.analysis.arrays import BoolArray, IntArray
from model.analysis.words import punctuation_mask
from model.artifact import ATTENTION_LAYERS, HEAD_GATES, INPUT_IDS, LENGTHS, NORM_LAYERS, SEEN_LENGTHS, TOKEN_TYPE_IDS
from model.config import EncoderConfig
from model.encoder import Encoder, EncoderOutput

if TYPE_CHECKING:
    from export.checkpoint import Checkpoint


Row = TypeVar("Row", "TokenizedText", Encoding)
Inputs = dict[str, NDArray[np.generic]]
TEXTS = Path(__file__).parent / "int8" / "calibration.txt"
HELD_OUT_TEXTS = TEXTS.with_name("held_out.txt")
MOST_TEXTS = 4096
FEWEST_TEXTS = 16
MOST_BATCH_TOKENS = 1024
MOST_WEIGHT_BYTES = 128 << 20  # attention weights that one batch materialises, over all layers


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the network reads it: `ids [n]`, `special [n]`, `punctuation [n]`, `offsets [n, 2]` in characters."""

    place: int
    ids: IntArray
    special: BoolArray
    punctuation: BoolArray
    offsets: IntArray

    def at(self, place: int) -> "TokenizedText":
        """The same text under another number."""
        return replace(self, place=place)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts of similar length, or pairs of them: int64 [B, S], right-padded, and [B]; token types None for all 0.

    `texts` are the texts themselves; none of pairs.
    """

    input_ids: Tensor
    lengths: Tensor
    texts: tuple[TokenizedText, ...] = ()
    token_type_ids: Tensor | None = None


def read_texts(path: Path) -> list[str]:
    """One text a line; empty lines are skipped, and lines after the 4,096th.

    Raises:
        SourceError: the file cannot be read, or holds fewer than 16 texts: ranges from so few would clip.
    """
    texts = list(islice(each_line(path), MOST_TEXTS))
    if len(texts) < FEWEST_TEXTS:
        raise SourceError(f"{path} holds {len(texts)} texts, one a line: at least {FEWEST_TEXTS} are needed")
    return texts


def each_line(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file that hold anything; they end at line feeds alone, so a text may hold U+2028.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as lines:
            yield from (line.rstrip("\r\n") for line in lines if line.strip())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is no UTF-8 text: {error.reason}") from error


def make_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """A pair a text, as a search makes them: the first half of a text with the whole of it, or with the next one."""
    pairs = []
    for place, text in enumerate(texts):
        words = text.split()
        query = " ".join(words[: (len(words) + 1) // 2])
        pairs.append((query, texts[(place + place % 2) % len(texts)]))
    return pairs


def text_batches(path: Path, tokenizer: Tokenizer, longest: int, total_heads: int = 0) -> list[TextBatch]:
    """The texts of a file as the network reads them, cut to `longest` tokens, special ones included, in batches.

    `total_heads` are those whose attention weights a run over a batch holds in memory. A SourceError is as `read_texts`
    and `tokenize` raise it, or no text holds a token that the model knows how to read.
    """
    batched = list(batches(tokenize(read_texts(path), tokenizer, longest), total_heads))
    if not batched:
        raise SourceError(f"{path} holds no text with a token of the model's vocabulary")
    return batched


def task_batches(path: Path, checkpoint: "Checkpoint", *, with_weights: bool = False) -> list[TextBatch]:
    """The texts of a file as a checkpoint's task meets them: pairs where it takes pairs, else texts of `text_batches`.

    `with_weights` says that runs over the batches hold every layer's attention weights.
    """
    longest = checkpoint.max_sequence_length
    heads = sum(checkpoint.encoder.config.num_heads) if with_weights else 0
    if checkpoint.pairs:
        pairs, wording = make_pairs(read_texts(path)), checkpoint.pair_wording
        worded = pairs if wording is None else wording.wrap(pairs)
        return pair_batches(worded, checkpoint.tokenizer, longest, heads)
    return text_batches(path, checkpoint.tokenizer, longest, heads)


def tokenize(texts: Sequence[str], tokenizer: Tokenizer, longest: int) -> list[TokenizedText]:
    """Every text with at least one ordinary token, cut to `longest` tokens; `place` is its index among `texts`.

    Raises:
        SourceError: no ordinary token fits into `longest`.
    """
    if longest <= tokenizer.num_special_tokens_to_add(is_pair=False):  # the tokenizer would not cut at all
        raise SourceError(f"texts cut to {longest} tokens hold nothing but the tokenizer's special ones")
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(longest)
    tokenized = [_tokenized(place, text, cutting.encode(text)) for place, text in enumerate(texts)]
    return [text for text in tokenized if not text.special.all()]


def _tokenized(place: int, text: str, encoding: Encoding) -> TokenizedText:
    special = np.array(encoding.special_tokens_mask, dtype=np.bool_)
    pieces = [text[start:end].strip() for start, end in encoding.offsets]
    return TokenizedText(
        place,
        np.array(encoding.ids, dtype=np.int64),
        special,
        punctuation_mask(pieces, special),
        np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2),
    )


def batches(texts: Sequence[TokenizedText], total_heads: int) -> Iterator[TextBatch]:
    """Batches, shortest texts first, bounded in tokens and in the bytes of their attention weights."""
    return map(collate, _bounded(texts, total_heads))


def _bounded(rows: Sequence[Row], total_heads: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        tokens = (len(batch) + 1) * len(row.ids)
        if batch and (tokens > MOST_BATCH_TOKENS or 4 * tokens * len(row.ids) * total_heads > MOST_WEIGHT_BYTES):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def pair_batches(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, longest: int, total_heads: int
) -> list[TextBatch]:
    """Pairs as the tokenizer makes them, the longer text cut first, in batches of similar length."""
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(longest, strategy="longest_first")
    made = []
    for rows in _bounded([cutting.encode(*pair) for pair in pairs], total_heads):
        ids, types = _pad(row.ids for row in rows), _pad(row.type_ids for row in rows)
        made.append(TextBatch(ids, torch.tensor([len(row.ids) for row in rows]), token_type_ids=types))
    return made


def collate(texts: Sequence[TokenizedText]) -> TextBatch:
    """Texts as one batch, in their order."""
    return TextBatch(_pad(text.ids for text in texts), torch.tensor([len(text.ids) for text in texts]), tuple(texts))


def _pad(rows: Iterable[Any]) -> Tensor:
    """Rows of numbers, int64 [B, S], with zeros behind the shorter ones."""
    return pad_sequence([torch.as_tensor(row, dtype=torch.int64) for row in rows], batch_first=True)


def graph_inputs(
    config: EncoderConfig,
    input_ids: NDArray[np.integer],
    lengths: NDArray[np.integer],
    *,
    layers: Collection[int] = (),
    token_type_ids: NDArray[np.integer] | None = None,
    seen_lengths: NDArray[np.integer] | None = None,
) -> Inputs:
    """The inputs of one batch, int64 [B, S] and [B], without gates on heads.

    `layers` are those whose attention weights and value norms are wanted. For a network that takes them there are
    `token_type_ids`, int64 [B, S], None for all 0, and `seen_lengths`, int64 [B], None for `lengths`.
    """
    wanted = np.isin(np.arange(config.num_layers), list(layers))
    inputs: Inputs = {INPUT_IDS: input_ids, LENGTHS: lengths, ATTENTION_LAYERS: wanted, NORM_LAYERS: wanted}
    if config.type_vocab_size:
        inputs[TOKEN_TYPE_IDS] = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    if config.has_unseen_tokens:
        inputs[SEEN_LENGTHS] = lengths if seen_lengths is None else seen_lengths
    return inputs


def batch_inputs(config: EncoderConfig, batch: TextBatch, *, layers: Collection[int] = ()) -> Inputs:
    """The inputs of a batch of texts or pairs, without gates on heads; `layers` as of `graph_inputs`."""
    types = None if batch.token_type_ids is None else batch.token_type_ids.numpy()
    return graph_inputs(config, batch.input_ids.numpy(), batch.lengths.numpy(), layers=layers, token_type_ids=types)


def run_encoder(encoder: Encoder, inputs: Inputs) -> EncoderOutput:
    """What the PyTorch encoder gives for what a graph is fed."""
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.inference_mode():
        output: EncoderOutput = encoder(
            tensors[INPUT_IDS],
            tensors[LENGTHS],
            token_type_ids=tensors.get(TOKEN_TYPE_IDS),
            head_gates=tensors.get(HEAD_GATES),
            norm_layers=tensors[NORM_LAYERS],
            seen_lengths=tensors.get(SEEN_LENGTHS),
        )
    return output
