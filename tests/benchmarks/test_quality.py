from itertools import product
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks import __main__ as benchmarks
from benchmarks.lib.command import CannotMeasure
from benchmarks.quality.parts import split, train_classifier
from benchmarks.quality.vectors import (
    BATCH_SIZES,
    DEPTH,
    NOT_CHOSEN_BY,
    Vectorized,
    inner_product,
    nearness,
    read_definitions,
    recall,
    speed_table,
)
from export.heads.corpus import read_pairs
from export.pruning.driver import halve
from service.inference.openvino_backend import OpenVinoBackend
from tests.benchmarks.test_commands import run_script, write_definitions
from tests.planted import write_pairs
from tests.task_artifacts import TaskArtifact, for_openvino


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


def test_definitions_are_drawn_by_their_hashes_a_word_once(tmp_path: Path) -> None:
    path = tmp_path / "definitions.csv"
    lines = [f'word {index % 40},"meaning {index}, of it"\n' for index in range(60)]
    path.write_text("".join(lines))
    drawn = read_definitions(path, 20)
    assert len({word for word, _ in drawn}) == 20
    path.write_text("".join(reversed(lines)))
    assert read_definitions(path, 20) == drawn == read_definitions(path, 40)[:20]
    with pytest.raises(CannotMeasure, match="defines 40 words, 41 are wanted: give more of them"):
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
    figures = found.figures(found)
    assert figures[NOT_CHOSEN_BY] == found.spearman(sorted(judged)) != figures["spearman"]


@pytest.mark.parametrize(("only", "drawn"), [("quality", "Spearman x 100"), ("speed", "Times faster")])
def test_one_of_the_two_tables_is_drawn_too(
    only: str, drawn: str, pairs_file: Path, embedder: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = pairs_file.with_suffix(".svg")
    options = ("--pairs", pairs_file, "--only", only, "--seconds", 0.01, "--plot", plot)
    monkeypatch.setattr("sys.argv", ["", "quality", "artifacts", *map(str, (embedder.artifact, *options))])
    benchmarks.main()
    assert drawn in plot.read_text()


def test_what_an_artifact_lacks_is_said_in_one_line(
    pairs_file: Path, classifier: TaskArtifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"quality artifacts": ["--pairs", str(pairs_file)], "attention explaining": []}
    lacking = {
        "quality artifacts": "returns no vectors of texts",
        "attention explaining": "has no explain.onnx: export",
    }
    for name, options in given.items():
        monkeypatch.setattr("sys.argv", ["", *name.split(), str(classifier.artifact), *options])
        with pytest.raises(SystemExit, match="2"):
            benchmarks.main()
        expected = f"python -m benchmarks {name}: {classifier.artifact} {lacking[name]}"
        assert capsys.readouterr().err.startswith(expected)


def test_an_artifact_for_openvino_is_as_fast_as_there(
    embedder: TaskArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    artifact, sizes = for_openvino(embedder.artifact, tmp_path / "made"), set[int]()
    monkeypatch.setattr(OpenVinoBackend, "run", lambda _, batch: sizes.add(len(batch.lengths)))
    speed_table({tmp_path: artifact}, ["a text", "another"], 0.01)
    assert sizes == {*BATCH_SIZES}


@pytest.mark.slow
def test_a_classifier_that_cannot_be_trained_says_what_training_says(tmp_path: Path) -> None:
    for name in ("rows.csv", "judged.csv"):
        (tmp_path / name).write_text("good,positive\nbad,negative\n")
    with pytest.raises(CannotMeasure, match="model could not be trained: polyhead train classify failed: .*: 2 rows"):
        train_classifier("model", tmp_path, 0, 1.0)


@pytest.mark.slow
@pytest.mark.alone
def test_a_network_like_the_first_loses_nothing(pairs_file: Path, tmp_path: Path, default_artifact: Path) -> None:
    plot = tmp_path / "healing.svg"
    other = tmp_path / "healed"
    other.symlink_to(default_artifact)
    files = (
        "--pairs",
        pairs_file,
        "--definitions",
        write_definitions(tmp_path),
        "--words",
        20,
        "--seconds",
        0.3,
        "--plot",
        plot,
    )
    tables = run_script("quality artifacts", default_artifact, "--healed", other, *files)
    first, second = ({**row, "artifact": ""} for row in tables["quality"])
    assert first == second
    assert (second["lost"], second["removed %"], second["heads"]) == (0, 0, 72)
    assert second["worst"] == pytest.approx(1, abs=1e-5)
    assert second["recall %"] == pytest.approx(100)
    for row, size in product(tables["speed"], (1, 8, 32)):
        assert 0.5 < row[f"x {size}"] < 2
        assert row[f"bound {size}"] is None
    assert ET.parse(plot).getroot().attrib["aria-label"] == "Healed and not healed"  # noqa: S314 - our own


def test_reviews_are_split_without_neutral_ones_and_always_alike() -> None:
    reviews = [(f"sentence {place}", (place % 9) - 4.0) for place in range(90)]
    learned, held_out = split(reviews)
    assert (len(learned), len(held_out)) == (72, 8)  # ratings of 0 are left out
    assert not {*learned} & {*held_out}
    assert {label for text, label in learned if (int(text.split()[1]) % 9) > 4} == {"positive"}
    assert split(reviews) == (learned, held_out)
