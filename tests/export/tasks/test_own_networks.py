"""Networks of our own shapes with a task: config.json says all of it, model.safetensors holds the encoder's state."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from export.checkpoint import read_checkpoint
from export.errors import UnsupportedModel
from export.sources import Folder
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, MultiVectorSettings, Projection, SparseSettings
from model.encoder import Encoder
from tests.export.conftest import write_json
from tests.networks import TINY, draw_weights

CONFIGS: list[EncoderConfig] = [
    replace(TINY, projections=(Projection(size=5),)),
    replace(TINY, task="classification", task_settings=ClassificationSettings(labels=("score",)), pooling="mean"),
    replace(TINY, task="sparse", task_settings=SparseSettings(tied=False, bias=False)),
    replace(TINY, task="multi_vector", task_settings=MultiVectorSettings(size=7, bias=True)),
]


def save(encoder: Encoder, tokenizer: Tokenizer, folder: Path) -> Folder:
    write_json(folder / "config.json", {"model_type": "polyhead", **encoder.config.to_dict()})
    save_file(encoder.state_dict(), folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Folder(folder, "own")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.task)
def test_a_network_with_a_task_is_read_as_saved(config: EncoderConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(config))
    found = read_checkpoint(save(encoder, tokenizer, tmp_path)).encoder
    assert found.config == config
    ids, lengths = torch.arange(16).reshape(2, 8), torch.tensor([8, 3])
    pair = found(ids, lengths).task_output, encoder(ids, lengths).task_output
    torch.testing.assert_close(*pair, atol=1e-6, rtol=0)


def test_it_is_not_exported_as_another_task(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save(draw_weights(Encoder(CONFIGS[1])), tokenizer, tmp_path)
    with pytest.raises(UnsupportedModel, match="says task classification: it cannot be exported as embedding"):
        read_checkpoint(folder, task="embedding")
