"""The viewer while an answer is under way: whatever is on screen or saved belongs to one request, and says which."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Route, expect

from tests.e2e.conftest import OpenViewer
from tests.e2e.test_viewer import TEXT, weights_of
from tests.e2e.test_viewer_failures import refusal
from tests.e2e.viewer_page import ViewerPage
from tests.service.process import ServerProcess

pytestmark = pytest.mark.slow

LATENCY = 0.8  # seconds
OTHER = "Mary gave John the book because he had asked for it."  # not the example with which the page opens


def delay(viewer: ViewerPage, *paths: str, wanted: Callable[[dict[str, Any]], bool] = bool) -> None:
    """Lets requests whose body is `wanted` wait; the others go on at once."""

    def handle(route: Route) -> None:
        if wanted(json.loads(route.request.post_data or "{}")):
            time.sleep(LATENCY)
        route.fallback()

    for path in paths or ("encode", "tokenize", "explain"):
        viewer.page.route(f"**/{path}", handle)


@pytest.mark.parametrize("change", ["head", "hide", "level"])
def test_saved_data_is_of_one_request(
    open_viewer: OpenViewer, viewer_server: ServerProcess, tmp_path: Path, change: str
) -> None:
    viewer = open_viewer("layer=3&head=1", a=TEXT)
    delay(viewer, "encode")
    if change == "head":
        viewer.page.locator("[data-key='5.1']").click()
    elif change == "hide":
        viewer.page.get_by_label("Hide special tokens").check()
    else:
        viewer.page.get_by_role("radio", name="Words").check(force=True)
    file = viewer.save("json", tmp_path)
    saved = json.loads(file.read_text())
    layer = 5 if change == "head" else 3
    assert (file.name, saved["layer"], saved["head"]) == (f"attention-layer-{layer}-head-1.json", layer, 1)
    labels = saved.get("words") or saved["tokens"]
    assert np.shape(saved["weights"]) == (len(labels), len(labels))
    assert saved["exclude_special"] == ("[CLS]" not in labels) == (change == "hide")
    assert ("words" in saved) == (change == "level")
    if change == "head":
        np.testing.assert_allclose(saved["weights"], weights_of(viewer_server, TEXT, 5, 1), atol=1e-7)


def test_nothing_of_the_text_before_stands_beside_the_new_one(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(a="Hi there")
    before = viewer.page.locator("#statistics").inner_text()
    delay(viewer, "encode", wanted=lambda one: "head_mask" not in one and one.get("attention", {}).get("form") is None)
    viewer.type(OTHER)
    expect(viewer.page.locator("#work")).to_have_attribute("aria-busy", "true")
    for _ in range(20):  # until the map is drawn, the numbers are neither of the old text nor next to the old map
        if viewer.page.locator("#work").get_attribute("aria-busy") == "false":
            break
        assert viewer.page.locator("#statistics").inner_text() == ""
        viewer.page.wait_for_timeout(50)
    viewer.wait_until_filled()
    expect(viewer.page.locator("#work")).to_have_attribute("aria-busy", "false")
    assert viewer.page.locator("#statistics").inner_text() not in {"", before}


def test_an_effect_names_no_token_of_the_text_before(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("off=1.2", a=OTHER)
    held: list[Route] = []
    viewer.page.route("**/tokenize", lambda route: held.extend([route]))
    viewer.type("Hi")
    expect(viewer.page.locator(".tile.waiting")).not_to_have_count(0)
    viewer.page.locator("#grid [data-key='2.3']").click()
    expect(viewer.page.locator("#effect [data-effect]")).to_be_visible()
    expect(viewer.page.locator("#effect li")).to_have_count(0)
    held[0].fallback()
    expect(viewer.page.locator("#effect li")).to_have_count(3)


def test_a_similarity_is_not_shown_of_another_pair(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("mode=pair", a="A cat sat.", b="A dog ran.")
    expect(viewer.page.locator("#similarity")).not_to_be_empty()
    delay(viewer, "explain")
    viewer.type("The stock market fell.")
    expect(viewer.page.locator("#pair")).to_have_attribute("aria-busy", "true")
    expect(viewer.page.locator("#similarity")).to_be_empty()
    expect(viewer.page.locator("#pair .token")).to_have_count(0)
    expect(viewer.page.locator("#pair")).to_have_attribute("aria-busy", "false")
    expect(viewer.page.locator("#similarity")).not_to_be_empty()


def test_a_busy_server_is_said_and_asked_again_when_it_says(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(a="Hi there")
    notice = viewer.page.locator("#notices .notice")

    def refuse(seconds: str, times: int | None = None) -> None:
        full = refusal(429, "the queue is full", retry_after=seconds)
        viewer.page.route("**/tokenize", lambda route: route.fulfill(**full), times=times)

    refuse("2", times=1)
    viewer.type(OTHER)
    expect(notice).to_contain_text(re.compile(r"busy.*again in 2 s"))
    assert viewer.page.locator("#statistics").inner_text() == ""
    viewer.wait_until_filled()
    expect(notice).to_have_count(0)
    refuse("5")
    viewer.type("The first text")
    expect(notice).to_contain_text("again in 5 s")
    viewer.page.unroute("**/tokenize")
    viewer.show("The second one")  # the text that waited is gone
    expect(notice).to_have_count(0)


def test_saved_data_is_of_the_pair_that_is_there(open_viewer: OpenViewer, tmp_path: Path) -> None:
    viewer = open_viewer("mode=pair&off=0.1,3.2", a="A cat sat.", b="A dog ran.")
    expect(viewer.page.locator("#pair-matrix")).to_be_visible()
    saved = json.loads(viewer.save("json", tmp_path).read_text())
    assert saved["pair"]["texts"] == ["A cat sat.", "A dog ran."]
    assert saved["pair"]["a"]["tokens"][1] == "a"
    assert saved["heads_off"] == ["0.1", "3.2"]
    viewer.type("", "#b")
    expect(viewer.page.locator("#pair")).to_be_hidden()
    viewer.wait_until_filled()
    assert "pair" not in json.loads(viewer.save("json", tmp_path).read_text())


def test_a_key_that_no_header_can_carry_is_refused_in_its_form(open_viewer: OpenViewer) -> None:
    viewer = open_viewer()
    viewer.page.evaluate("document.getElementById('key-form').hidden = false")
    field = viewer.page.get_by_label("API key")
    field.fill("ключ-от-двери")
    field.press("Enter")
    expect(viewer.page.locator("#notices .notice")).to_contain_text("letters that no API key has")
    expect(field).to_be_visible()
    with viewer.page.expect_request("**/tokenize") as sent:
        field.fill("\u200bgood-key\ufeff ")  # as copied from a page or a chat
        field.press("Enter")
        viewer.type(OTHER)
    assert sent.value.headers["authorization"] == "Bearer good-key"


def test_back_and_reload_lose_nothing(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(a=TEXT)
    for key in ("2.3", "4.5"):
        viewer.page.locator(f"[data-key='{key}']").click()
        expect(viewer.page.locator("#head-title")).to_have_text("Layer {}, head {}".format(*key.split(".")))
        viewer.page.wait_for_timeout(250)  # longer than the pause after which the address follows
    viewer.page.go_back()
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 2, head 3")
    assert viewer.page.input_value("#a") == TEXT
    viewer.page.go_forward()
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 4, head 5")
    viewer.page.reload()
    viewer.wait_until_filled()
    assert viewer.page.input_value("#a") == TEXT
    assert "trophy" not in viewer.page.url
    viewer.page.locator("footer a").first.click()
    viewer.page.wait_for_url("**/docs")
    viewer.page.go_back()
    viewer.wait_until_filled()
    assert viewer.page.input_value("#a") == TEXT
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 4, head 5")


def test_a_first_visit_shows_the_head_that_answers_the_example(open_viewer: OpenViewer, tmp_path: Path) -> None:
    viewer = open_viewer(is_first_visit=True)
    viewer.wait_until_filled()
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 3, head 1")
    it, trophy = viewer.labels().index("it"), viewer.labels().index("trophy")
    weights = json.loads(viewer.save("json", tmp_path).read_text())["weights"]
    assert weights[it][trophy] == max(weights[it])
    viewer.type("")
    expect(viewer.page.locator("#work")).to_be_hidden()
    expect(viewer.page.locator("#examples")).to_be_visible()
