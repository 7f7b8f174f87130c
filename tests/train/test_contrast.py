import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.nn.functional import normalize

from export.checkpoint import Checkpoint
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from tests.train.conftest import draw, draw_texts, read_back, write_rows
from train import loop
from train.commands import ContrastSettings
from train.contrast import Contrast, backward_in_chunks, info_nce, known_positives
from train.embedding import recall
from train.errors import RunError
from train.folder import RECORD, write_network
from train.settings import RunSettings


@pytest.mark.parametrize("dimensions", [(), (8,), (8, 3)])
def test_info_nce_is_sentence_transformers(dimensions: tuple[int, ...]) -> None:
    anchors, candidates = draw(4, 8), draw(8, 8, seed=1)
    expected = MultipleNegativesRankingLoss(None, scale=20)
    losses = [
        expected.compute_loss_from_embeddings(
            [x[:, :size] for x in (anchors, candidates[:4], candidates[4:])], torch.empty(0)
        ).item()
        for size in dimensions or (8,)
    ]
    known = known_positives(list("abcd"), [str(index) for index in range(8)], {})
    found = info_nce(anchors, candidates, known, scale=20, dimensions=dimensions)
    assert float(found) == pytest.approx(float(np.mean(losses)))


def test_a_further_positive_of_an_anchor_is_no_negative() -> None:
    anchors, candidates = draw(4, 8), draw(7, 8, seed=1)
    texts = ["a", "b", "a", "d", "b", "f", "g"]
    positives = {"one": {"a", "f"}, "two": {"b", "d"}, "three": {"a"}}
    known = known_positives(["one", "two", "three", "two"], texts, positives)
    left, right = (normalize(x, dim=1).numpy() for x in (anchors, candidates))
    losses = []
    for row, wrong in enumerate(([1, 3, 4, 6], [0, 2, 5, 6], [1, 3, 4, 5, 6], [0, 2, 5, 6])):
        scores = np.exp(20 * (left[row] @ right.T))
        losses.append(-np.log(scores[row] / (scores[row] + scores[wrong].sum())))
    assert float(info_nce(anchors, candidates, known, scale=20)) == pytest.approx(float(np.mean(losses)))


def test_recall_is_the_share_of_own_documents_among_the_nearest() -> None:
    documents = normalize(draw(60, 8), dim=1)
    queries = normalize(documents.repeat(2, 1)[:90] + 0.8 * draw(90, 8, seed=1), dim=1)
    own = {place: {place % 60, (place + 7 * (place % 3 == 0)) % 60} for place in range(90)}  # some have two
    pairs = [(query, document) for query, places in own.items() for document in places]
    for depth in (1, 10):
        nearest = (queries @ documents.T).topk(depth).indices.tolist()
        shares = [len(own[query] & set(found)) / len(own[query]) for query, found in enumerate(nearest)]
        assert 0 < np.mean(shares) < 1
        assert recall(queries, documents, pairs, depth=depth) == pytest.approx(100 * np.mean(shares))


def test_equal_documents_are_one_and_equal_vectors_are_no_find() -> None:
    three = normalize(draw(3, 8), dim=1)
    assert recall(three, three, [(0, 0), (1, 1), (2, 2)], depth=1) == 100
    same = torch.ones(50, 8) / 8**0.5
    assert recall(same, same, [(place, place) for place in range(50)], depth=10) == 0


def test_chunks_give_the_gradient_of_the_whole_batch() -> None:
    ids = torch.randint(4, 16, (12, 9), generator=torch.Generator().manual_seed(0))
    gradients, losses = [], []
    for size in (12, 1, 5):
        encoder = draw_weights(Encoder(TINY)).double().requires_grad_(True)

        def embed(part: Sequence[int], encoder: Encoder = encoder) -> torch.Tensor:
            return encoder(ids[list(part)], torch.full((len(part),), 9)).pooled  # type: ignore[no-any-return]

        def loss_of(found: torch.Tensor) -> torch.Tensor:
            return info_nce(found[:6], found[6:], torch.zeros(6, 6, dtype=torch.bool), scale=20)

        losses.append(backward_in_chunks(embed, 12, size, loss_of))
        gradients.append({name: p.grad for name, p in encoder.named_parameters() if p.grad is not None})
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-12)
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], atol=1e-10, rtol=1e-8)


def test_what_is_left_out_is_the_same_in_both_passes_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where a GPU's driver is too old: it is counted, and cannot be used.
    monkeypatch.setattr("torch.cuda.random.device_count", lambda: 1)
    layer, drop = torch.nn.Linear(6, 4, dtype=torch.float64), torch.nn.Dropout(0.5)
    x = draw(10, 6)
    seen: list[torch.Tensor] = []

    def embed(part: Sequence[int]) -> torch.Tensor:
        seen.append(drop(layer(x[list(part)])))
        return seen[-1]

    backward_in_chunks(embed, 10, 5, lambda found: found.square().sum())
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0] == 0, seen[1] == 0)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    texts = draw_texts(120)
    turned = [" ".join(reversed(text.split())) for text in texts]
    return write_rows(tmp_path / "pairs.csv", texts, turned, draw_texts(120, 1))


def test_a_run_brings_together_what_belongs_together(tiny_folder: Path, pairs: Path, tmp_path: Path) -> None:
    settings = ContrastSettings(model=str(tiny_folder), rows=pairs, chunk=24, dimensions=(32, 8))
    run = RunSettings(output=tmp_path / "run", epochs=3, batch_size=16, learning_rate=3e-3, evaluations=2)
    progress = loop.train(Contrast(settings, run), run)
    assert progress.losses[-1][1] < progress.losses[0][1]
    record = json.loads((run.output / RECORD).read_text())
    assert record["contrast"]["dimensions"] == [32, 8]
    assert read_back(run.output).encoder.config == TINY
    with pytest.raises(RunError, match="vectors have 32 dimensions: none to cut at 64"):
        Contrast(replace(settings, dimensions=(64,)), run)


def test_texts_stand_behind_the_models_prompts(tiny_checkpoint: Checkpoint, pairs: Path, tmp_path: Path) -> None:
    prompts = {"query": "the cat ", "passage": "a dog "}
    defaults = replace(tiny_checkpoint.defaults, prompts=prompts, unit_length=False, similarity="dot")
    write_network(tmp_path / "tiny", tiny_checkpoint.encoder, replace(tiny_checkpoint, defaults=defaults))
    settings = ContrastSettings(model=str(tmp_path / "tiny"), rows=pairs)
    recipe = Contrast(settings, RunSettings(output=tmp_path / "run"))
    assert all(row[0].startswith("the cat ") and row[1].startswith("a dog ") for row in recipe.rows)
    assert all(text.startswith("a dog ") for row in recipe.rows for text in row[2:])
    first = recipe.like.tokenizer.encode("the cat").ids[:3]
    assert all(row[:3] == first for row in recipe.queries.ids)
    assert recipe.described["contrast"]["prompts"] == {"query": "the cat ", "document": "a dog "}
    assert recipe.like.defaults == replace(defaults, unit_length=True, similarity="cosine")  # what it learns
