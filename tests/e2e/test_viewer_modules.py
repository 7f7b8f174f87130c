"""The viewer's modules by themselves, against numpy and the safetensors library; and the page at /docs."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import BrowserContext, Route, expect
from safetensors.numpy import save

from tests.e2e.viewer_page import ViewerPage, luminance
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess, fake_server

READ = """
const bytes = Uint8Array.from(atob(argument), (one) => one.charCodeAt(0));
const { metadata, tensors } = module.readSafetensors(bytes.buffer);
return [metadata, [...tensors].map(([name, { shape, values }]) => [name, shape, [...values]])];
"""


@pytest.fixture(scope="module")
def viewer(browser: BrowserContext, viewer_server: ServerProcess) -> Iterator[ViewerPage]:
    opened = ViewerPage(browser, viewer_server)
    yield opened
    opened.close()
    assert not opened.complaints


def test_safetensors_are_read_as_the_library_writes_them(viewer: ViewerPage, generator: np.random.Generator) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "every half": np.arange(65536, dtype=np.uint16).view(np.float16).reshape(256, 256),
        "singles": generator.normal(size=(2, 1, 4)).astype(np.float32),
        "nothing": np.zeros((0, 4), dtype=np.float32),
    }
    body = base64.b64encode(save(arrays, {"answer": "{}"})).decode()
    metadata, found = viewer.module("api", READ, body)
    assert metadata == {"answer": "{}"}
    assert {name for name, _, _ in found} == set(arrays)
    for name, shape, values in found:
        assert tuple(shape) == arrays[name].shape
        np.testing.assert_array_equal(np.array(values, dtype=np.float64), arrays[name].ravel().astype(np.float64))


def test_palettes_are_steady_in_lightness(viewer: ViewerPage) -> None:
    for theme in ("light", "dark"):
        bodies = [f"return [...module.{kind}Palette('{theme}')];" for kind in ("amount", "signed")]
        amount, signed = (lightness(viewer.module("theme", body)) for body in bodies)
        sign = -1 if theme == "light" else 1
        steps = sign * np.diff(amount)
        assert steps.min() > 0
        assert steps.max() < 3 * np.median(steps)  # no jump that would look like an edge
        assert (sign * np.diff(signed[128:])).min() > 0
        assert (sign * np.diff(signed[:128])).max() < 0


def lightness(palette: list[int]) -> NDArray[np.float64]:
    """L* (CIE 1976) of RGBA bytes."""
    relative = luminance(palette)
    return np.where(relative > 0.008856, 116 * np.cbrt(relative) - 16, 903.3 * relative)


def test_a_strong_weight_survives_being_shrunk(viewer: ViewerPage, generator: np.random.Generator) -> None:
    values = generator.uniform(0, 0.01, size=(200, 300)).astype(np.float32)
    values[123, 77] = 0.9
    body = """
    const map = new module.NumberMap(Float32Array.from(argument), 200, 300);
    const small = module.shrink(map, 64, 48);
    return [small.rows, small.columns, [...small.values]];
    """
    rows, columns, found = viewer.module("maps", body, values.ravel().tolist())
    assert (rows, columns) == (64, 48)
    edges = [np.arange(count) * most // count for count, most in ((200, 64), (300, 48))]
    expected = np.zeros((64, 48), dtype=np.float32)
    np.maximum.at(expected, (edges[0][:, None], edges[1]), values)
    np.testing.assert_array_equal(np.array(found, dtype=np.float32).reshape(64, 48), expected)


@pytest.mark.parametrize(
    ("shape", "cell", "size"), [((16, 11), 24, (16, 11)), ((11, 16), 24, (11, 16)), ((300, 200), 0.5, (150, 100))]
)
def test_a_matrix_has_a_pixel_a_cell_or_a_pixel_of_the_screen(
    viewer: ViewerPage, shape: tuple[int, int], cell: float, size: tuple[int, int]
) -> None:
    body = """
    const { NumberMap, drawingModel } = await import("/static/viewer/maps.js");
    const [[rows, columns], cell] = argument;
    const map = new NumberMap(new Float32Array(rows * columns), rows, columns);
    const image = module.makeImage(drawingModel(map, {}, {}), { cell }, 1);
    return [image.height, image.width];
    """
    assert viewer.module("matrix", body, [shape, cell]) == list(size)


def test_the_strongest_lines_are_kept(viewer: ViewerPage, generator: np.random.Generator) -> None:
    values = generator.dirichlet(np.full(100, 0.1), size=100).astype(np.float32)
    body = """
    const { NumberMap } = await import("/static/viewer/maps.js");
    return module.strongest(new NumberMap(Float32Array.from(argument), 100, 100), 0, 500);
    """
    found = viewer.module("lines", body, values.ravel().tolist())
    assert 400 < len(found) <= 500
    weakest = min(value for _, _, value in found)
    left_out = values.copy()
    for row, column, value in found:
        assert values[row, column] == np.float32(value)
        left_out[row, column] = 0
    assert left_out.max() <= weakest


def test_a_bar_is_as_long_as_its_share_of_the_number_farthest_from_0(viewer: ViewerPage) -> None:
    shares = "return module.bars(argument).map((bar) => bar.style.getPropertyValue('--share'))"
    assert viewer.module("dom", shares, [["a", 1], ["b", -4]]) == ["0.25", "0"]


def test_the_grid_is_planned_within_the_servers_limits(viewer: ViewerPage) -> None:
    def plan(counts: list[int], first: int, num_tokens: int, answer: int, work: int = 2**28) -> Any:
        limits = {"max_attention_bytes": answer, "max_attention_work_bytes": work}
        parts = viewer.module("source", "return module.planGrid(...argument);", [counts, first, num_tokens, limits])
        return [(part["layers"], part.get("heads")) for part in parts]

    assert plan([2, 0, 3], 2, 10, 2**20) == [([2, 0], None)]
    assert plan([2, 0, 3], 0, 512, 2 * 512 * 512 * 4) == [([0], [0, 1]), ([2], [0, 1]), ([2], [2])]
    assert plan([2, 2, 3], 1, 10, 2**20, 4 * 10 * 10 * 4) == [([1], [0, 1]), ([0], [0, 1]), ([2], [0, 1, 2])]


def test_a_score_is_not_shown_of_texts_that_are_gone(viewer: ViewerPage) -> None:
    body = """
    const real = window.fetch;
    const view = new module.MatchesView();
    const score = document.getElementById("matches-score");
    window.fetch = async () => Response.json([{ score: 1.5, matches: [] }]);
    await view.load("a", "b");
    const said = [score.textContent];
    window.fetch = () => new Promise(() => {});  // no answer yet
    view.load("a", "c");
    said.push(score.textContent);
    view.stop();
    window.fetch = real;
    return said;
    """
    assert viewer.module("matches", body) == ["1.5000", ""]


def test_maps_are_kept_for_going_back_to_them_within_a_bound(viewer: ViewerPage) -> None:
    body = """
    const attention = [{ layers: [0], tokens: [], offsets: [] }];
    const whole = { dtype: "F32", shape: [1, 1, 2048, 2048], data_offsets: [0, 2 ** 24] };  // a quarter of the bound
    const header = { __metadata__: { answer: JSON.stringify({ attention }) }, "attention.0": whole };
    const written = new TextEncoder().encode(JSON.stringify(header));
    const answer = new Uint8Array(8 + written.length + 2 ** 24);
    new DataView(answer.buffer).setBigUint64(0, BigInt(written.length), true);
    answer.set(written, 8);
    const real = window.fetch;
    const asked = [];
    window.fetch = async (_, { body }) => asked.push(JSON.parse(body).inputs) && new Response(answer);
    for (const text of ["a", "b", "c", "a", "d", "d", "a"]) await module.loadLargeMap(text, {}, "weights");
    window.fetch = real;
    return asked.join("");
    """
    assert viewer.module("source", body) == "abcda"  # "d" did not fit with the others


def test_a_grid_of_layers_that_differ_in_heads(viewer: ViewerPage) -> None:
    body = """
    const host = document.createElement("div");
    document.body.append(host);
    const { State } = await import("/static/viewer/state.js");
    const grid = new module.HeadGrid(host, { num_heads: [2, 0, 3] }, new State({ layer: 2, head: 1, off: ["0.0"] }));
    const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    host.querySelector("[data-key='2.2']").focus();
    const seen = [];
    for (const key of ["ArrowUp", "ArrowUp", "ArrowLeft", "ArrowDown", "End"]) {
      press(key);
      seen.push(document.activeElement.dataset.key);
    }
    const off = [...host.querySelectorAll(".off")].map((tile) => tile.dataset.key);
    const text = host.textContent;
    host.remove();
    return [grid.keys, seen, off, text];
    """
    keys, seen, off, text = viewer.module("grid", body)
    assert keys == ["0.0", "0.1", "2.0", "2.1", "2.2"]
    assert seen == ["0.1", "0.1", "0.0", "2.0", "2.2"]  # the layer without heads is passed over
    assert off == ["0.0"]
    assert "no heads left" in text


GRID = """
const { State } = await import("/static/viewer/state.js");
const host = document.createElement("div");
new module.HeadGrid(host, argument, new State());
const rows = [...host.querySelectorAll(".heads-row:not(.heading)")];
return rows.map((row) => [...row.querySelectorAll(".tile")].map((tile) => {
  return [tile.title, tile.classList.contains("group-start")];
}));
"""


def test_heads_that_read_the_same_keys_and_values_stand_together(viewer: ViewerPage) -> None:
    config = {"num_heads": [4, 3, 2], "num_key_value_heads": [2, 2, 2], "query_groups": [[2, 2], [1, 2], [1, 1]]}
    grouped, uneven, single = viewer.module("grid", GRID, config)
    assert [starts for _, starts in grouped] == [False, False, True, False]
    assert [name for name, _ in uneven] == [f"Layer 1, head {h}, keys and values {g}" for h, g in enumerate((0, 1, 1))]
    assert [starts for _, starts in uneven] == [False, True, False]
    assert single == [["Layer 2, head 0", False], ["Layer 2, head 1", False]]  # each head has its own
    even = viewer.module("grid", GRID, {**config, "num_heads": [4, 4, 2], "query_groups": []})
    assert [starts for _, starts in even[1]] == [False, False, True, False]
    (older,) = viewer.module("grid", GRID, {"num_heads": [2]})  # a manifest written before there were groups
    assert older == [["Layer 0, head 0", False], ["Layer 0, head 1", False]]


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


def test_a_route_is_tried_below_the_path_that_a_proxy_adds(
    browser: BrowserContext, viewer_server: ServerProcess
) -> None:
    asked = []

    def hand_on(route: Route) -> None:
        asked.append(route.request.url)
        route.continue_(url=route.request.url.replace("/below/", "/"))

    page = browser.new_page()
    page.route("**/below/**", hand_on)
    page.goto(f"http://127.0.0.1:{viewer_server.address[1]}/below/docs")
    page.get_by_text("/healthz", exact=True).click()
    page.get_by_role("button", name="Try it out").click()
    with page.expect_response("**/healthz"):
        page.get_by_role("button", name="Execute").click()
    assert asked[-1].endswith("/below/healthz")
    page.close()
