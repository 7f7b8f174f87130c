"""The comparison of pruned artifacts, on one that is the whole network twice."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks.quality.pruning import Pairs, batches_by_size
from export.pruning.material import halve
from model.artifact import Artifact
from tests.benchmarks.test_commands import run_script
from tests.planted import draw_texts


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    left, right = draw_texts(20, seed=1), draw_texts(20, seed=2)
    path = tmp_path / "pairs.csv"
    path.write_text("".join(f"{a},{b},{i % 6}\n" for i, (a, b) in enumerate(zip(left, right, strict=True))))
    return path


def test_spearman_of_some_of_the_pairs(pairs_file: Path, generator: np.random.Generator) -> None:
    pairs = Pairs.read(pairs_file)
    vectors = generator.normal(size=(40, 3)).astype(np.float32)
    similarities = (vectors[:20] * vectors[20:]).sum(axis=1)
    assert pairs.spearman(vectors, range(20)) == pytest.approx(100 * spearmanr(similarities, pairs.ratings)[0])
    odd = 100 * spearmanr(similarities[1::2], pairs.ratings[1::2])[0]
    assert pairs.spearman(vectors, range(1, 20, 2)) == pytest.approx(odd)


def test_pairs_that_heads_are_chosen_by_are_left_out(pairs_file: Path) -> None:
    left_out = set(Pairs.read(pairs_file).not_chosen_by())
    chosen, judged = halve(20)
    assert left_out == set(judged)
    assert len(left_out | set(chosen)) == 20


def test_batches_are_of_the_middling_lengths(pairs_file: Path, default_artifact: Path) -> None:
    made = batches_by_size(Artifact.open(default_artifact), Pairs.read(pairs_file).texts)
    assert {size: len(batch.lengths) for size, batch in made.items()} == {1: 1, 8: 8, 32: 32}
    assert made[8].lengths.min() >= made[32].lengths.min()
    assert made[8].lengths.max() <= made[32].lengths.max()


@pytest.mark.slow
@pytest.mark.alone
def test_the_same_network_twice_loses_nothing(pairs_file: Path, default_artifact: Path) -> None:
    tables = run_script("quality pruning", default_artifact, default_artifact, "--pairs", pairs_file, "--seconds", 0.3)
    first, second = tables["quality"]
    assert first == second
    assert (second["lost"], second["removed %"], second["heads"]) == (0, 0, 72)
    assert second["cosine worst"] == pytest.approx(1, abs=1e-5)
    for row in tables["speed"]:
        for size in (1, 8, 32):
            assert 0.5 < row[f"x {size}"] < 2
            assert row[f"bound {size}"] is None
