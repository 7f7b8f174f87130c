from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks.lib.command import CannotMeasure
from benchmarks.quality import shapes
from benchmarks.quality.artifacts import NOT_CHOSEN_BY, Row, Vectorized, panels
from benchmarks.quality.vectors import DEPTH, inner_product, nearness, read_definitions, recall
from export.heads.corpus import read_pairs
from export.pruning.driver import halve
from export.pruning.picture import draw_panels
from tests.benchmarks.test_commands import run_script
from tests.planted import draw_texts, write_pairs


def test_recall_is_that_of_sorting(generator: np.random.Generator) -> None:
    documents = generator.normal(size=(300, 4))
    queries = documents[:260] + generator.normal(size=(260, 4))  # more than are compared at once
    for scores, near in (
        (inner_product, queries @ documents.T),
        (nearness, -np.linalg.norm(queries[:, np.newaxis] - documents, axis=2)),
    ):
        best = np.argsort(-near, axis=1)[:, :DEPTH]
        expected = 100 * np.mean([place in row for place, row in enumerate(best)])
        assert 0 < expected < 100
        assert recall(queries, documents, scores) == pytest.approx(expected)


def test_of_bits_the_nearness_is_how_many_differ(generator: np.random.Generator) -> None:
    bits = generator.integers(0, 2, size=(8, 24)).astype(float)
    differ = (bits[:3, np.newaxis] != bits[3:]).sum(axis=2)
    np.testing.assert_array_equal(nearness(bits[:3], bits[3:]), -differ)


def test_documents_that_all_are_the_same_find_nothing() -> None:
    same = np.ones((DEPTH + 1, 2))
    assert recall(same, same, inner_product) == 0


def test_definitions_are_drawn_by_their_hashes_a_word_once(tmp_path: Path) -> None:
    path = tmp_path / "definitions.csv"
    lines = [f'word {index % 40},"meaning {index}, of it"\n' for index in range(60)]
    path.write_text("".join(lines))
    drawn = read_definitions(path, 20)
    assert len({word for word, _ in drawn}) == 20
    path.write_text("".join(reversed(lines)))
    assert read_definitions(path, 20) == drawn == read_definitions(path, 40)[:20]
    with pytest.raises(CannotMeasure, match="defines 40 words, 41 are wanted: lower --documents"):
        read_definitions(path, 41)
    path.write_text("alone\n")
    with pytest.raises(CannotMeasure, match="is no CSV of word,definition"):
        read_definitions(path, 1)


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "pairs.csv", 20)


def test_spearman_of_some_of_the_pairs(pairs_file: Path, generator: np.random.Generator) -> None:
    pairs = read_pairs(pairs_file)
    sentences, nothing = list(dict.fromkeys([*pairs.left, *pairs.right])), np.zeros((0, 3), np.float32)
    vectors = generator.normal(size=(len(sentences), 3)).astype(np.float32)
    left, right = (vectors[[sentences.index(text) for text in side]] for side in (pairs.left, pairs.right))
    found = Vectorized(pairs, sentences, vectors, nothing, nothing)
    similarities = (left * right).sum(axis=1)
    assert found.spearman() == pytest.approx(100 * spearmanr(similarities, pairs.ratings)[0])
    odd = 100 * spearmanr(similarities[1::2], pairs.ratings[1::2])[0]
    assert found.spearman(range(1, 20, 2)) == pytest.approx(odd)
    _, judged = halve(20)  # the pairs that heads are not chosen by
    figures = found.figures(found, pairs_file)
    assert figures[NOT_CHOSEN_BY] == found.spearman(sorted(judged)) != figures["spearman"]


@pytest.mark.slow
@pytest.mark.alone
def test_a_network_that_is_the_first_one_loses_nothing(
    pairs_file: Path, tmp_path: Path, default_artifact: Path
) -> None:
    pairs, plot, definitions = pairs_file, tmp_path / "healing.svg", tmp_path / "definitions.csv"
    definitions.write_text("".join(f"word {i},{text}\n" for i, text in enumerate(draw_texts(20, seed=1))))
    other = tmp_path / "healed"
    other.symlink_to(default_artifact)
    files = ("--pairs", pairs, "--definitions", definitions, "--words", 20, "--seconds", 0.3, "--plot", plot)
    tables = run_script("quality artifacts", default_artifact, "--healed", other, *files)
    first, second = ({**row, "artifact": ""} for row in tables["quality"])
    assert first == second
    assert (second["lost"], second["removed %"], second["heads"]) == (0, 0, 72)
    assert second["worst"] == pytest.approx(1, abs=1e-5)
    assert second["recall %"] == pytest.approx(100)
    for row in tables["speed"]:
        for size in (1, 8, 32):
            assert 0.5 < row[f"x {size}"] < 2
            assert row[f"bound {size}"] is None
    assert ET.parse(plot).getroot().attrib["aria-label"] == "Healed and not healed"  # noqa: S314 - our own


def row(removed: float, cosine: float) -> Row:
    return {"removed %": removed, "cosine mean": cosine, "spearman": 80 + cosine, "x 8": 2 - cosine}


def test_both_lines_begin_at_the_whole_network_and_go_by_the_share() -> None:
    drawn = panels([row(0, 1.0), row(40, 0.8), row(20, 0.9)], [row(0, 1.0), row(20, 0.95)])
    cosine, spearman, speed = (
        {line.name: [(x, point["mean"]) for x, point in line.points] for line in panel.lines} for panel in drawn
    )
    assert cosine == {"not healed": [(0, 1.0), (0.2, 0.9), (0.4, 0.8)], "healed": [(0, 1.0), (0.2, 0.95)]}
    assert spearman["healed"] == [(0, 81.0), (0.2, 80.95)]
    assert speed["healed"] == [(0, 1.0), (0.2, 1.05)]


def test_without_pruned_ones_there_is_one_line() -> None:
    drawn = panels([row(0, 1.0)], [row(0, 1.0), row(31, 0.98)])
    assert [[line.name for line in panel.lines] for panel in drawn] == [["healed"]] * 3
    picture = ET.fromstring(draw_panels("Healed & not", drawn))  # noqa: S314 - our own
    assert picture.attrib["aria-label"] == "Healed & not"
    assert len(picture.findall("{*}g")) == 3


def test_lines_of_speed_begin_at_the_whole_network_and_miss_what_was_out_of_reach() -> None:
    whole = {"measured": 1.0, "cosine mean": 1.0, "spearman": 86.0, "recall %": 100.0}
    rows = [{**whole, "removed": name, "measured": speed} for name, speed in (("neurons", 2.1), ("neurons", 1.4))]
    for panel in shapes.panels(whole, rows):
        assert [line.name for line in panel.lines] == ["neurons"]
        assert [x for x, _ in panel.lines[0].points] == [1.0, 1.4, 2.1]
