"""The viewer in Debian's Chromium: nothing is downloaded, and nothing leaves this machine."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Request, expect, sync_playwright

from tests.service.process import ServerProcess

expect.set_options(timeout=30_000)  # machines that run tests are busy, and a first explanation loads a graph

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",  # tests run as root in containers, where Chromium has none
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser without a window, closed at the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", *FLAGS])
        try:
            yield browser
        finally:
            browser.close()


def luminance(pixels: list[int]) -> NDArray[np.float64]:
    """Relative luminance (WCAG 2.2) of RGBA bytes, one after another."""
    srgb = np.array(pixels, dtype=np.float64).reshape(-1, 4)[:, :3] / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ [0.2126, 0.7152, 0.0722])


class ViewerPage:
    """The viewer in a page of its own.

    Attributes:
        page: Playwright's.
        complaints: what stood in the console, policy violations among it, and exceptions; failed requests aside, which
            tests make on purpose.
        foreign: requests to anything but the server.
        refused: addresses that were answered with an error.
    """

    def __init__(
        self,
        context: BrowserContext,
        server: ServerProcess,
        hash_: str = "",
        *,
        width: int = 1280,
        height: int = 900,
        theme: str = "light",
        is_open: bool = True,
        is_first_visit: bool = False,
    ) -> None:
        scheme: Literal["dark", "light"] = "dark" if theme == "dark" else "light"
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.refused: list[str] = []
        self.origin = "http://{}:{}".format(*server.address)
        self.page = context.new_page()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=scheme)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._see)
        self.page.on("response", lambda response: self.refused.append(response.url) if response.status >= 400 else None)
        if not is_first_visit:  # the first one opens on an example
            self.page.add_init_script("history.state ?? history.replaceState({}, '')")
        self.page.goto(f"{self.origin}/#{hash_}" if hash_ else self.origin)
        if is_open:  # to whoever comes, without a key
            expect(self.page.locator("#model")).not_to_be_empty()

    def close(self) -> None:
        self.page.evaluate("localStorage.clear()")  # pages of one context share it
        self.page.close()

    def type(self, text: str, box: str = "#a") -> None:
        self.page.fill(box, text)

    def show(self, text: str) -> None:
        """Types a text and waits until all of it is drawn."""
        self.type(text)
        self.wait_until_filled()

    def wait_until_filled(self) -> None:
        expect(self.page.locator("#work")).to_be_visible()
        expect(self.page.locator(".tile.waiting")).to_have_count(0)
        expect(self.page.locator(".statistics, #statistics:not(:empty)").first).to_be_visible()
        expect(self.page.locator("#panes canvas").first).to_be_visible()

    def labels(self) -> list[str]:
        """Tokens or words as they are shown."""
        return self.page.locator("#tokens .token").all_text_contents()

    def readout(self) -> dict[str, float]:
        """The numbers that are pointed at, by what they measure."""
        return {
            part.get_attribute("data-measure") or "": float(part.locator("b").inner_text())
            for part in self.page.locator("#readout [data-measure]").all()
        }

    def save(self, kind: str, folder: Path) -> Path:
        """What the button for this kind of file saves, in a folder, under the name that it gives."""
        with self.page.expect_download() as download:
            self.page.locator(f"#save-{kind}").click()
        path = folder / download.value.suggested_filename
        download.value.save_as(path)
        return path

    def module(self, name: str, body: str, argument: Any = None) -> Any:
        """Runs JavaScript with one of the page's modules as `module` and an argument as `argument`."""
        return self.page.evaluate(
            f"async (argument) => {{ const module = await import('/static/viewer/{name}.js'); {body} }}", argument
        )

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not re.match("Failed to load resource", message.text):
            self.complaints.append(message.text)

    def _see(self, request: Request) -> None:
        address = urlsplit(request.url)
        if f"{address.scheme}://{address.netloc}" != self.origin and address.scheme not in ("data", "blob"):
            self.foreign.append(request.url)
