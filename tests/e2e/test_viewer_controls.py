"""The viewer's controls: keyboard, links, files, themes, and heads switched off."""

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.etree import ElementTree

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Route, expect
from safetensors.numpy import load_file

from tests.e2e.conftest import OpenViewer
from tests.e2e.test_viewer import TEXT, weights_of
from tests.e2e.viewer_page import ViewerPage, luminance
from tests.service.process import ServerProcess

pytestmark = pytest.mark.slow


def wait_for_link(viewer: ViewerPage, expected: dict[str, list[str]]) -> str:
    """The address's part after #, once it has the expected value."""
    viewer.page.wait_for_url(lambda url: parse_qs(url.partition("#")[2]) == expected)
    return viewer.page.url.partition("#")[2]


def reload_with(viewer: ViewerPage, change: Callable[[dict[str, Any]], object]) -> None:
    """Loads the page anew, where the service has another manifest."""

    def answer(route: Route) -> None:
        info = route.fetch().json()
        change(info["manifest"])
        route.fulfill(json=info)

    viewer.page.route("**/info", answer)
    viewer.page.reload()
    expect(viewer.page.locator("#model")).not_to_be_empty()


def test_the_page_says_what_the_service_has(open_viewer: OpenViewer) -> None:
    """A causal network, with what its export was compared, and a link to the head report if there is one."""
    viewer = open_viewer()
    said, links = viewer.page.locator("#compared"), viewer.page.locator("footer a:visible")
    expect(said).to_have_text("This export was compared with nothing but itself: it was not asked for.")
    expect(links).to_have_text(["API", "OpenAPI", "Info", "Metrics", "Health", "Ready"])
    figures = {"transformers": "5.23.0", "sentence-transformers": "6.2.0", "texts": 9, "tolerance": 2e-4}
    parity = {"original": {"compared": True, **figures, "hidden_states": 0.0, "pooled": 1.7e-7}}

    def change(manifest: dict[str, Any]) -> None:
        manifest.update(parity=parity, files={"heads.json": {}}, config={**manifest["config"], "causal": True})

    reload_with(viewer, change)
    expect(viewer.page.locator("#model")).to_contain_text("causal: a token sees itself and those before it")
    libraries = "transformers 5.23.0 and sentence-transformers 6.2.0"
    expect(said).to_have_text(f"This export was compared with {libraries} on 9 texts: it differs by 1.7e-7 at most.")
    expect(links).to_have_text(["API", "OpenAPI", "Info", "Head report", "Metrics", "Health", "Ready"])


