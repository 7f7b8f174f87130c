"""Takes the documents' pictures of the viewer in a real browser: `python -m tests.e2e.pictures --model DIR`."""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import BrowserContext, expect
from tqdm import tqdm

from tests.e2e.viewer_page import CHROMIUM, ViewerPage, open_browser
from tests.service.process import ROOT, ServerProcess
from tests.task_artifacts import kept_artifact, make_classifier

TROPHY = "The trophy does not fit into the suitcase because it is too large."
IT = 10  # the place of "it" among its tokens
SAFE = "The medicine is safe for children."
UNSAFE = "The medicine is not safe for children."
QUERY = "Where did the cat sit?"
DOCUMENT = "The cat sat on the mat."
MOST_BYTES = 200_000


@dataclass(frozen=True)
class Picture:
    """One picture: the address, the steps, and which part of the page is shown."""

    name: str
    state: dict[str, str | int]
    act: Callable[[ViewerPage], None]
    part: str | None = None
    height: int = 900
    theme: str = "light"


def point_at_it(viewer: ViewerPage) -> None:
    viewer.page.locator("#tokens .token").nth(IT).click()
    viewer.page.mouse.move(0, 0)


def point_at_medicine(viewer: ViewerPage) -> None:
    expect(viewer.page.locator("#pair-sum")).to_be_visible()
    viewer.page.locator("#pair-a .token").nth(2).click()
    viewer.page.mouse.move(0, 0)


PICTURES = (
    Picture("viewer", {"a": TROPHY, "layer": 3, "head": 1}, point_at_it, height=1010),
    Picture("norms", {"a": TROPHY, "layer": 2, "head": 9, "view": "matrix", "measure": "both"}, point_at_it, "#panes"),
    Picture("pair", {"mode": "pair", "a": SAFE, "b": UNSAFE}, point_at_medicine, "#pair", theme="dark"),
)
CROSS_ENCODER = Picture(
    "cross-encoder",
    {"mode": "pair", "a": QUERY, "b": DOCUMENT, "layer": 1, "head": 2},
    lambda viewer: expect(viewer.page.locator("#across-blocks canvas").first).to_be_visible(),
    "#across",
)


def main() -> int:
    """Takes all pictures, or says why not."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.pictures", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="artifact of the default model")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "pictures", help="directory to write to")
    arguments = parser.parse_args()
    if CHROMIUM is None:
        parser.exit(1, "pictures: chromium is not installed (.ci/tools installs it)\n")
    arguments.output.mkdir(parents=True, exist_ok=True)
    take_all(arguments.model, PICTURES, arguments.output)
    drawn = kept_artifact("reranker", make_classifier, labels=("LABEL_0",))
    take_all(drawn.artifact, (CROSS_ENCODER,), arguments.output)
    return 0


def take_all(model: Path, pictures: Sequence[Picture], output: Path) -> None:
    """Writes pictures of the viewer on one artifact to a directory."""
    with ServerProcess("service", "--model", str(model.absolute())) as server, open_browser() as browser:
        server.wait_until_ready()
        context = browser.new_context()
        for picture in tqdm(pictures, desc="pictures"):
            (output / f"{picture.name}.png").write_bytes(compress(take(context, server, picture)))


def take(context: BrowserContext, server: ServerProcess, picture: Picture) -> bytes:
    """A PNG of what the browser shows."""
    hash_ = urlencode(picture.state)
    viewer = ViewerPage(context, server, hash_, width=1440, height=picture.height, theme=picture.theme)
    try:
        viewer.wait_until_filled()
        viewer.page.wait_for_load_state("networkidle")
        picture.act(viewer)
        viewer.page.wait_for_timeout(200)  # the next frame
        taken = viewer.page if picture.part is None else viewer.page.locator(picture.part)
        return taken.screenshot()
    finally:
        viewer.close()


def compress(content: bytes) -> bytes:
    """The same picture in 256 colours of its own, none off by more than a few of 255 steps.

    Raises:
        ValueError: it is too large for a repository all the same.
    """
    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    if len(buffer.getvalue()) > MOST_BYTES:
        raise ValueError(f"a picture of {len(buffer.getvalue())} bytes, more than {MOST_BYTES}")
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
