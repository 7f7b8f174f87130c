import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import model.artifact
from export.checkpoint import Checkpoint
from model.artifact import (
    FURTHER_OUTPUTS,
    GRAPH,
    HEADS,
    HEADS_PAGE,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    OPENVINO,
    TOKENIZER,
    Artifact,
    ArtifactError,
    FileEntry,
    Manifest,
    describe_files,
    hash_file,
    identity,
    install_files,
    manifest_bytes,
    read_manifest,
)
from model.config_parts import ClassificationSettings
from tests.export.conftest import write_artifact
from tests.networks import TINY


@pytest.fixture
def directory(tmp_path: Path, tiny_checkpoint: Checkpoint) -> Path:
    return write_artifact(tmp_path / "artifact", tiny_checkpoint)


def test_the_manifest_survives_a_round_trip(directory: Path) -> None:
    manifest = read_manifest(directory)
    assert Manifest.from_dict(manifest.to_dict()) == manifest
    assert manifest.config == TINY
    assert set(manifest.files) == {GRAPH, TOKENIZER}
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifest_bytes(replace(manifest, parity={"pooled": float("nan")}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (GRAPH, b"grapH", "model.onnx has SHA-256 .*, the manifest says"),
        (GRAPH, b"graph!", "has 6 bytes, the manifest says 5"),
        (TOKENIZER, None, "tokenizer.json is missing"),
        (MANIFEST, b" " * (MAX_MANIFEST_BYTES + 1), "manifest.json has .* bytes, at most"),  # it is not read
        (MANIFEST, b"{", "is not JSON"),
        (MANIFEST, b"[" * 100_000, "is not JSON"),
        (MANIFEST, b'{"model": "\\ud800"}', "is not JSON: .* surrogates not allowed"),
        (MANIFEST, b"[]", "holds list, expected an object"),
        (MANIFEST, None, "polyhead export"),
    ],
)
def test_refuses_a_changed_or_a_missing_file(directory: Path, name: str, content: bytes | None, message: str) -> None:
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(directory)


@pytest.mark.parametrize("name", [GRAPH, TOKENIZER, MANIFEST])
def test_refuses_links_out_of_it(directory: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
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


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", "..", ""])
def test_refuses_names_outside_the_directory(directory: Path, name: str) -> None:
    data = json.loads((directory / MANIFEST).read_bytes())
    data["files"][name] = {"sha256": "0" * 64, "size": 1}
    (directory / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match="only plain file names"):
        Artifact.open(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "manifest schema 99: this version reads 1"),
        ({"surprise": 1}, "unknown fields surprise"),
        ({"source": {}}, "malformed manifest: source.id is missing"),
        ({"source": {"id": "m", "revision": None, "sha256": "", "at": 1}}, "source.at is unknown"),
        ({"config": {"vocab_size": 1}}, "malformed manifest: incomplete encoder configuration: .* is missing"),
        ({"files": {GRAPH: None}}, "files.model.onnx is None: expected an object"),
        ({"files": {GRAPH: {"sha256": "", "size": "5"}}}, "files.model.onnx.size is '5': expected a whole number"),
        ({"opset": True}, "opset is True: expected a whole number"),
        ({"max_sequence_length": 0}, "max_sequence_length is 0: expected a whole number of at least 1"),
        ({"outputs": [1]}, r"outputs\[0\] is 1: expected a text"),
        ({"defaults": {"pooling": "mean", "normalize": "yes"}}, "defaults.prompts is missing"),
        (
            {"defaults": {"pooling": "mean", "normalize": 1, "prompts": {}, "default_prompt_name": None}},
            "defaults.normalize is 1: expected true or false",
        ),
        ({"parity": []}, r"parity is \[\]: expected an object"),
        ({"pair_wording": {"before": ["a"], "after": ["b", "c"]}}, r"pair_wording.before is \['a'\]: expected a list"),
        ({"vector_ranges": {"minimum": [0, "1"], "maximum": [1]}}, r"vector_ranges.minimum\[1\] is '1': expected a"),
        ({"files": {}}, "lists no model.onnx"),
    ],
)
def test_refuses_a_manifest_it_does_not_understand(directory: Path, change: dict[str, object], message: str) -> None:
    (directory / MANIFEST).write_text(json.dumps({**json.loads((directory / MANIFEST).read_bytes()), **change}))
    with pytest.raises(ArtifactError, match=f"^{directory / MANIFEST}.*{message}"):
        Artifact.open(directory)


def test_the_manifest_lists_what_was_put_in_and_the_service_opens_it(directory: Path) -> None:
    before = Artifact.open(directory).manifest
    for text in (b"{}", b'{"second": true}'):
        installed = install_files(directory, {HEADS: text, HEADS_PAGE: b"<p>"})
        opened = Artifact.open(directory)
        assert opened.manifest == installed
        assert opened.manifest.files[HEADS].sha256 == hash_file(directory / HEADS)
        assert opened.manifest.files[HEADS].size == len(text)
        assert {**opened.manifest.files, **before.files} == opened.manifest.files
    assert (directory / HEADS).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("step", range(4))
def test_whoever_is_interrupted_leaves_an_artifact_that_opens(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    install_files(directory, {HEADS: b"{}", HEADS_PAGE: b"<p>"})
    write, calls = model.artifact.write_whole, iter(range(10))

    def interrupted(path: Path, content: bytes) -> None:
        if next(calls) == step:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(model.artifact, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install_files(directory, {HEADS: b'{"new": 1}', HEADS_PAGE: b"<p>new"})
    manifest = Artifact.open(directory).manifest
    if HEADS in manifest.files:
        assert json.loads((directory / HEADS).read_bytes()) == {}


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"old")
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "no space left on device")))
    with pytest.raises(OSError, match=f"no space left on device: '{tmp_path / 'x'}'"):
        model.artifact.write_whole(tmp_path / "x", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_identity_tells_networks_of_one_source_apart(directory: Path) -> None:
    """Whole, pruned and distilled networks have one source; so has an export that cuts texts earlier."""
    whole = read_manifest(directory)
    (directory / GRAPH).write_bytes(b"pruned")
    pruned = replace(whole, files=describe_files(directory))
    shorter = replace(whole, max_sequence_length=20)
    prompted = replace(whole, defaults=replace(whole.defaults, prompts={"query": "query: "}))
    by_default = replace(whole, defaults=replace(prompted.defaults, default_prompt_name="query"))
    assert len({identity(one) for one in (whole, pruned, shorter, prompted, by_default)}) == 5
    tabled = replace(whole, files={**whole.files, FURTHER_OUTPUTS: FileEntry(sha256="0" * 64, size=1)})
    in_bf16 = replace(whole, engine=OPENVINO, precision="bf16")  # the graph is the same, in float32
    assert len({identity(one) for one in (whole, tabled, in_bf16, replace(in_bf16, precision="fp32"))}) == 4
    scored = [
        replace(whole, config=replace(TINY, task="classification", task_settings=settings))
        for settings in (
            ClassificationSettings(labels=("no", "yes")),
            ClassificationSettings(labels=("yes", "no")),
            ClassificationSettings(labels=("no", "yes"), activation="softmax"),
        )
    ]
    assert len({identity(one) for one in (whole, *scored)}) == 4
    named = replace(whole, model="other", versions={}, parity={}, source=replace(whole.source, revision="def"))
    assert identity(named) == identity(whole)
    (directory / "heads.json").write_bytes(b"{}")
    (directory / GRAPH).write_bytes(b"graph")
    assert identity(replace(whole, files=describe_files(directory))) == identity(whole)
