import json
from dataclasses import replace
from pathlib import Path

import pytest

from model.artifact import (
    GRAPH,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    TOKENIZER,
    Artifact,
    describe_files,
    read_manifest,
    write_manifest,
)
from model.manifest import ArtifactError, Defaults, Manifest, Source, manifest_bytes
from tests.networks import TINY


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / GRAPH).write_bytes(b"graph")
    (tmp_path / TOKENIZER).write_bytes(b"{}")
    manifest = Manifest(
        model="m",
        source=Source(id="m", revision="abc", sha256="1" * 64),
        config=TINY,
        precision="fp32",
        opset=24,
        inputs=("input_ids",),
        outputs=("pooled",),
        defaults=Defaults(pooling="mean", normalize=True, prompts={"query": "query: "}, default_prompt_name="query"),
        max_sequence_length=40,
        fused_attention={"ai.onnx.Attention": 3},
        parity={"pooled": 1e-7},
        files=describe_files(tmp_path),
        versions={"torch": "2"},
    )
    write_manifest(tmp_path, manifest)
    return tmp_path


def test_the_manifest_survives_a_round_trip(directory: Path) -> None:
    manifest = read_manifest(directory)
    assert Manifest.from_dict(manifest.to_dict()) == manifest
    assert manifest.config == TINY
    assert set(manifest.files) == {GRAPH, TOKENIZER}


def test_a_figure_that_is_not_finite_is_not_written(directory: Path) -> None:
    manifest = replace(read_manifest(directory), parity={"pooled": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifest_bytes(manifest)


def test_opens_an_untouched_artifact(directory: Path) -> None:
    artifact = Artifact.open(directory)
    assert artifact.path(GRAPH) == directory / GRAPH


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"grapH", "model.onnx has SHA-256 .*, the manifest says"), (b"graph!", "has 6 bytes, the manifest says 5")],
)
def test_refuses_a_changed_file(directory: Path, content: bytes, message: str) -> None:
    (directory / GRAPH).write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(directory)


def test_refuses_a_missing_file(directory: Path) -> None:
    (directory / TOKENIZER).unlink()
    with pytest.raises(ArtifactError, match="tokenizer.json is missing"):
        Artifact.open(directory)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", "..", ""])
def test_refuses_names_outside_the_directory(directory: Path, name: str) -> None:
    data = json.loads((directory / MANIFEST).read_bytes())
    data["files"][name] = {"sha256": "0" * 64, "size": 1}
    (directory / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match="only plain file names"):
        Artifact.open(directory)


@pytest.mark.parametrize("name", [GRAPH, TOKENIZER, MANIFEST])
def test_refuses_links_out_of_the_directory(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    outside = (directory / name).rename(tmp_path_factory.mktemp("outside") / name)
    (directory / name).symlink_to(outside)
    with pytest.raises(ArtifactError, match=f"{directory / name} is a link out of its directory"):
        Artifact.open(directory)


def test_takes_links_inside_the_directory_as_kubernetes_makes_them(directory: Path, tmp_path: Path) -> None:
    """`model.onnx -> ..data/model.onnx`, `..data -> ..2026_01_01`, and the directory itself reached through a link."""
    (directory / "..2026_01_01").mkdir()
    (directory / "..data").symlink_to("..2026_01_01")
    for name in (GRAPH, TOKENIZER, MANIFEST):
        (directory / name).rename(directory / "..2026_01_01" / name)
        (directory / name).symlink_to(f"..data/{name}")
    (directory / "link").symlink_to(directory)
    assert Artifact.open(directory / "link").path(GRAPH).read_bytes() == b"graph"


def test_refuses_a_huge_manifest_before_it_is_read(directory: Path) -> None:
    with (directory / MANIFEST).open("r+b") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(ArtifactError, match="manifest.json has .* bytes, at most"):
        read_manifest(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "manifest schema 99: this version reads 1"),
        ({"surprise": 1}, "unknown fields surprise"),
        ({"source": {}}, "malformed manifest"),
        ({"config": {"vocab_size": 1}}, "malformed manifest"),
        ({"files": [1]}, "malformed manifest"),
        ({"files": {}}, "lists no model.onnx"),
    ],
)
def test_refuses_a_manifest_it_does_not_understand(directory: Path, change: dict[str, object], message: str) -> None:
    data = {**json.loads((directory / MANIFEST).read_bytes()), **change}
    (directory / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(directory)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[]", "holds list, expected an object")],
)
def test_refuses_a_manifest_that_is_no_object(directory: Path, content: str, message: str) -> None:
    (directory / MANIFEST).write_text(content)
    with pytest.raises(ArtifactError, match=message):
        read_manifest(directory)


def test_says_how_to_make_an_artifact_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="python -m export"):
        read_manifest(tmp_path)
