import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from export.checkpoint import Checkpoint, read_checkpoint
from export.sources import Folder
from export.texts import TokenizedText, tokenize
from tests.networks import WORDS
from train.folder import write_network


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 2 to 10 of the tiny vocabulary's words."""
    generator = np.random.default_rng(seed)
    words = [word for word in WORDS if word.isalpha()]
    return [" ".join(generator.choice(words, generator.integers(2, 11))) for _ in range(count)]


def read_back(folder: Path) -> Checkpoint:
    """What `export` reads of a folder that a run wrote."""
    return read_checkpoint(Folder(folder, folder.name))


@pytest.fixture(scope="session")
def texts(tokenizer: Tokenizer) -> list[TokenizedText]:
    return tokenize(draw_texts(200), tokenizer, 40)


@pytest.fixture
def tiny_folder(tmp_path: Path, tiny_checkpoint: Checkpoint) -> Path:
    """The tiny network as a folder."""
    write_network(tmp_path / "tiny", tiny_checkpoint.encoder, tiny_checkpoint)
    return tmp_path / "tiny"


def write_rows(path: Path, *columns: Iterable[object]) -> Path:
    """A file of comma-separated rows."""
    path.write_text("".join(f"{','.join(map(str, row))}\n" for row in zip(*columns, strict=False)))
    return path


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "texts.txt", draw_texts(96))


@pytest.fixture
def rated_file(tmp_path: Path) -> Path:
    """Pairs of the same texts and more, with ratings from 0 to 4."""
    return write_rows(tmp_path / "rated.csv", draw_texts(96), draw_texts(96, seed=1), itertools.cycle(range(5)))
