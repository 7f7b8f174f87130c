"""The viewer on a causal network with grouped queries: heads that share keys stand together, no token looks on."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import OpenViewer
from tests.e2e.test_viewer import ask, point_at, weights_of
from tests.service.process import ServerProcess
from tests.task_artifacts import TaskArtifact

QUERY, DOCUMENT = "the cat", "it sat on the mat."
LAYERS, HEADS, GROUPS = 3, 4, 2


@pytest.fixture(scope="module")
def viewer_server(yes_no_reranker: TaskArtifact) -> Iterator[ServerProcess]:
    """A language model that says yes or no, instead of the default model."""
    with ServerProcess("service", "--model", str(yes_no_reranker.artifact)) as process:
        yield process.wait_until_ready()
        assert process.stop() == 0


def test_heads_stand_in_groups_and_no_token_looks_on(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer("layer=1&head=2")
    viewer.show(DOCUMENT)
    expect(viewer.page.locator("#model")).to_contain_text("causal: a token sees itself and those before it")
    assert viewer.page.locator(".heads .tile").count() == LAYERS * HEADS
    names = [tile.get_attribute("aria-label") for tile in viewer.page.locator(".heads .tile").all()]
    groups = [int(re.fullmatch(r"Layer \d, head \d, keys and values (\d)", name or "")[1]) for name in names]  # type: ignore[index]
    assert groups == [head * GROUPS // HEADS for _ in range(LAYERS) for head in range(HEADS)]
    assert viewer.page.locator(".heads .tile.group-start").count() == LAYERS * (GROUPS - 1)
    viewer.page.get_by_label("Hide special tokens").check()
    viewer.page.get_by_label("make rows sum to 1").set_checked(False)
    expect(viewer.page.locator("#tokens .special")).to_have_count(0)
    viewer.wait_until_filled()
    expected = weights_of(viewer_server, DOCUMENT, 1, 2, exclude_special=True)
    assert not np.triu(expected, 1).any()
    for row, column in ((3, 1), (1, 3)):
        point_at(viewer, row, column)
        assert viewer.readout()["weights"] == pytest.approx(expected[row, column], abs=5.1e-5)
        viewer.page.locator("#save-json").focus()


def test_a_document_looks_back_at_the_query_alone(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer("mode=pair&layer=2&head=1")
    viewer.type(DOCUMENT, "#b")
    viewer.show(QUERY)
    (entry,) = ask(viewer_server, "/rerank", {"query": QUERY, "texts": [DOCUMENT], "attention": {"layers": [2]}})
    expect(viewer.page.locator("#score")).to_have_attribute("data-value", str(entry["score"]))
    shown = [one.get_attribute("data-mass") for one in viewer.page.locator("#across-blocks [data-mass]").all()]
    back = entry["attention"]["document_to_query_mass"][0][1]
    assert [float(mass or "nan") for mass in shown] == [0, back]
    assert back > 0
