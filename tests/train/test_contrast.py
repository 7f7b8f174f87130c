import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from export.checkpoint import read_checkpoint
from export.sources import Folder
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from tests.train.conftest import draw_texts
from train import loop
from train.contrast import Contrast, ContrastSettings
from train.contrastive import backward_in_chunks, info_nce, same_texts
from train.errors import RunError
from train.folder import RECORD
from train.settings import RunSettings


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dimensions", [(), (8,), (8, 3)])
def test_info_nce_is_a_plain_loop(dimensions: tuple[int, ...]) -> None:
    anchors, candidates = draw(4, 8), draw(7, 8, seed=1)
    texts = ["a", "b", "a", "d", "b", "f", "g"]
    losses = []
    for size in dimensions or (8,):
        left, right = (normalize(x[:, :size], dim=1).numpy() for x in (anchors, candidates))
        for row in range(4):
            wrong = [k for k in range(7) if k != row and texts[k] != texts[row]]
            scores = np.exp(20 * (left[row] @ right.T))
            losses.append(-np.log(scores[row] / (scores[row] + scores[wrong].sum())))
    found = info_nce(anchors, candidates, same_texts(texts, 4), scale=20, dimensions=dimensions)
    assert float(found) == pytest.approx(float(np.mean(losses)))


@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_chunks_give_the_gradient_of_the_whole_batch(chunk: int) -> None:
    ids = torch.randint(4, 16, (12, 9), generator=torch.Generator().manual_seed(0))
    gradients, losses = [], []
    for size in (12, chunk):
        encoder = draw_weights(Encoder(TINY)).double().requires_grad_(True)

        def embed(part: object, encoder: Encoder = encoder) -> torch.Tensor:
            places = list(part)  # type: ignore[call-overload]
            return encoder(ids[places], torch.full((len(places),), 9)).pooled  # type: ignore[no-any-return]

        def loss_of(found: torch.Tensor) -> torch.Tensor:
            return info_nce(found[:6], found[6:], torch.zeros(6, 6, dtype=torch.bool), scale=20)

        losses.append(backward_in_chunks(embed, 12, size, loss_of))
        gradients.append({name: p.grad for name, p in encoder.named_parameters() if p.grad is not None})
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-10, rtol=1e-8)


def test_what_is_left_out_is_the_same_in_both_passes_of_a_chunk() -> None:
    layer, drop = torch.nn.Linear(6, 4, dtype=torch.float64), torch.nn.Dropout(0.5)
    x = draw(10, 6)
    seen: list[torch.Tensor] = []

    def embed(part: object) -> torch.Tensor:
        seen.append(drop(layer(x[list(part)])))  # type: ignore[call-overload]
        return seen[-1]

    backward_in_chunks(embed, 10, 5, lambda found: found.square().sum())
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0] == 0, seen[1] == 0)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    lines = [
        f"{text}\t{' '.join(reversed(text.split()))}\t{other}"
        for text, other in zip(draw_texts(200), draw_texts(200, 1), strict=True)
    ]
    path.write_text("\n".join(lines))
    return path


def test_a_run_brings_together_what_belongs_together(tiny_folder: Path, pairs: Path, tmp_path: Path) -> None:
    settings = ContrastSettings(model=str(tiny_folder), rows=pairs, chunk=24, dimensions=(32, 8))
    run = RunSettings(output=tmp_path / "run", epochs=3, batch_size=16, learning_rate=3e-3, evaluations=2)
    recipe = Contrast(settings, run)
    progress = loop.train(recipe, run)
    assert progress.losses[-1][1] < progress.losses[0][1]
    record = json.loads((run.output / RECORD).read_text())
    assert record["contrast"] == {"scale": 20.0, "dimensions": [32, 8]}
    assert read_checkpoint(Folder(run.output, "run")).encoder.config == TINY


def test_vectors_are_not_cut_beyond_their_end(tiny_folder: Path, pairs: Path, tmp_path: Path) -> None:
    settings = ContrastSettings(model=str(tiny_folder), rows=pairs, dimensions=(64,))
    with pytest.raises(RunError, match="vectors have 32 dimensions: none to cut at 64"):
        Contrast(settings, RunSettings(output=tmp_path))
