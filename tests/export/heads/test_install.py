import json
from pathlib import Path

import pytest

import export.heads.install
from export.heads.install import install_files
from model.artifact import HEADS, HEADS_PAGE, Artifact, hash_file


def test_the_manifest_lists_what_was_put_in_and_the_service_opens_it(planted_artifact: Path) -> None:
    before = Artifact.open(planted_artifact).manifest
    for text in (b"{}", b'{"second": true}'):
        installed = install_files(planted_artifact, {HEADS: text, HEADS_PAGE: b"<p>"})
        opened = Artifact.open(planted_artifact)
        assert opened.manifest == installed
        assert opened.manifest.files[HEADS].sha256 == hash_file(planted_artifact / HEADS)
        assert opened.manifest.files[HEADS].size == len(text)
        assert {**opened.manifest.files, **before.files} == opened.manifest.files
    assert (planted_artifact / HEADS).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("step", range(4))
def test_whoever_is_interrupted_leaves_an_artifact_that_opens(
    planted_artifact: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    install_files(planted_artifact, {HEADS: b"{}", HEADS_PAGE: b"<p>"})
    write, calls = export.heads.install.write_whole, iter(range(10))

    def interrupted(path: Path, content: bytes) -> None:
        if next(calls) == step:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(export.heads.install, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install_files(planted_artifact, {HEADS: b'{"new": 1}', HEADS_PAGE: b"<p>new"})
    manifest = Artifact.open(planted_artifact).manifest
    if HEADS in manifest.files:
        assert json.loads((planted_artifact / HEADS).read_bytes()) == {}


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        export.heads.install.write_whole(tmp_path / "x", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"
