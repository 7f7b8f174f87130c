import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from export.errors import SourceError
from export.weights import read_weights
from model.artifact import hash_file


def test_reads_one_file_as_float32(tmp_path: Path) -> None:
    tensors = {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "ids": torch.tensor([1, 2])}
    save_file(tensors, tmp_path / "model.safetensors")
    read, sha256 = read_weights(tmp_path)
    assert torch.equal(read["half"], torch.tensor([1.5, -2.0]))
    assert read["ids"].dtype == torch.int64
    assert sha256 == hash_file(tmp_path / "model.safetensors")


def shard(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_reads_shards(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "2.safetensors")
    shard(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})
    assert set(read_weights(tmp_path)[0]) == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "message"), [("../x.safetensors", "outside the folder"), ("gone.safetensors", "cannot be read")]
)
def test_refuses_shards_that_are_elsewhere_or_missing(tmp_path: Path, name: str, message: str) -> None:
    shard(tmp_path, {"a": name})
    with pytest.raises(SourceError, match=message):
        read_weights(tmp_path)


def test_refuses_a_corrupt_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(SourceError, match="cannot be read"):
        read_weights(tmp_path)


def test_refuses_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SourceError, match="only as a pickle"):
        read_weights(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"weight_map": []}'])
def test_refuses_a_malformed_index(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(SourceError, match=r"index.json is malformed: "):
        read_weights(tmp_path)
