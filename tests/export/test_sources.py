import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx2
import pytest
import torch
from huggingface_hub.errors import RevisionNotFoundError
from safetensors.torch import save_file

from export.errors import SourceError
from export.sources import DEFAULT_MODEL, DEFAULT_SHA256, find_folder, require_safetensors
from export.weights import read_weights
from model.artifact import hash_file


def test_the_default_model_comes_from_its_package_with_the_published_hash() -> None:
    for folder in (find_folder(None), find_folder(DEFAULT_MODEL)):
        assert folder.id == DEFAULT_MODEL
        assert hash_file(folder.path / "model.safetensors") == folder.sha256 == DEFAULT_SHA256


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere", "nowhere", "a/b/c", "~/nowhere", "~missing-user/a"])
def test_says_what_a_model_argument_may_be(model: str) -> None:
    with pytest.raises(SourceError, match="is not a folder, and not a Hugging Face id of the form owner/name"):
        find_folder(model)


def hub_listing(files: list[str]) -> SimpleNamespace:
    return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in files])


def test_fetches_only_text_and_safetensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(model: str, **options: object) -> str:
        asked.update(options, model=model)
        return str(tmp_path / "0123abc")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    listed = ["config.json", "model.safetensors"]
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: hub_listing(listed))
    assert find_folder("owner/name", "main").revision == "0123abc"
    assert asked["revision"] == "main"
    patterns = ["*.json", "*.safetensors", "*vocab.txt", "*merges.txt", "artifact.metadata", "*chat_template.jinja"]
    assert asked["allow_patterns"] == patterns
    files = ["config.json", "pytorch_model.bin", "onnx/model.onnx", "training_args.bin", "2_Dense/pytorch_model.bin"]
    others = ["2_Dense/model.safetensors", "3_Dense/pytorch_model.bin", "colbert_linear.pt"]
    listed = files + others
    assert find_folder("owner/name", allows_pickles=True).allows_pickles
    wanted = ["pytorch_model.bin", "3_Dense/pytorch_model.bin", "colbert_linear.pt"]
    assert asked.pop("allow_patterns") == patterns + wanted
    listed = ["pytorch_model.bin"]
    with pytest.raises(SourceError, match="only as a pickle"):
        find_folder("owner/name")
    assert "allow_patterns" not in asked  # nothing was fetched


def test_a_revision_that_the_hub_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = httpx2.Response(404, request=httpx2.Request("GET", "https://hub"))
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info", Mock(side_effect=RevisionNotFoundError("404", response=found))
    )
    with pytest.raises(SourceError, match="owner/name has no branch, tag or commit v9 on the hub"):
        find_folder("owner/name", "v9")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["config.json", "a_linear.pt", "colbert_linear.pt", "pytorch_model.bin", "training_args.bin"],
            "only as a pickle (pytorch_model.bin), which can run code, so it is refused: --allow-pickled-weights",
        ),
        (["1_Dense/pytorch_model.bin", "pytorch_model-1-of-2.bin"], "(pytorch_model-1-of-2.bin)"),
        (["pytorch_model.bin"], "--revision refs/pr/N"),
        (["config.json"], "m has no model.safetensors"),
        (["config.json", "onnx/model.onnx"], "no model.safetensors, only onnx/model.onnx: an export begins from"),
    ],
)
def test_refuses_files_without_safetensors(files: list[str], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        require_safetensors(files, "m")
    assert message in str(caught.value)


def test_a_folder_is_named_after_itself_and_has_no_revision(tmp_path: Path) -> None:
    assert find_folder(str(tmp_path)).id == tmp_path.name
    for model in (None, str(tmp_path)):
        with pytest.raises(SourceError, match="--revision v1 is of a model on the hub"):
            find_folder(model, "v1")


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


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"\xff" * 64, "cannot be read"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:53aa\nsize 90868376\n",
            "model.safetensors is Git LFS's pointer to the file, not the file: `git lfs pull` fetches it",
        ),
        ("pytorch_model.bin", b"", "only as a pickle"),
        *(
            ("pytorch_model.bin", content, "is no file of weights")
            for content in (b"\xff" * 64, b"PK\3\4" + b"\0" * 60)
        ),
        *((INDEX, content, r"index.json is malformed: ") for content in (b"{}", b"[]", b"{", b'{"weight_map": []}')),
    ],
)
def test_refuses_files_that_are_no_weights(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        read_weights(tmp_path, allows_pickles=bool(content))


def test_reads_tensors_from_pickles_that_are_allowed(tmp_path: Path) -> None:
    tensors = {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "part": torch.nn.Parameter(torch.ones(2))}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    read, sha256 = read_weights(tmp_path, allows_pickles=True)
    assert torch.equal(read["half"], torch.tensor([1.5, -2.0]))
    assert not read["part"].requires_grad
    assert sha256 == hash_file(tmp_path / "pytorch_model.bin")
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "pytorch_model-1.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"half": "pytorch_model-1.bin"}}')
    assert set(read_weights(tmp_path, allows_pickles=True)[0]) == set(tensors)
    save_file({"other": torch.ones(1)}, tmp_path / "model.safetensors")
    assert set(read_weights(tmp_path, allows_pickles=True)[0]) == {"other"}


class Runs:
    """A pickle of it runs code when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Runs(), "refuses it (UnpicklingError)"),
        ([torch.ones(1)], "holds None, a list: expected plain tensors by name"),
        ({"state_dict": {"a": torch.ones(1)}, "b": torch.ones(1)}, "holds state_dict, a dict: expected"),
        ({1: torch.ones(1)}, "holds 1, a Tensor: expected plain tensors"),
        ({"a": torch.ones(2).to_sparse()}, "holds a, a Tensor: expected plain tensors"),
    ],
)
def test_refuses_pickles_of_anything_but_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(held, tmp_path / "pytorch_model.bin")
    with pytest.raises(SourceError, match=re.escape(message)):
        read_weights(tmp_path, allows_pickles=True)
    assert not (tmp_path / "ran").exists()
