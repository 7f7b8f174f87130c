import numpy as np
import pytest
import torch
from torch import nn

from train.losses import cosine_loss, hidden_loss, similarity_loss
from train.similarity import cosine_figures, recall, spearman


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_cosine_loss_is_torchs() -> None:
    a, b = draw(5, 8), draw(5, 8, seed=1)
    assert cosine_loss(a, b) == pytest.approx(float(nn.CosineEmbeddingLoss()(a, b, torch.ones(5))))


def test_similarity_loss_is_a_plain_loop() -> None:
    a, b = draw(4, 8), draw(4, 8, seed=1)
    cosine = nn.CosineSimilarity(dim=0)
    expected = np.mean([(cosine(a[i], a[j]) - cosine(b[i], b[j])) ** 2 for i in range(4) for j in range(4)])
    assert similarity_loss(a, b) == pytest.approx(float(expected))
    assert similarity_loss(3 * a, a) == pytest.approx(0, abs=1e-12)


def test_hidden_loss_is_0_at_equality_and_1_at_the_mean() -> None:
    whole = [draw(50, 8), 100 * draw(50, 8, seed=1) + 3]
    assert hidden_loss(whole, whole) == 0
    assert hidden_loss([h.mean(dim=0).expand_as(h) for h in whole], whole) == pytest.approx(1)


def test_figures_of_cosines() -> None:
    angles = torch.linspace(0, 0.5, 101, dtype=torch.float64)
    found = torch.stack([angles.cos(), angles.sin()], dim=1)
    figures = cosine_figures(5 * found, torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand(101, 2))
    assert figures["cosine_mean"] == pytest.approx(float(angles.cos().mean()))
    assert figures["cosine_first_percentile"] == pytest.approx(float(angles[99].cos()))
    assert figures["cosine_worst"] == pytest.approx(float(angles[100].cos()))


def test_spearman_and_recall() -> None:
    left, right = draw(30, 4), draw(30, 4, seed=1)
    cosines = nn.CosineSimilarity()(left, right).numpy()
    assert spearman(left, right, cosines**3) == pytest.approx(100)
    documents = nn.functional.normalize(draw(400, 16), dim=1)
    assert recall(documents, documents) == 100
    queries = nn.functional.normalize(documents + 0.6 * draw(400, 16, seed=2), dim=1)
    ranks = [(query @ documents.T).argsort(descending=True).tolist().index(i) for i, query in enumerate(queries)]
    assert 0 < recall(queries, documents) < 100
    assert recall(queries, documents) == pytest.approx(100 * np.mean([rank < 10 for rank in ranks]))
