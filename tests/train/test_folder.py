import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from export.checkpoint import Checkpoint
from export.errors import SourceError
from model.config_parts import ClassificationSettings, MultiVectorSettings, Projection, SparseSettings
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from tests.train.conftest import read_back
from train.errors import RunError
from train.folder import RECORD, complete_network, load_checkpoint, require_folder, save_checkpoint, write_network
from train.settings import CHECKPOINT

NETWORKS = {
    "embedding": TINY,
    "pooled otherwise": replace(TINY, pooling="last", projections=(Projection(size=7),)),
    "alibi, cut": replace(
        TINY, num_heads=(2, 3), attention_positions="alibi", original_heads=4, kept_heads=((0, 3), (0, 1, 2))
    ),
    "no output bias": replace(TINY, output_bias=False),
    "classification": replace(TINY, task="classification", task_settings=ClassificationSettings(labels=("a", "b"))),
    "shared layers": replace(TINY, num_heads=(4, 4, 4), shared_layers=(0, 0, 2)),
    "sparse": replace(TINY, task="sparse", task_settings=SparseSettings()),
    "multi_vector": replace(TINY, task="multi_vector", task_settings=MultiVectorSettings(size=5)),
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "pooled otherwise": {"normalize": False, "unit_length": False, "similarity": "dot"},
    "alibi, cut": {"normalize": False},
}


def assert_same(found: Encoder, expected: Encoder) -> None:
    """But for the head dropout, which is training's."""
    assert found.config == replace(expected.config, head_dropout=0.0)
    assert found.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in expected.state_dict().items())


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_comes_back_to_the_bit(network: str, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(replace(NETWORKS[network], head_dropout=0.2)))
    defaults = replace(
        tiny_checkpoint.defaults,
        pooling=encoder.config.pooling,
        prompts={"query": "find: "},
        default_prompt_name="query",
        **DEFAULTS.get(network, {}),
    )
    like = replace(tiny_checkpoint, max_sequence_length=31, defaults=defaults, examples=("the cat",))
    write_network(tmp_path / "made", encoder, like)
    back = read_back(tmp_path / "made")
    assert_same(back.encoder, encoder)
    assert back.tokenizer.to_str() == like.tokenizer.to_str()
    assert back.max_sequence_length == 31
    assert back.examples == ("the cat",)
    if encoder.config.task == "embedding":
        assert back.defaults == defaults
    assert back.pairs == (encoder.config.task == "classification")
    if back.pairs:
        assert back.tokenizer.encode("the cat", "sat").type_ids == like.tokenizer.encode("the cat", "sat").type_ids


def test_examples_that_are_no_texts_are_refused(tiny_folder: Path) -> None:
    described = json.loads((tiny_folder / "config.json").read_bytes())
    for examples in ("the cat", [1]):
        (tiny_folder / "config.json").write_text(json.dumps({**described, "examples": examples}))
        with pytest.raises(SourceError, match="gives examples of .*: expected a list of texts"):
            read_back(tiny_folder)


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, {"a": torch.ones(2)}, {"step": 1})
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(RunError, match="No space left on device.*make room, and go on with --resume"):
        save_checkpoint(tmp_path, {"a": torch.zeros(2)}, {"step": 2})
    assert load_checkpoint(tmp_path)[1] == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    for content in (b"", b"\x80\x04not a checkpoint", b"\x00" * 64):
        (tmp_path / CHECKPOINT).write_bytes(content)
        with pytest.raises(RunError, match=r"checkpoint.safetensors cannot be read"):
            load_checkpoint(tmp_path)


def test_folders_that_hold_something_are_not_written_into(tmp_path: Path) -> None:
    require_folder(tmp_path / "new", is_resumed=False)
    require_folder(tmp_path, is_resumed=False)
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "file").touch()
    for place in ("nowhere", "file"):
        with pytest.raises(PermissionError, match=f"{place} is no directory that can be written to"):
            require_folder(tmp_path / place / "new", is_resumed=False)
        (tmp_path / place).unlink()
    with pytest.raises(RunError, match="begin without --resume"):
        load_checkpoint(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty: name another --output"):
        require_folder(tmp_path, is_resumed=False)
    with pytest.raises(RunError, match="begin without --resume, after removing .* or with another --output"):
        require_folder(tmp_path, is_resumed=True)
    (tmp_path / RECORD).write_text('{"is_done": true}')
    with pytest.raises(RunError, match="the run in .* is done: nothing is left to go on with"):
        require_folder(tmp_path, is_resumed=True)
    (tmp_path / CHECKPOINT).write_text("")
    with pytest.raises(RunError, match="go on with --resume"):
        require_folder(tmp_path, is_resumed=False)


@pytest.mark.parametrize("moved", [*range(6), None])
def test_a_network_that_is_replaced_is_the_earlier_or_the_later_one(
    moved: int | None, tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or a kill comes with so many of the later one's files in place: it can be completed."""
    folder, other = tmp_path / "made", draw_weights(Encoder(replace(TINY, num_heads=(1, 3))))
    write_network(folder, tiny_checkpoint.encoder, tiny_checkpoint)
    calls, replace_file = itertools.count(), os.replace

    def killed(source: str, target: str) -> None:
        if Path(target).parent in (folder, folder / "1_Pooling") and next(calls) == moved:
            raise KeyboardInterrupt
        replace_file(source, target)

    full = Mock(side_effect=[*[None] * 4, OSError(28, "No space left on device")])
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync" if moved is None else "os.replace", full if moved is None else killed)
        with pytest.raises(OSError if moved is None else KeyboardInterrupt):
            write_network(folder, other, tiny_checkpoint)
    assert not (folder / ".next.part").exists()  # it would make a folder that is written anew not empty
    complete_network(folder)
    assert_same(read_back(folder).encoder, tiny_checkpoint.encoder if moved is None else other)
