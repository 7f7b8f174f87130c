"""What a run writes, `export` reads back to the bit."""

import contextlib
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from export.checkpoint import Checkpoint, read_checkpoint
from export.errors import SourceError
from export.sources import Folder
from model.artifact import Defaults
from model.config_parts import ClassificationSettings, MultiVectorSettings, Projection, SparseSettings
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from train.errors import RunError
from train.folder import CHECKPOINT, complete_network, load_checkpoint, require_folder, save_checkpoint, write_network

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


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_comes_back_to_the_bit(network: str, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(replace(NETWORKS[network], head_dropout=0.2)))
    defaults = Defaults(
        pooling=encoder.config.pooling, normalize=True, prompts={"query": "find: "}, default_prompt_name="query"
    )
    like = replace(tiny_checkpoint, max_sequence_length=31, defaults=defaults, examples=("the cat",))
    write_network(tmp_path / "made", encoder, like)
    back = read_checkpoint(Folder(tmp_path / "made", "made"))
    assert back.encoder.config == NETWORKS[network]  # the head dropout is training's
    state = encoder.state_dict()
    assert back.encoder.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in back.encoder.state_dict().items())
    assert back.tokenizer.to_str() == like.tokenizer.to_str()
    assert back.max_sequence_length == 31
    assert back.examples == ("the cat",)
    if encoder.config.task == "embedding":
        assert back.defaults == defaults
    assert back.pairs == (encoder.config.task == "classification")
    if back.pairs:
        assert back.tokenizer.encode("the cat", "sat").type_ids == like.tokenizer.encode("the cat", "sat").type_ids


def test_examples_that_are_no_texts_are_refused(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    write_network(tmp_path / "made", tiny_checkpoint.encoder, tiny_checkpoint)
    described = json.loads((tmp_path / "made" / "config.json").read_bytes())
    for examples in ("the cat", [1]):
        (tmp_path / "made" / "config.json").write_text(json.dumps({**described, "examples": examples}))
        with pytest.raises(SourceError, match="gives examples of .*: expected a list of texts"):
            read_checkpoint(Folder(tmp_path / "made", "made"))


def test_a_model_without_normalisation_stays_one(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    defaults = Defaults(pooling="mean", normalize=False, prompts={}, default_prompt_name=None)
    write_network(tmp_path / "made", tiny_checkpoint.encoder, replace(tiny_checkpoint, defaults=defaults))
    assert read_checkpoint(Folder(tmp_path / "made", "made")).defaults == defaults


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "random": torch.get_rng_state()}
    save_checkpoint(tmp_path, tensors, {"step": 7, "name": "é"})
    found, state = load_checkpoint(tmp_path)
    assert state == {"step": 7, "name": "é"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, {"a": torch.ones(2)}, {"step": 1})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(RunError, match="No space left on device.*make room, and go on with --resume"):
            save_checkpoint(tmp_path, {"a": torch.zeros(2)}, {"step": 2})
    assert load_checkpoint(tmp_path)[1] == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


@pytest.mark.parametrize("content", [b"", b"\x80\x04not a checkpoint", b"\x00" * 64])
def test_a_broken_checkpoint_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(RunError, match=r"checkpoint.safetensors cannot be read"):
        load_checkpoint(tmp_path)


def test_folders_that_hold_something_are_not_written_into(tmp_path: Path) -> None:
    require_folder(tmp_path / "new", is_resumed=False)
    require_folder(tmp_path, is_resumed=False)
    with pytest.raises(RunError, match="begin without --resume"):
        load_checkpoint(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty: name another --output"):
        require_folder(tmp_path, is_resumed=False)
    (tmp_path / CHECKPOINT).write_text("")
    with pytest.raises(RunError, match="go on with --resume"):
        require_folder(tmp_path, is_resumed=False)


@pytest.mark.parametrize("moved", range(6))
def test_a_kill_while_the_best_network_is_replaced_leaves_one_that_can_be_completed(
    moved: int, tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "made", draw_weights(Encoder(replace(TINY, num_heads=(1, 3))))
    write_network(folder, tiny_checkpoint.encoder, tiny_checkpoint)
    steps = itertools.count()
    replace_file = os.replace

    def killed(source: str, target: str) -> None:
        if Path(target).parent in (folder, folder / "1_Pooling") and next(steps) == moved:
            raise KeyboardInterrupt
        replace_file(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with contextlib.suppress(KeyboardInterrupt):
            write_network(folder, other, tiny_checkpoint)
    complete_network(folder)
    assert read_checkpoint(Folder(folder, "made")).encoder.config.num_heads == (1, 3)


def test_a_full_disk_leaves_the_earlier_network(
    tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "made", draw_weights(Encoder(replace(TINY, num_heads=(1, 3))))
    write_network(folder, tiny_checkpoint.encoder, tiny_checkpoint)
    synced = itertools.count()

    def fail(_: object) -> None:
        if next(synced) == 4:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space"):
            write_network(folder, other, tiny_checkpoint)
    complete_network(folder)
    back, before = read_checkpoint(Folder(folder, "made")).encoder, tiny_checkpoint.encoder.state_dict()
    assert back.config == TINY
    assert all(torch.equal(tensor, before[name]) for name, tensor in back.state_dict().items())
