import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from export.checkpoint import read_checkpoint
from export.cli import main
from export.heads.subject import find_subject
from export.runtime import Session
from export.sources import Folder
from model.artifact import GRAPH, HEADS, PRUNING, PRUNING_PICTURE, Artifact
from model.encoder import Encoder
from tests.networks import batch_of
from tests.task_artifacts import quick_export

IDS = np.random.default_rng(0).integers(0, 48, (6, 11))
SIZES = np.array([11, 4, 1, 7, 9, 2])


def run_masked(encoder: Encoder, removed: list[list[int]]) -> np.ndarray:
    """The whole network with those gates at 0, in float64."""
    gates = torch.ones(len(IDS), sum(encoder.config.num_heads), dtype=torch.float64)
    gates[:, [encoder.config.head_span(layer).start + head for layer, head in removed]] = 0
    found = encoder.double().use("eager")(torch.from_numpy(IDS), torch.from_numpy(SIZES), head_gates=gates)
    masked: np.ndarray = found.pooled.numpy()
    return masked


def test_a_pruned_artifact_computes_what_the_masked_network_computes(
    bert_folder: Path, pairs_file: Path, tmp_path: Path, capsys: Any
) -> None:
    output = tmp_path / "pruned"
    flags = ["--prune-heads", "0.34", "--pairs", str(pairs_file), "--no-curve", "--no-explain", "--against", "none"]
    with quick_export():
        assert main([str(bert_folder), "--output", str(output), *flags]) == 0
    assert "removed 4 of 12 heads by loss_gradient: spearman x 100 " in capsys.readouterr().err
    manifest = Artifact.open(output).manifest
    assert manifest.pruning is not None
    assert sum(manifest.config.num_heads) == 8
    assert manifest.pruning["num_heads_before"] == [4, 4, 4]
    assert len(manifest.pruning["removed"]) == 4
    rows = [row[:size] for row, size in zip(IDS, SIZES, strict=True)]
    found = Session(output / GRAPH).run(batch_of(manifest.config, rows))["pooled"]
    expected = run_masked(read_checkpoint(Folder(bert_folder, "bert")).encoder, manifest.pruning["removed"])
    assert np.abs(found - expected).max() < 1e-6 * max(1, np.abs(expected).max())


@pytest.mark.slow
def test_the_curve_goes_into_the_artifact_and_the_report_knows_what_is_gone(
    bert_folder: Path, pairs_file: Path, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.pruning.curve.SECONDS", 0.02)
    monkeypatch.setattr("export.pruning.driver.counts", lambda heads: [0, heads // 2])
    output = tmp_path / "curve"
    flags = ["--prune-to-quality", "5", "--pairs", str(pairs_file), "--no-explain"]
    assert main([str(bert_folder), "--output", str(output), *flags]) == 0
    manifest = Artifact.open(output).manifest
    assert {PRUNING, PRUNING_PICTURE} <= set(manifest.files)
    curve = json.loads((output / PRUNING).read_bytes())
    assert curve["heads"] == 12
    assert manifest.pruning is not None
    assert curve["chosen"] == len(manifest.pruning["removed"])
    picture = ElementTree.parse(output / PRUNING_PICTURE)  # noqa: S314 - our own
    assert len(picture.getroot().findall(".//{http://www.w3.org/2000/svg}path")) > 20
    assert {0, 6, curve["chosen"]} == {point["removed"] for point in curve["curve"]}
    assert {step["removed"] for step in curve["latency"]} == {0, 6, curve["chosen"], 12}

    assert find_subject(str(output), weights=str(bert_folder)).checkpoint.encoder.config == manifest.config
    if sum(manifest.config.num_heads):
        assert main(["heads", str(output), "--corpus", str(corpus), "--weights", str(bert_folder), "--texts", "9"]) == 0
        report = json.loads((output / HEADS).read_bytes())
        assert report["num_heads"] == list(manifest.config.num_heads)
        assert report["pruned"] == manifest.pruning["removed"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prune-heads", "0"], "expected a share above 0 and at most 1, got '0'"),
        (["--prune-heads", "some"], "--prune-heads: expected a share above 0 and at most 1, got 'some'"),
        (["--prune-to-quality", "half"], "--prune-to-quality: expected points from 0 to 100, got 'half'"),
        (["--prune-heads", "30"], "expected a share above 0 and at most 1"),
        (["--prune-to-quality", "-1"], "expected points from 0 to 100"),
        (["--prune-heads", "0.3", "--prune-to-quality", "1"], "not allowed with"),
        (["--pairs", "x.csv"], "--pairs goes with --prune-heads or --prune-to-quality"),
        (["--no-curve"], "--no-curve goes with"),
        (["--prune-heads", "0.3", "--prune-by", "loss_gradient"], "needs --pairs"),
    ],
)
def test_options_that_do_not_go_together(flags: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--output", "x", *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
