"""The viewer in a real browser, served by the real process on the default model."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.browser import CHROMIUM, open_browser
from tests.e2e.viewer_page import ViewerPage
from tests.service.process import ServerProcess

OpenViewer = Callable[..., ViewerPage]

expect.set_options(timeout=30_000)  # machines that run tests are busy, and a first explanation loads a graph


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    """One for all tests of a module: its pages share loaded files, as a reader's do.

    Not for longer: while Playwright is open its event loop runs in this thread, and no other could.
    """
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with open_browser() as opened:
        yield opened.new_context()


@pytest.fixture(scope="session")
def long_artifact(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model with all 512 positions that it has; its own limit is 256."""
    directory = tmp_path_factory.mktemp("artifacts") / "long"
    shutil.copytree(default_artifact, directory)
    manifest = json.loads((default_artifact / "manifest.json").read_text())
    (directory / "manifest.json").unlink()
    (directory / "manifest.json").write_text(json.dumps({**manifest, "max_sequence_length": 512}))
    return directory


@pytest.fixture(scope="session")
def viewer_server(long_artifact: Path) -> Iterator[ServerProcess]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with ServerProcess("service", "--model", str(long_artifact)) as process:
        yield process.wait_until_ready()
        assert process.stop() == 0


@pytest.fixture
def open_viewer(browser: BrowserContext, viewer_server: ServerProcess) -> Iterator[OpenViewer]:
    """Opens the viewer in a window of its own; at the end nothing may have been complained about."""
    opened: list[ViewerPage] = []

    def open_page(hash_: str = "", **window: Any) -> ViewerPage:
        page = ViewerPage(browser, viewer_server, hash_, **window)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.close()
        assert not page.complaints
        assert page.foreign == []
