"""What the viewer draws and says equals what the API answers, for texts of all kinds."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import OpenViewer
from tests.e2e.viewer_page import ViewerPage
from tests.service.process import ServerProcess

TEXT = "The trophy does not fit into the suitcase because it is too large."
PAIR = ("The medicine is safe for children.", "The medicine is not safe for children.")
LONG = " ".join([TEXT] * 40)
COLOURS = """tiles => tiles.map(canvas => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
})"""


def weights_of(server: ServerProcess, text: str, layer: int, head: int, **options: Any) -> Any:
    body = {"inputs": text, "attention": {"layers": [layer], "heads": [head], **options}}
    return np.array(server.post("/encode", body)["attention"][0]["weights"][0][0])


def point_at(viewer: ViewerPage, row: int, column: int) -> None:
    """Moves to a cell by keyboard."""
    canvas = viewer.page.locator("#panes canvas.matrix").first
    canvas.focus()
    canvas.press("ArrowDown")  # from nowhere to the first cell
    for _ in range(row):
        canvas.press("ArrowDown")
    for _ in range(column):
        canvas.press("ArrowRight")


def check_numbers(viewer: ViewerPage, expected: Any) -> None:
    """Points at two cells of the matrix, and compares what the page says of them."""
    viewer.wait_until_filled()
    viewer.page.wait_for_load_state("networkidle")
    for row, column in ((4, 2), (0, 0)):
        point_at(viewer, row, column)
        assert viewer.readout()["weights"] == pytest.approx(expected[row, column], abs=5.1e-5)
        viewer.page.locator("#save-json").focus()


def test_a_text_fills_the_grid_and_a_head_its_numbers(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer("layer=3&head=2")
    expect(viewer.page.locator("#work")).to_be_hidden()
    viewer.show(TEXT)
    assert viewer.page.locator(".heads .tile").count() == 72
    colours = viewer.page.locator(".tile canvas").evaluate_all(COLOURS)
    assert len(colours) == 73  # the rollout too
    assert min(colours) > 3
    assert viewer.labels()[:3] == ["[CLS]", "the", "trophy"]
    assert viewer.page.locator("#count").inner_text() == "16"
    body = {"inputs": TEXT, "attention": {"layers": "all", "form": "stats"}}
    statistics = viewer_server.post("/encode", body)["attention"][0]["statistics"]
    rows = viewer.page.locator(".statistics tr").all()
    shown = {row.locator("th").inner_text(): float(row.locator(".number").inner_text()) for row in rows}
    assert shown["Entropy"] == pytest.approx(statistics["entropy"][3][2], abs=6e-4)
    assert shown["To special tokens"] == pytest.approx(statistics["special_mass"][3][2], abs=6e-4)
    viewer.page.locator("#tokens .token").nth(5).hover()
    shares = viewer.page.locator("#tokens .token").evaluate_all(
        "tokens => tokens.map(token => Number(token.style.getPropertyValue('--share')))"
    )
    expected = weights_of(viewer_server, TEXT, 3, 2)
    np.testing.assert_allclose(shares, expected[5] / expected.max(), atol=0.0101)  # fifty shades
    viewer.page.mouse.move(0, 0)
    check_numbers(viewer, expected)
    viewer.page.locator(".tile.wide").click()
    expect(viewer.page.locator("#head-title")).to_have_text("Rollout through all layers")
    viewer.page.locator("#tokens .token").nth(2).click()
    assert viewer.readout()["weights"] == pytest.approx(1, abs=1e-4)
    viewer.page.wait_for_load_state("networkidle")
    assert viewer.refused == []


def test_numbers_follow_what_is_hidden_and_the_level(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer("layer=3&head=2", a=TEXT)
    hide, renormalise = (viewer.page.get_by_label(name) for name in ("Hide special tokens", "make rows sum to 1"))
    for is_whole in (True, False):
        hide.check()
        renormalise.set_checked(is_whole)
        expect(viewer.page.locator("#tokens .special")).to_have_count(0)
        options = {"exclude_special": True, **({"renormalise": True} if is_whole else {})}
        check_numbers(viewer, weights_of(viewer_server, TEXT, 3, 2, **options))
    hide.uncheck()
    viewer.page.get_by_role("radio", name="Words").check(force=True)
    expect(viewer.page.locator("#tokens .token", has_text=re.compile("^The$"))).to_have_count(1)
    check_numbers(viewer, weights_of(viewer_server, TEXT, 3, 2, level="word"))


def test_contributions_of_two_texts_add_up_to_similarity(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    """Of their final token vectors, and of their input tokens with those of the biases."""
    viewer = open_viewer("mode=pair")
    viewer.type(PAIR[0])
    viewer.type(PAIR[1], "#b")
    labels, meaning = viewer.page.locator("#pair-b .token"), viewer.page.locator("#pair-meaning")
    body = {"a": PAIR[0], "b": PAIR[1]}
    for kind, more, words, rest in (
        ("Final vectors", {}, "final token vectors", []),
        ("Input tokens", {"through": "network"}, "not why attention looked there", ["biases"]),
    ):
        viewer.page.get_by_role("radio", name=kind).check(force=True)
        expect(meaning).to_contain_text(words)
        answer = viewer_server.post("/explain", {**body, **more})
        expect(labels).to_have_text([*answer["b"]["tokens"], *rest])
        shown, total = (
            float(viewer.page.locator(f"#{name}").get_attribute("data-value") or "nan")
            for name in ("similarity", "pair-sum")
        )
        assert shown == pytest.approx(answer["similarity"], abs=1e-6)
        assert total == pytest.approx(shown, abs=1e-5)
    viewer.page.get_by_role("radio", name="Final vectors").check(force=True)
    expect(labels.last).to_have_text("[SEP]")
    viewer.wait_until_filled()


def test_right_to_left_and_emoji_and_nothing(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(a="القط جلس على الحصيرة")
    assert viewer.page.locator("#tokens .tokens").evaluate("strip => getComputedStyle(strip).direction") == "rtl"
    viewer.page.get_by_role("radio", name="Words").check(force=True)
    viewer.show("I 💙 sushi 🍣 不喜欢 👩‍👩‍👧‍👦!")
    expect(viewer.page.locator("#tokens .token", has_text="💙")).to_have_count(1)
    assert viewer.page.locator("#tokens .tokens").evaluate("strip => getComputedStyle(strip).direction") == "ltr"
    viewer.page.get_by_label("Hide special tokens").check()
    viewer.type("\u200b")  # not empty, and yet no token
    expect(viewer.page.locator("#readout")).to_contain_text("Nothing is left")
    expect(viewer.page.locator(".tile.waiting")).to_have_count(0)
    widths = viewer.page.locator(".tile canvas").evaluate_all("all => all.map(one => one.width)")
    assert widths == [0] * 73  # and not the maps of the text before
    viewer.type("")
    expect(viewer.page.locator("#work")).to_be_hidden()
    expect(viewer.page.locator("#examples")).to_be_visible()
    viewer.page.get_by_role("button", name="What does “it” look at?").click()
    viewer.wait_until_filled()
    assert "suitcase" in viewer.page.input_value("#a")


@pytest.mark.slow
def test_a_text_that_is_too_long_is_cut_and_512_tokens_stay_smooth(open_viewer: OpenViewer, tmp_path: Path) -> None:
    viewer = open_viewer("layer=3&head=2", a=LONG)
    assert viewer.page.locator("#tokens .token").count() == 512
    expect(viewer.page.locator("#notices .notice")).to_contain_text("longer than the 512 tokens")
    assert viewer.page.locator("svg, path, line").count() == 0
    assert viewer.page.evaluate("document.querySelectorAll('*').length") < 1500
    assert max(viewer.page.locator("canvas").evaluate_all("all => all.map(one => one.height)")) < 2000
    viewer.page.evaluate(
        """() => {
          const real = HTMLCanvasElement.prototype.getContext;
          window.pixels = [];
          HTMLCanvasElement.prototype.getContext = function (...kind) {
            window.pixels.push(this.width * this.height);
            return real.apply(this, kind);
          };
          const write = CanvasRenderingContext2D.prototype.fillText;
          CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
            (window.written ??= []).push(text);
            write.call(this, text, ...place);
          };
        }"""
    )
    viewer.save("png", tmp_path)
    assert viewer.page.evaluate("Math.max(...window.pixels)") <= 16e6  # or Safari draws nothing
    assert "Weights, the first 444 of 512 tokens" in viewer.page.evaluate("window.written")
    # Draws both views again as the pointer wanders; the median, since machines that run tests are busy.
    seconds = viewer.page.locator("#panes canvas.matrix").evaluate(
        """async canvas => {
          const box = canvas.getBoundingClientRect();
          const took = [];
          for (let step = 0; step < 20; step += 1) {
            await new Promise(requestAnimationFrame);
            const start = performance.now();
            canvas.dispatchEvent(new PointerEvent("pointermove",
              { clientX: box.left + 40 + 10 * step, clientY: box.top + 40 + 10 * step, bubbles: true }));
            await new Promise(requestAnimationFrame);
            await new Promise(resolve => setTimeout(resolve));
            took.push((performance.now() - start) / 1000);
          }
          return took.sort((a, b) => a - b)[10];
        }"""
    )
    assert seconds < 0.2


def test_lines_that_are_left_out_are_counted(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    text = " ".join([TEXT] * 10)
    viewer = open_viewer("layer=0&head=3&view=lines&threshold=1", a=text)
    caption = viewer.page.locator("#panes p").inner_text()
    found = re.match(r"The ([\d,]+) strongest of ([\d,]+) lines", caption)
    assert found, caption
    drawn, most = (int(number.replace(",", "")) for number in found.groups())
    weights = weights_of(viewer_server, text, 0, 3)
    kept = weights[(weights > 0) & (weights >= 0.01 * weights.max())]
    assert 0 < drawn <= 6000 < most
    assert most == pytest.approx(len(kept), abs=3)  # of weights at the threshold itself, rounding decides


def test_a_phone_scrolls_down_only(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("mode=pair", width=360, height=740, theme="dark", a=TEXT, b=PAIR[1])
    viewer.page.get_by_text("What attention is not").click()
    for mode in ("Two texts", "One text"):
        viewer.page.get_by_role("radio", name=mode).check(force=True)
        expect(viewer.page.locator("#pair")).to_be_visible(visible=mode == "Two texts")
        widths = viewer.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1] == 360
    viewer.show("Donaudampfschifffahrts" * 4)
    viewer.page.get_by_role("radio", name="Words").check(force=True)
    viewer.page.locator("#pin").click()
    viewer.page.locator("#why summary").click()
    viewer.page.fill("#why-query", "Donaudampfschifffahrts" * 4)
    viewer.page.fill("#why-documents", "ship\n" + "Donaudampfschifffahrts" * 5)
    viewer.page.locator("#why-rank").click()
    expect(viewer.page.locator("#why-rows tr").last).to_contain_text("sum")
    assert viewer.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_heads_are_found_sorted_and_filtered_by_figures(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    bodies = [{"inputs": TEXT, "attention": {"layers": "all", "form": form}} for form in ("stats", "norms")]
    statistics, norms = (viewer_server.post("/encode", body)["attention"][0] for body in bodies)
    previous = np.array(statistics["statistics"]["offset_previous"])
    layer, head = np.unravel_index(previous.argmax(), previous.shape)
    viewer = open_viewer(a=TEXT)
    viewer.page.get_by_role("button", name="previous token").click()
    listed = viewer.page.locator("#found li")
    shown = [float(number) for number in listed.locator(".number").all_text_contents()]
    assert shown == pytest.approx(sorted(previous.ravel(), reverse=True)[:6], abs=1e-4)
    listed.first.get_by_role("button").click()
    expect(viewer.page.locator("#head-title")).to_have_text(f"Layer {layer}, head {head}")
    viewer.page.wait_for_url("**find=previous**")
    viewer.page.get_by_role("button", name="previous token").click()
    expect(listed).to_have_count(0)

    sums = np.array(norms["weights"]).sum((-1, -2))
    shares = sums / sums.sum(1, keepdims=True)
    best = [f"{place // 12}.{place % 12}" for place in np.argsort(-shares, axis=None)[:3]]
    viewer.page.get_by_role("button", name="share of the norm").click()
    tiles = viewer.page.locator(".heads.sorted .tile")
    expect(tiles).to_have_count(72)
    assert [tile.get_attribute("data-key") for tile in tiles.all()[:3]] == best
    viewer.page.locator("[name=least]").fill("50")
    kept = int((shares >= shares.max() / 2).sum())
    expect(tiles).to_have_count(kept)
    expect(viewer.page.locator("#least-value")).to_have_text(f"50 % of the most: {kept} of 72 heads")
    tiles.first.click()
    viewer.page.keyboard.press("ArrowRight")
    assert viewer.page.locator(":focus").get_attribute("data-key") == best[1]
    viewer.page.get_by_label("Sort small maps").uncheck()
    expect(viewer.page.locator(".heads:not(.sorted) .tile")).to_have_count(72)


def test_a_long_text_is_zoomed_and_moved(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    text = " ".join([TEXT] * 17)
    expected = weights_of(viewer_server, text, 0, 2)
    size = len(expected)
    assert size > 200
    viewer = open_viewer("layer=0&head=2&view=matrix", a=text)
    for _ in range(3):
        viewer.page.get_by_role("button", name="Zoom in").click()
    first_row, last_row, first_column, _ = shown_part(viewer)
    assert last_row - first_row + 1 == pytest.approx(size / 8, abs=2)
    assert (first_row + last_row) / 2 == pytest.approx(size / 2, abs=2)
    canvas = viewer.page.locator("#panes canvas.matrix")
    canvas.evaluate("canvas => canvas.scrollIntoView({block: 'center'})")
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    viewer.page.mouse.move(x, y)
    row = pointed_row(viewer)
    assert first_row - 1 <= row < last_row
    assert np.isclose(expected[row], viewer.readout()["weights"], atol=5.1e-5).any()
    viewer.page.mouse.down()
    viewer.page.mouse.move(x + 60, y + 90, steps=4)
    viewer.page.mouse.up()
    moved = shown_part(viewer)
    assert moved[0] < first_row
    assert moved[2] < first_column
    viewer.page.mouse.move(x, y)
    assert pointed_row(viewer) == row - (first_row - moved[0])
    canvas.focus()
    canvas.press("-")
    assert shown_part(viewer)[0] < moved[0]
    canvas.press("0")
    expect(viewer.page.locator("#panes .zoom span")).to_be_empty()


def shown_part(viewer: ViewerPage) -> list[int]:
    """First and last row, first and last column of a matrix that is zoomed in, from 1."""
    return [int(number) for number in re.findall(r"\d+", viewer.page.locator("#panes .zoom span").inner_text())]


def pointed_row(viewer: ViewerPage) -> int:
    marks: list[bool] = viewer.page.locator("#tokens .token").evaluate_all(
        "all => all.map(one => one.matches('.pointed'))"
    )
    assert sum(marks) == 1
    return marks.index(True)
