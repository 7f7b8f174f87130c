from pathlib import Path

import huggingface_hub
import pytest

from export.errors import SourceError
from export.sources import DEFAULT_MODEL, DEFAULT_SHA256, find_folder, require_safetensors
from model.artifact import hash_file


def test_the_default_model_comes_from_its_package_with_the_published_hash() -> None:
    for folder in (find_folder(None), find_folder(DEFAULT_MODEL)):
        assert folder.id == DEFAULT_MODEL
        assert hash_file(folder.path / "model.safetensors") == folder.sha256 == DEFAULT_SHA256


def test_a_folder_is_named_after_itself(tmp_path: Path) -> None:
    assert find_folder(str(tmp_path)).id == tmp_path.name


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere", "nowhere", "a/b/c", "~/nowhere"])
def test_says_what_a_model_argument_may_be(model: str) -> None:
    with pytest.raises(SourceError, match="is not a folder, and not a Hugging Face id of the form owner/name"):
        find_folder(model)


def test_an_id_that_cannot_be_fetched_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="owner/name could not be fetched .*: check the network, or name a local"):
        find_folder("owner/name")


def test_fetches_only_text_and_safetensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(model: str, **options: object) -> str:
        asked.update(options, model=model)
        return str(tmp_path / "0123abc")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: ["config.json", "model.safetensors"])
    folder = find_folder("owner/name", "main")
    assert folder.revision == "0123abc"
    assert asked["revision"] == "main"
    assert asked["allow_patterns"] == ["*.json", "*.safetensors", "vocab.txt", "merges.txt"]


def test_refuses_a_hub_model_that_is_only_a_pickle_before_fetching_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: ["pytorch_model.bin"])
    with pytest.raises(SourceError, match="only as a pickle"):
        find_folder("owner/name")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json", "pytorch_model.bin"], "only as a pickle (pytorch_model.bin): loading one runs code"),
        (["config.json"], "m has no model.safetensors"),
    ],
)
def test_refuses_files_without_safetensors(files: list[str], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        require_safetensors(files, "m")
    assert message in str(caught.value)


def test_a_hub_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        huggingface_hub.get_session().get("http://127.0.0.1:1")  # the hub's own client raises, without its retries

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", refuse)
    with pytest.raises(SourceError, match=r"owner/name could not be fetched \(ConnectError\): check the network"):
        find_folder("owner/name")


def test_a_revision_of_what_has_none_is_refused(tmp_path: Path) -> None:
    for model in (None, str(tmp_path)):
        with pytest.raises(SourceError, match="--revision v1 is of a model on the hub"):
            find_folder(model, "v1")