def test_arrows_move_over_the_heads_and_enter_opens(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(a=TEXT)
    assert viewer.page.locator(".heads .tile[tabindex='0']").count() == 1
    viewer.page.locator(".heads .tile[tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "End", "ArrowLeft"):
        viewer.page.keyboard.press(key)
    focused = viewer.page.locator(":focus")
    assert focused.get_attribute("aria-label") == "Layer 2, head 10"
    assert focused.evaluate("tile => tile.matches(':focus-visible')")
    viewer.page.keyboard.press("Enter")
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 2, head 10")
    expect(focused).to_have_attribute("aria-selected", "true")
    viewer.page.locator("#example").focus()
    for text in (TEXT, re.compile("^Antidis"), re.compile("^Mary")):  # in a list that stays closed
        viewer.page.keyboard.press("ArrowDown")
        expect(viewer.page.locator("#a")).to_have_value(text)
    viewer.page.emulate_media(forced_colors="active")
    tiles = [viewer.page.locator(f"[data-key='{key}']") for key in ("3.1", "3.2")]  # the first example's and another
    assert [tile.evaluate("tile => getComputedStyle(tile).outlineStyle") for tile in tiles] == ["solid", "none"]


def test_a_link_carries_the_view_and_no_text(open_viewer: OpenViewer) -> None:
    first = open_viewer(a=TEXT)
    first.page.locator("[data-key='4.9']").click()
    first.page.get_by_role("radio", name="Words").check(force=True)
    first.page.get_by_role("radio", name="Matrix").check(force=True)
    first.page.get_by_label("Hide special tokens").check()
    first.page.locator("[name=threshold]").fill("12")
    expected = parse_qs("layer=4&head=9&view=matrix&level=word&hide=1&threshold=12")
    link = wait_for_link(first, expected)
    second = open_viewer(link, a=TEXT)
    expect(second.page.locator("#head-title")).to_have_text("Layer 4, head 9")
    assert second.labels()[0] == "The"
    assert second.page.locator("#panes .pane").count() == 1
    assert second.page.locator("[name=threshold]").input_value() == "12"
    wait_for_link(second, expected)


def test_text_is_in_a_link_when_asked(open_viewer: OpenViewer) -> None:
    first = open_viewer(a=TEXT)
    first.page.get_by_label("include text in link").check()
    second = open_viewer(wait_for_link(first, {"a": [TEXT]}))
    second.wait_until_filled()
    assert second.page.input_value("#a") == TEXT
    second.page.get_by_label("include text in link").uncheck()
    wait_for_link(second, {})


def test_a_link_with_nonsense_opens_all_the_same(open_viewer: OpenViewer) -> None:
    nonsense = "layer=77&head=-3&view=<b>&level=%00&threshold=1e9&off=9.9,1.1,x&mode=three&hide=constructor"
    viewer = open_viewer(nonsense, a=TEXT)
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 0, head 0")
    wait_for_link(viewer, {})
    reload_with(viewer, lambda manifest: manifest["files"].pop("explain.onnx"))
    viewer.page.evaluate("location.hash = 'mode=pair&through=network'")  # a link for another artifact, in an open page
    wait_for_link(viewer, {"mode": ["pair"]})


def lines_of(svg: Path) -> list[str | None]:
    """Texts of a picture, its title first."""
    drawn = ElementTree.parse(svg).getroot()  # noqa: S314 - our own
    return [part.text for part in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_what_is_shown_goes_elsewhere(open_viewer: OpenViewer, viewer_server: ServerProcess, tmp_path: Path) -> None:
    viewer = open_viewer("layer=5&head=0&hide=1")
    text = "It's \"large\", isn't it?"
    viewer.show(text)
    options = {"exclude_special": True, "renormalise": True}
    expected = weights_of(viewer_server, text, 5, 0, **options)
    rows = list(csv.reader(viewer.save("csv", tmp_path).read_text().splitlines()))
    assert rows[0] == ["", *viewer.labels()]
    np.testing.assert_allclose([list(map(float, row[1:])) for row in rows[1:]], expected, atol=1e-6)
    lines = lines_of(viewer.save("svg", tmp_path))
    assert lines[1:3] == [f"Text: {text}", "weights; by tokens; without special tokens, rows sum to 1 again"]
    assert "Layer 5, head 0" in str(lines[0])
    with Image.open(viewer.save("png", tmp_path)) as picture:
        assert picture.width > 2000  # two drawings side by side at twice the screen's pixels
        assert picture.height > 600
    saved = json.loads(viewer.save("json", tmp_path).read_text())
    assert (saved["text"], saved["layer"], saved["head"]) == (text, 5, 0)
    tensors = load_file(viewer.save("safetensors", tmp_path))
    assert tensors["attention.0"].shape[:2] == (6, 12)
    np.testing.assert_allclose(tensors["attention.0"][5, 0], expected, atol=1e-6)

    viewer.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    viewer.page.locator("#copy-curl").click()
    command = shlex.split(viewer.page.evaluate("window.copied"))
    assert command[:3] == ["curl", "-s", f"{viewer.origin}/encode"]
    answer = viewer_server.post("/encode", json.loads(command[-1]))
    np.testing.assert_allclose(answer["attention"][0]["weights"][0][0], expected, atol=1e-6)
    viewer.page.locator("#copy-python").click()
    expect(viewer.page.locator("#kept")).to_have_text("Copy as Python: copied")
    program = viewer.page.evaluate("window.copied")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    np.testing.assert_allclose(json.loads(run.stdout)[0][0], expected, atol=1e-6)
    viewer.page.get_by_role("radio", name="Norms").check(force=True)
    assert lines_of(viewer.save("svg", tmp_path))[2] == "norms; by tokens; without special tokens"


def test_two_heads_and_two_texts_are_compared(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer("layer=5&head=0", a=TEXT)
    viewer.page.locator("#pin").click()
    viewer.page.locator("[data-key='3.1']").click()
    captions = viewer.page.locator("#compare figcaption")
    expect(captions).to_contain_text(["Layer 5, head 0", "Layer 3, head 1", "Second minus first"])
    difference = weights_of(viewer_server, TEXT, 3, 1) - weights_of(viewer_server, TEXT, 5, 0)
    moved = np.abs(difference).sum() / 2 / len(difference)
    expect(viewer.page.locator("#compare-readout")).to_contain_text(f"On average {moved:.4f} of a row's weight")
    canvas = viewer.page.locator("#compare canvas").first
    canvas.focus()
    canvas.press("ArrowDown")
    expect(viewer.page.locator("#compare-readout")).to_contain_text(f"{difference[0, 0]:.4f}")
    viewer.show("Mary gave John the book.")
    expect(captions).to_contain_text([TEXT[:30], "Mary gave John"])
    expect(captions).to_have_count(2)
    viewer.page.locator("#unpin").click()
    expect(viewer.page.locator("#compare")).to_be_hidden()


def test_words_are_also_read_as_they_were_written(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(a="Ünder 😀 Trophies")
    viewer.page.locator("#tokens .token").nth(-2).focus()
    expect(viewer.page.locator("#readout")).to_contain_text(re.compile("written “(Trophies|.*ies)”"))
    viewer.page.locator("#tokens .token").first.focus()
    expect(viewer.page.locator("#readout")).to_contain_text("[CLS]")
    expect(viewer.page.locator("#readout")).not_to_contain_text("written")  # it is not in the text


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing(open_viewer: OpenViewer, theme: str, width: int) -> None:
    viewer = open_viewer("hide=1", theme=theme, width=width)
    viewer.page.select_option("#example", label="Two texts: a paraphrase")
    viewer.wait_until_filled()
    expect(viewer.page.locator("#pair-sum")).to_be_visible()
    viewer.page.locator("[data-find=previous]").click()
    viewer.page.locator("#pin").click()
    viewer.page.locator("#why summary").click()
    viewer.page.locator("#why-rank").click()
    expect(viewer.page.locator("#why-rows tr").last).to_contain_text("sum")
    assert viewer.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(viewer.page).response["violations"]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found] == []


def test_pictures_of_any_text_are_well_formed_and_nothing_has_none(open_viewer: OpenViewer, tmp_path: Path) -> None:
    viewer = open_viewer(a="a\u0001b <c>\ufffe & 'd'")
    assert lines_of(viewer.save("svg", tmp_path))[1] == "Text: ab <c> & 'd'"
    outside = """() => [...document.querySelectorAll("text")].filter((text) => {
      const [own, all] = [text, document.documentElement].map((one) => one.getBoundingClientRect());
      return own.left < all.left || own.right > all.right || own.top < all.top;
    }).map((text) => text.textContent)"""
    viewer.page.get_by_role("radio", name="Words").check(force=True)
    for text in ("Hi", "ＷＩＤＥｌｅｔｔｅｒｓｏｆａｗｏｒｄ"):
        viewer.type(text)
        expect(viewer.page.locator("#tokens .token").nth(1)).to_have_text(text)
        viewer.wait_until_filled()
        picture = viewer.page.context.new_page()
        picture.goto(viewer.save("svg", tmp_path).as_uri())
        assert picture.evaluate(outside) == []
        picture.close()
    viewer.page.get_by_label("Hide special tokens").check()
    viewer.type("\u200b")
    expect(viewer.page.locator("#readout")).to_contain_text("Nothing is left")
    for kind in ("png", "svg"):
        viewer.page.locator(f"#save-{kind}").click()
    viewer.page.wait_for_timeout(100)  # the page would complain by now


def test_themes_follow_the_system_and_the_button(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(theme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = viewer.page.evaluate(background)
    viewer.page.locator("#theme").click()
    light = viewer.page.evaluate(background)
    darkness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (dark, light)]
    assert darkness[0] < 100
    assert darkness[1] > 600
    viewer.page.reload()
    assert viewer.page.evaluate(background) == light


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_special_token_among_the_lines_can_be_read_while_it_is_tinted(open_viewer: OpenViewer, theme: str) -> None:
    viewer = open_viewer("view=lines", theme=theme, a=TEXT)
    viewer.page.locator("#tokens .token").first.focus()
    pixels = viewer.page.locator("canvas.lines").evaluate(
        """async (canvas) => {
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          const page = new OffscreenCanvas(60, 24).getContext("2d");
          page.fillStyle = getComputedStyle(canvas.closest(".card")).backgroundColor;
          page.fillRect(0, 0, 60, 24);
          page.drawImage(canvas, 0, 0);
          return [...page.getImageData(0, 4, 60, 16).data];
        }"""
    )
    shades = luminance(pixels) + 0.05
    assert (np.maximum(shades, shades[0]) / np.minimum(shades, shades[0])).max() > 4.5


def test_a_head_switched_off_turns_the_embedding(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    effect = effect_of(viewer_server, 3, 2)
    viewer = open_viewer("layer=3&head=2", a=TEXT)
    asked: list[Any] = []
    viewer.page.on("request", lambda request: asked.append(request.post_data_json))
    viewer.page.locator("#switch").click()
    cosine = viewer.page.locator("#effect [data-effect]")
    expect(cosine).to_be_visible()
    assert float(cosine.get_attribute("data-effect") or "nan") == pytest.approx(effect, abs=1e-5)
    masks = [body["head_mask"] for body in asked if body and "head_mask" in body]  # of both: one engine computes them
    assert sorted(masks) == [[[3, 2, 0]]] * 2 + [[[3, 2, 1]]] * 2
    expect(viewer.page.locator("[data-key='3.2']")).to_have_class(re.compile(r"\boff\b"))
    wait_for_link(viewer, {"layer": ["3"], "head": ["2"], "off": ["3.2"]})
    viewer.page.locator("#switch").click()
    expect(cosine).to_have_count(0)


def test_heads_that_are_off_are_told_apart_and_a_rollout_has_none_to_switch(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("off=0.1,00.01,3.2,0.1&a=hello+world")
    expect(viewer.page.locator("#effect [data-effect]")).to_be_visible()
    expect(viewer.page.locator("#effect")).to_contain_text("Off: layer 0, head 1; layer 3, head 2 ")
    wait_for_link(viewer, {"a": ["hello world"], "off": ["0.1,3.2"]})
    other = open_viewer("map=rollout&a=hello+world")
    expect(other.page.locator("#effect")).to_contain_text("without a head: choose one of them")


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)])
def test_a_readout_covers_the_figure_only_where_it_has_numbers(open_viewer: OpenViewer, size: tuple[int, int]) -> None:
    viewer = open_viewer(width=size[0], height=size[1], a=TEXT)
    below = "readout => readout.getBoundingClientRect().top >= panes.getBoundingClientRect().bottom"
    readout = viewer.page.locator("#readout")
    readout.evaluate("() => panes.scrollIntoView({block: 'start'})")
    viewer.page.evaluate("scrollBy(0, 60 - innerHeight)")
    assert readout.evaluate(below)
    viewer.page.locator("#panes canvas").first.scroll_into_view_if_needed()
    viewer.page.locator("#panes canvas.matrix").click(position={"x": 120, "y": 120})
    expect(readout.locator("[data-measure]").first).to_be_visible()
    assert readout.evaluate("readout => getComputedStyle(readout).position") == "sticky"


def test_heads_are_ranked_by_their_effect(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer(a=TEXT)
    viewer.page.locator("#rank").click()
    expect(viewer.page.locator("progress")).to_be_visible()
    viewer.page.get_by_role("button", name="Cancel").click()
    expect(viewer.page.locator("progress")).to_have_count(0)
    expect(viewer.page.locator("#switch")).to_be_visible()
    viewer.page.locator("#rank").click()
    listed = viewer.page.locator("#ranked li")
    expect(listed).to_have_count(10, timeout=60_000)
    shown = [float(number) for number in listed.locator(".number").all_text_contents()]
    assert shown == sorted(shown, reverse=True)
    names = listed.locator("button").all_text_contents()
    for name, effect in list(zip(names, shown, strict=True))[::4]:
        layer, head = map(int, re.findall(r"\d+", name))
        assert effect == pytest.approx(effect_of(viewer_server, layer, head), abs=6e-5)
    listed.locator("button").first.click()
    expect(viewer.page.locator("#head-title")).to_have_text(names[0].capitalize())


def effect_of(server: ServerProcess, layer: int, head: int) -> float:
    """1 - cos between the text's embedding with and without a head."""
    (whole,) = server.post("/encode", {"inputs": TEXT})["embeddings"]
    (without,) = server.post("/encode", {"inputs": TEXT, "head_mask": [[layer, head, 0]]})["embeddings"]
    return 1 - float(np.dot(whole, without))
