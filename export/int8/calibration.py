"""Sees what values an encoder's products take on real text."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.int8.quantize import Range
from export.tokens import TextBatch, batches, pair_batches, tokenize
from model.encoder import Encoder

TEXTS = Path(__file__).parent / "calibration.txt"
HELD_OUT_TEXTS = Path(__file__).parent / "held_out.txt"
MOST_TEXTS = 4096
FEWEST_TEXTS = 16


def read_texts(path: Path) -> list[str]:
    """One text a line; empty lines are skipped, and lines after the 4,096th.

    Raises:
        SourceError: the file cannot be read, or holds fewer than 16 texts: ranges from so few would clip.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read as UTF-8 text: {error}") from error
    texts = [line for line in lines if line.strip()][:MOST_TEXTS]
    if len(texts) < FEWEST_TEXTS:
        raise SourceError(f"{path} holds {len(texts)} texts, one a line: at least {FEWEST_TEXTS} are needed")
    return texts


def text_batches(path: Path, tokenizer: Tokenizer, longest: int, total_heads: int = 0) -> list[TextBatch]:
    """The texts of a file as the network reads them, cut to `longest` tokens, in batches of similar length.

    Args:
        path: one text a line.
        tokenizer: of the network.
        longest: tokens of a text, special ones included.
        total_heads: heads whose attention weights a run over a batch holds in memory; 0 for none.

    Raises:
        SourceError: as `read_texts` and `tokenize` do, or no text holds a token that the model knows how to read.
    """
    batched = list(batches(tokenize(read_texts(path), tokenizer, longest), total_heads))
    if not batched:
        raise SourceError(f"{path} holds no text with a token of the model's vocabulary")
    return batched


def task_batches(path: Path, checkpoint: Checkpoint, *, with_weights: bool = False) -> list[TextBatch]:
    """The texts of a file as a checkpoint's task meets them: pairs where it takes pairs, else texts.

    Args:
        path: one text a line.
        checkpoint: the network and its tokenizer.
        with_weights: whether runs over the batches hold every layer's attention weights.

    Raises:
        SourceError: as `text_batches`.
    """
    longest = checkpoint.max_sequence_length
    heads = sum(checkpoint.encoder.config.num_heads) if with_weights else 0
    if checkpoint.pairs:
        pairs, wording = make_pairs(read_texts(path)), checkpoint.pair_wording
        worded = pairs if wording is None else [wording.wrap(pair) for pair in pairs]
        return pair_batches(worded, checkpoint.tokenizer, longest, heads)
    return text_batches(path, checkpoint.tokenizer, longest, heads)


def make_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """A pair a text, as a search makes them: the first half of a text with the whole of it, or with the next one."""
    pairs = []
    for place, text in enumerate(texts):
        words = text.split()
        query = " ".join(words[: (len(words) + 1) // 2])
        pairs.append((query, texts[(place + place % 2) % len(texts)]))
    return pairs


def see_ranges(encoder: Encoder, batched: Sequence[TextBatch]) -> Mapping[str, Range]:
    """Range of each channel of the places that `export.int8.quantize.quantize_encoder` asks for, by module name."""
    seen: dict[str, Range] = {}
    with ExitStack() as hooks, torch.inference_mode():
        for name, module in encoder.named_modules():
            if name.startswith("layers.") and name.endswith((".attention", ".attention.output", ".feed_forward")):
                hooks.callback(module.register_forward_pre_hook(_widen(seen, name)).remove)
        for batch in tqdm(batched, desc="calibrating", unit="batch", leave=False):
            encoder.use("sdpa")(batch.input_ids, batch.lengths, token_type_ids=batch.token_type_ids)
    return seen


def _widen(seen: dict[str, Range], name: str):  # type: ignore[no-untyped-def]  # torch's hook type is not exported
    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del module
        lowest, highest = inputs[0].amin(dim=0), inputs[0].amax(dim=0)  # [T, channels] -> [channels]
        if before := seen.get(name):
            lowest, highest = torch.minimum(before.lowest, lowest), torch.maximum(before.highest, highest)
        seen[name] = Range(lowest, highest)

    return hook
