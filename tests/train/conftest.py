"""Texts for the tiny network, folders and files that runs read, and what a run wrote."""

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


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(draw_texts(96)) + "\n")
    return path
