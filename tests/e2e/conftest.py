"""The viewer in a real browser, served by the real process on the default model."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from tests.e2e.viewer_page import CHROMIUM, ViewerPage, open_browser
from tests.service.process import ServerProcess

OpenViewer = Callable[..., ViewerPage]


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    """One for all tests of a module: its pages share loaded files, as a reader's do.

    Not for longer: while Playwright is open its event loop runs in this thread, and no other could.
    """
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with open_browser() as opened:
        yield opened.new_context()


def with_manifest(artifact: Path, copy: Path, **changes: Any) -> Path:
    """A copy of an artifact with other fields in its manifest; fields of an object are changed one by one."""
    shutil.copytree(artifact, copy)
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, value in changes.items():
        manifest[name] = {**manifest[name], **value} if isinstance(value, dict) else value
    path.unlink()
    path.write_text(json.dumps(manifest))
    return copy


@pytest.fixture(scope="session")
def long_artifact(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model with all 512 positions that it has; its own limit is 256."""
    return with_manifest(default_artifact, tmp_path_factory.mktemp("artifacts") / "long", max_sequence_length=512)


def serve(artifact: Path) -> Iterator[ServerProcess]:
    """The real process, for a fixture."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with ServerProcess("service", "--model", str(artifact)) as process:
        yield process.wait_until_ready()
        assert process.stop() == 0


@pytest.fixture(scope="session")
def viewer_server(long_artifact: Path) -> Iterator[ServerProcess]:
    yield from serve(long_artifact)


@pytest.fixture
def open_viewer(browser: BrowserContext, viewer_server: ServerProcess) -> Iterator[OpenViewer]:
    """Opens the viewer in a window of its own, with a text or two if they are given, and waits until they are drawn.

    At the end nothing may have been complained about.
    """
    opened: list[ViewerPage] = []

    def open_page(hash_: str = "", *, a: str = "", b: str = "", **window: Any) -> ViewerPage:
        page = ViewerPage(browser, viewer_server, hash_, **window)
        opened.append(page)
        if b:
            page.type(b, "#b")
        if a:
            page.show(a)
        return page

    yield open_page
    for page in opened:
        page.close()
        assert not page.complaints
        assert page.foreign == []
