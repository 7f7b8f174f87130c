"""The comparison of healed artifacts, on one that is the whole network twice, and its picture."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.quality.healing import Row, panels
from export.pruning.picture import draw_panels
from tests.benchmarks.test_commands import run_script
from tests.planted import draw_texts


def row(removed: float, cosine: float) -> Row:
    return {"removed %": removed, "cosine mean": cosine, "spearman": 80 + cosine, "x 8": 2 - cosine}


def test_both_lines_begin_at_the_whole_network_and_go_by_the_share() -> None:
    drawn = panels(row(0, 1.0), [row(40, 0.8), row(20, 0.9)], [row(20, 0.95)])
    cosine, spearman, speed = ({name: points for name, _, points in panel.series} for panel in drawn)
    assert cosine == {"not healed": [(0, 1.0), (0.2, 0.9), (0.4, 0.8)], "healed": [(0, 1.0), (0.2, 0.95)]}
    assert spearman["healed"] == [(0, 81.0), (0.2, 80.95)]
    assert speed["healed"] == [(0, 1.0), (0.2, 1.05)]


def test_without_pruned_ones_there_is_one_line() -> None:
    drawn = panels(row(0, 1.0), [], [row(31, 0.98)])
    assert [[name for name, *_ in panel.series] for panel in drawn] == [["healed"]] * 3
    picture = ET.fromstring(draw_panels("Healed & not", drawn))  # noqa: S314 - our own
    assert picture.attrib["aria-label"] == "Healed & not"
    assert len(picture.findall("{*}g")) == 3


@pytest.mark.slow
@pytest.mark.alone
def test_the_same_network_twice_loses_nothing(tmp_path: Path, default_artifact: Path) -> None:
    left, right = draw_texts(20, seed=1), draw_texts(20, seed=2)
    pairs, definitions, plot = (tmp_path / name for name in ("pairs.csv", "definitions.csv", "healing.svg"))
    pairs.write_text("".join(f"{a},{b},{i % 6}\n" for i, (a, b) in enumerate(zip(left, right, strict=True))))
    definitions.write_text("".join(f"word {i},{text}\n" for i, text in enumerate(left)))
    files = ("--pairs", pairs, "--definitions", definitions, "--words", 20, "--seconds", 0.2, "--plot", plot)
    whole, healed = run_script("quality healing", default_artifact, "--healed", default_artifact, *files)["healing"]
    assert whole["removed %"] == healed["removed %"] == 0
    assert healed["worst"] == pytest.approx(1, abs=1e-5)
    assert healed["recall %"] == pytest.approx(100)
    assert healed["spearman"] == whole["spearman"]
    assert ET.parse(plot).getroot().attrib["aria-label"] == "Healed and not healed"  # noqa: S314 - our own
