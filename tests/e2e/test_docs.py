"""The page at /docs in a real browser: routes are tried in their own section, and only there."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.service.fake_engine import write_fake_artifact
from tests.service.process import fake_server


@pytest.mark.parametrize("flags", [(), pytest.param(("--admin-port", "0"), marks=pytest.mark.slow)])
def test_routes_can_be_tried_where_they_are(browser: BrowserContext, tmp_path: Path, flags: tuple[str, ...]) -> None:
    with fake_server(write_fake_artifact(tmp_path), *flags).wait_until_ready() as server:
        port = server.address[1]
        if flags:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", server.wait_for_line("metrics and documentation are on"))
            assert found
            port = int(found[1])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/docs")
        page.locator(".opblock-summary-control").first.click()
        expect(page.locator(".opblock-body")).to_be_visible()
        expect(page.get_by_role("button", name="Try it out")).to_have_count(0 if flags else 1)
        expect(page.locator("#elsewhere")).to_be_visible(visible=bool(flags))
        page.close()
        assert server.stop() == 0
