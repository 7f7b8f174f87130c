"""Sees what values an encoder's products take on real text."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from export.errors import SourceError
from export.int8.quantize import Range
from model.encoder import Encoder

TEXTS = Path(__file__).parent / "calibration.txt"
HELD_OUT_TEXTS = Path(__file__).parent / "held_out.txt"
MOST_TEXTS = 4096
BATCH_TEXTS = 16


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
    if len(texts) < BATCH_TEXTS:
        raise SourceError(f"{path} holds {len(texts)} texts, one a line: at least {BATCH_TEXTS} are needed")
    return texts


def token_batches(
    texts: Sequence[str], tokenizer: Tokenizer, longest: int, size: int = BATCH_TEXTS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Texts as batches of similar length: `input_ids [B, S]` and `lengths [B]`, shortest texts first."""
    rows = sorted((truncate(tokenizer.encode(text).ids, longest) for text in texts), key=len)
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        input_ids = pad_sequence([torch.tensor(row, dtype=torch.int64) for row in batch], batch_first=True)
        yield input_ids, torch.tensor([len(row) for row in batch])


def truncate(ids: list[int], longest: int) -> list[int]:
    """At most `longest` ids; the closing special token is kept."""
    return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]


def see_ranges(encoder: Encoder, batches: Sequence[tuple[Tensor, Tensor]]) -> Mapping[str, Range]:
    """Range of each channel of the places that `export.int8.quantize.quantize_encoder` asks for, by module name."""
    seen: dict[str, Range] = {}
    with ExitStack() as hooks, torch.inference_mode():
        for name, module in encoder.named_modules():
            if name.startswith("layers.") and name.endswith((".attention", ".attention.output", ".feed_forward")):
                hooks.callback(module.register_forward_pre_hook(_widen(seen, name)).remove)
        for input_ids, lengths in tqdm(batches, desc="calibrating", unit="batch", leave=False):
            encoder.use("sdpa")(input_ids, lengths)
    return seen


def _widen(seen: dict[str, Range], name: str):  # type: ignore[no-untyped-def]  # torch's hook type is not exported
    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del module
        lowest, highest = inputs[0].amin(dim=0), inputs[0].amax(dim=0)  # [T, channels] -> [channels]
        if before := seen.get(name):
            lowest, highest = torch.minimum(before.lowest, lowest), torch.maximum(before.highest, highest)
        seen[name] = Range(lowest, highest)

    return hook
