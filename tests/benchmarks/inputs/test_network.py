import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.inputs import network
from model.artifact import TOKENIZER
from model.config import EncoderConfig
from model.encoder import Encoder

BERT_BASE_PARAMETERS = 108_891_648  # BertModel of bert-base-uncased without its pooler: 109,482,240 - 768 * 769


def test_bert_base_is_bert_base() -> None:
    with torch.device("meta"):
        encoder = network.draw("bert-base")
    assert sum(parameter.numel() for parameter in encoder.parameters()) == BERT_BASE_PARAMETERS


def test_a_written_network_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SHAPES", {"small": (2, 2, 8)})
    encoder = network.draw("small")
    network.write(encoder, tmp_path / "folder")
    settings = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert settings.pop("model_type") == "polyhead"
    read = Encoder(EncoderConfig.from_dict(settings))
    read.load_state_dict(load_file(tmp_path / "folder" / "model.safetensors"))
    assert (tmp_path / "folder" / TOKENIZER).exists()
    for name, tensor in encoder.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name], tensor, rtol=0, atol=0)
