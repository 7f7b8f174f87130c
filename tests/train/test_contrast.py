import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.nn.functional import normalize

from export.checkpoint import Checkpoint, read_checkpoint
from export.sources import Folder
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from tests.train.conftest import draw_texts
from train import loop
from train.contrast import Contrast, ContrastSettings, backward_in_chunks, info_nce, known_positives
from train.embedding import recall
from train.errors import RunError
from train.folder import RECORD, write_network
from train.settings import RunSettings


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


class Vectors:
    """What sentence-transformers' evaluator asks of a model: vectors of texts that are numbers."""

    similarity_fn_name = "cosine"

    def __init__(self, queries: torch.Tensor, documents: torch.Tensor) -> None:
        self.queries, self.documents = queries, documents

    def encode_query(self, texts: list[str], **_: object) -> torch.Tensor:
        return self.queries[[int(text) for text in texts]]

    def encode_document(self, texts: list[str], **_: object) -> torch.Tensor:
        return self.documents[[int(text) for text in texts]]

    @staticmethod
    def similarity(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return normalize(left, dim=1) @ normalize(right, dim=1).T


def test_recall_is_sentence_transformers_on_the_same_rows() -> None:
    documents = normalize(draw(60, 8), dim=1)
    queries = normalize(documents.repeat(2, 1)[:90] + 0.8 * draw(90, 8, seed=1), dim=1)
    pairs = [(place, place % 60) for place in range(90)] + [(place, (place + 7) % 60) for place in range(0, 90, 3)]
    relevant: dict[str, set[str]] = {}
    for query, document in pairs:
        relevant.setdefault(str(query), set()).add(str(document))
    evaluator = InformationRetrievalEvaluator(
        {str(place): str(place) for place in range(90)},
        {str(place): str(place) for place in range(60)},
        relevant,
        precision_recall_at_k=[1, 10],
        score_functions={"cosine": Vectors.similarity},
    )
    model: Any = Vectors(queries, documents)
    expected: Any = evaluator.compute_all_metrics(model)["cosine"]
    for depth in (1, 10):
        assert recall(queries, documents, pairs, depth=depth) == pytest.approx(100 * expected["recall@k"][depth])
    assert 0 < expected["recall@k"][1] < expected["recall@k"][10] < 1


def test_equal_documents_are_one_and_equal_vectors_are_no_find() -> None:
    three = normalize(draw(3, 8), dim=1)
    assert recall(three, three, [(0, 0), (1, 1), (2, 2)], depth=1) == 100
    same = torch.ones(50, 8) / 8**0.5
    assert recall(same, same, [(place, place) for place in range(50)], depth=10) == 0


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
    assert record["contrast"]["dimensions"] == [32, 8]
    assert read_checkpoint(Folder(run.output, "run")).encoder.config == TINY


def test_vectors_are_not_cut_beyond_their_end(tiny_folder: Path, pairs: Path, tmp_path: Path) -> None:
    settings = ContrastSettings(model=str(tiny_folder), rows=pairs, dimensions=(64,))
    with pytest.raises(RunError, match="vectors have 32 dimensions: none to cut at 64"):
        Contrast(settings, RunSettings(output=tmp_path))


def test_anchors_and_documents_stand_behind_the_models_prompts(
    tiny_checkpoint: Checkpoint, pairs: Path, tmp_path: Path
) -> None:
    prompts = {"query": "the cat ", "passage": "a dog "}
    defaults = replace(tiny_checkpoint.defaults, prompts=prompts)
    write_network(tmp_path / "tiny", tiny_checkpoint.encoder, replace(tiny_checkpoint, defaults=defaults))
    settings = ContrastSettings(model=str(tmp_path / "tiny"), rows=pairs)
    recipe = Contrast(settings, RunSettings(output=tmp_path / "run"))
    assert all(row[0].startswith("the cat ") and row[1].startswith("a dog ") for row in recipe.rows)
    assert all(text.startswith("a dog ") for row in recipe.rows for text in row[2:])
    first = recipe.like.tokenizer.encode("the cat").ids[:3]
    assert all(row[:3] == first for row in recipe.queries.ids)
    assert recipe.described["contrast"]["prompts"] == {"query": "the cat ", "document": "a dog "}
