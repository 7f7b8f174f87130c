"""The viewer when things go wrong: a clear word in the page, and nothing lost."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from tests.e2e.conftest import OpenViewer
from tests.e2e.test_viewer import TEXT
from tests.e2e.viewer_page import ViewerPage
from tests.service.process import ServerProcess

pytestmark = pytest.mark.slow


def refusal(status: int, message: str, *, param: str | None = None, **headers: str) -> dict[str, Any]:
    """What a route is fulfilled with instead of an answer."""
    error = {"message": message, "type": "test", "param": param, "code": "test"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"status": status, "headers": named, "json": {"error": error}}


def refuse_where(viewer: ViewerPage, refuse: Callable[[dict[str, Any]], str]) -> None:
    """Refuses requests to `/encode` for the field that `refuse` names of their body; others go on."""

    def handle(route: Route) -> None:
        field = refuse(json.loads(route.request.post_data or "{}"))
        if field:
            route.fulfill(**refusal(422, f"{field}: not with this artifact", param=field))
        else:
            route.fallback()

    viewer.page.route("**/encode", handle)


def test_a_server_that_is_down_loses_nothing(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("mode=pair", b="A dog ran.")
    viewer.type("word " * 600)
    notices = viewer.page.locator("#notices .notice")
    expect(notices).to_contain_text("its end was cut off")
    expect(viewer.page.locator("#pair-note, #pair-matrix").locator("visible=true")).to_have_count(2)
    for path in ("tokenize", "explain"):
        viewer.page.route(f"**/{path}", lambda route: route.abort())
    viewer.type("Another text")
    expect(viewer.page.locator("#pair-readout")).to_contain_text("cannot be reached")
    expect(notices).to_have_text(re.compile("cannot be reached"))  # and nothing of the text before
    expect(viewer.page.locator("#pair-note, #pair-matrix, #pair .token").locator("visible=true")).to_have_count(0)
    assert viewer.page.input_value("#a") == "Another text"
    for path in ("tokenize", "explain"):
        viewer.page.unroute(f"**/{path}")
    viewer.page.get_by_role("button", name="Try again").click()
    viewer.wait_until_filled()
    expect(notices).to_have_count(0)
    expect(viewer.page.locator("#pair-matrix")).to_be_visible()
    assert viewer.labels() == ["[CLS]", "another", "text", "[SEP]"]


def test_a_server_that_is_down_at_first_and_a_page_that_is_started_twice(open_viewer: OpenViewer) -> None:
    viewer = open_viewer()
    viewer.page.route("**/info", lambda route: route.abort())
    viewer.page.reload()
    expect(viewer.page.locator("#notices .notice")).to_contain_text("cannot be reached")
    viewer.type(TEXT)
    viewer.page.unroute("**/info")
    viewer.page.wait_for_timeout(500)
    button = viewer.page.get_by_role("button", name="Try again")
    button.evaluate("button => { button.click(); button.click(); }")
    viewer.wait_until_filled()
    assert viewer.labels()[2] == "trophy"
    expect(viewer.page.locator("#tokens .tokens")).to_have_count(1)
    assert viewer.page.locator("#examples button").count() == viewer.page.locator("#example option").count() - 1 == 6


def test_a_refusal_is_said_in_the_servers_words(open_viewer: OpenViewer) -> None:
    viewer = open_viewer()
    viewer.page.route("**/encode", lambda route: route.fulfill(**refusal(413, "the answer would have 99 bytes")))
    viewer.type(TEXT)
    expect(viewer.page.locator(".notice[data-kind=problem]")).to_contain_text("the answer would have 99 bytes")
    viewer.page.unroute("**/encode")
    viewer.page.route("**/encode", lambda route: route.fulfill(**refusal(429, "full", retry_after="90")))
    viewer.type(TEXT + " More.")
    expect(viewer.page.locator(".notice[data-kind=problem]")).to_contain_text("busy; it asks to wait 90 s")
    assert viewer.page.input_value("#a") == TEXT + " More."


def test_a_key_is_asked_for_and_kept_in_memory_only(browser: BrowserContext, long_artifact: Path) -> None:
    key = "open-sesame-open-sesame"
    with ServerProcess(
        "service", "--model", str(long_artifact), environment={"POLYHEAD_API_KEYS": key}
    ).wait_until_ready() as server:
        viewer = ViewerPage(browser, server, is_open=False)
        field = viewer.page.get_by_label("API key")
        notice = viewer.page.locator("#notices .notice")
        expect(notice).to_contain_text("needs an API key")
        assert field.get_attribute("type") == "password"
        for given in ("wrong", key):
            field.fill(given)
            field.press("Enter")
            if given == "wrong":
                expect(notice).to_contain_text("does not know that API key")
        expect(viewer.page.locator("#model")).not_to_be_empty()
        viewer.show(TEXT)
        expect(field).to_be_hidden()
        assert field.input_value() == ""
        kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        assert "sesame" not in viewer.page.evaluate(kept)
        with viewer.page.expect_popup() as opened:
            viewer.page.get_by_role("link", name="Info").click()
        assert json.loads(opened.value.locator("body").inner_text())["manifest"]["precision"] == "fp32"
        opened.value.close()
        viewer.close()
        assert not viewer.complaints
        assert server.stop() == 0


def test_a_gateway_that_answers_in_json_of_its_own_is_heard(open_viewer: OpenViewer) -> None:
    viewer = open_viewer()
    body = """
    const real = window.fetch;
    const heard = [];
    for (const one of argument) {
      window.fetch = async () => new Response(one, { status: 502 });
      await module.ask("tokenize").catch((error) => heard.push([error.status, error.message]));
    }
    window.fetch = real;
    return heard;
    """
    answers = ['{"message": "bad"}', '{"error": "bad gateway"}', '{"error": null}', '{"error": {}}', "null", "<p>bad"]
    assert viewer.module("api", body, answers) == [[502, "The server answered 502."]] * len(answers)
    assert viewer.module("api", body, ['{"error": {"message": "no worker"}}']) == [[502, "no worker"]]
    crowded = {"status": 503, "message": "too many connections; try again later"}  # neither starting nor stopping
    said = viewer.module("asking", "return module.describeFailure(argument);", crowded)
    assert said == "The server accepts no requests at the moment. Your text is still here."


def test_an_answer_that_breaks_off_is_a_failure_as_any_other(open_viewer: OpenViewer) -> None:
    """Or nothing would be said of it; nor of a network's sign-in page that says 200."""
    viewer = open_viewer()
    body = """
    const real = window.fetch;
    const heard = [];
    const broken = () => new ReadableStream({ start: (stream) => stream.error(new TypeError("network error")) });
    for (const content of [broken, () => "<p>Please sign in"]) {
      window.fetch = async () => new Response(content());
      for (const options of [{}, { body: { inputs: "a" } }]) {
        await module.ask("tokenize", options).catch((error) => heard.push(error.status));
      }
    }
    window.fetch = async () => new Response(broken());
    await module.encodeVectors({ inputs: "a" }).catch((error) => heard.push(error.status));
    window.fetch = real;
    return heard;
    """
    assert viewer.module("api", body) == [0] * 5


def norms_of(body: dict[str, Any]) -> str:
    return "attention.form" if body.get("attention", {}).get("form") == "norms" else ""


def test_what_a_server_cannot_do_is_said_where_it_matters(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("mode=pair&layer=1&head=1")
    refuse_where(viewer, lambda body: "head_mask" if "head_mask" in body else norms_of(body))
    viewer.page.route("**/explain", lambda route: route.fulfill(**refusal(422, "a dense layer")))
    viewer.type("A dog ran.", "#b")
    viewer.show("A cat sat.")
    expect(viewer.page.locator("#no-norms")).to_contain_text("no norms")
    expect(viewer.page.locator("#pair-readout")).to_contain_text("Similarity only: behind a dense layer")
    assert 0 < float(viewer.page.locator("#similarity").inner_text()) < 1
    viewer.page.locator("#switch").click()
    notice = viewer.page.locator("#effect .notice")
    expect(notice).to_contain_text("cannot switch heads off")
    viewer.page.unroute("**/encode")
    wrong = refusal(422, "head_mask[0]: of another model", param="head_mask.0")
    viewer.page.route("**/encode", lambda route: route.fulfill(**wrong))
    viewer.page.locator("#switch").click()
    viewer.page.locator("#switch").click()
    expect(notice).to_have_text("head_mask[0]: of another model")
    expect(viewer.page.locator(".notice[data-kind=problem]")).to_have_count(0)


def test_norms_that_a_server_lacks_are_asked_for_nowhere(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("measure=norms")
    refuse_where(viewer, norms_of)
    viewer.show(TEXT)
    viewer.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    viewer.page.locator("#copy-curl").click()
    body = json.loads(shlex.split(viewer.page.evaluate("window.copied"))[-1])
    assert body["attention"] == {"layers": [0], "heads": [0]}
    expect(viewer.page.locator("#grid-caption")).to_contain_text("Weights")
    expect(viewer.page.locator("#notices .notice")).to_have_count(0)


def test_what_is_too_large_of_all_layers_takes_nothing_else_away(browser: BrowserContext, long_artifact: Path) -> None:
    flags = ("--model", str(long_artifact), "--max-attention-work-bytes", "2000000")  # of 72 heads: 83 tokens
    with ServerProcess("service", *flags).wait_until_ready() as server:
        viewer = ViewerPage(browser, server, "map=rollout")
        rollout = viewer.page.locator(".tile.wide")
        viewer.show(" ".join([TEXT] * 10))
        expect(rollout).to_have_text(re.compile("No rollout"))
        expect(rollout).to_be_disabled()
        expect(viewer.page.locator("#head-title")).to_have_text("Layer 0, head 0")
        expect(viewer.page.locator("#statistics")).to_contain_text("No numbers")
        expect(viewer.page.locator("#filled")).to_have_text("72")
        expect(viewer.page.locator("#notices .notice")).to_have_count(0)
        assert sum(address.endswith("/encode") for address in viewer.refused) <= 3  # the rollout twice, the statistics
        viewer.show(TEXT)
        expect(viewer.page.locator(".statistics")).to_be_visible()
        rollout.click()
        expect(viewer.page.locator("#head-title")).to_have_text("Rollout through all layers")
        viewer.close()
        assert not viewer.complaints
        assert server.stop() == 0


def test_a_newer_text_cancels_what_the_older_one_asked_for(open_viewer: OpenViewer) -> None:
    viewer = open_viewer()
    cancelled: list[str] = []
    viewer.page.on("requestfailed", lambda request: cancelled.append(request.post_data or ""))
    held: list[Route] = []
    viewer.page.route(
        "**/encode",
        lambda route: held.append(route) if "first" in (route.request.post_data or "") else route.fallback(),
    )
    viewer.type("The first text")
    expect(viewer.page.locator("#tokens .token")).to_have_count(5)
    viewer.show("The second one")
    assert len(held) >= 3
    assert len(cancelled) == len(held)
    assert viewer.labels() == ["[CLS]", "the", "second", "one", "[SEP]"]


def test_a_head_that_could_not_be_read_leaves_no_mark_on_the_next(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(a=TEXT)
    notice = viewer.page.locator(".notice[data-kind=problem]")
    viewer.page.route("**/encode", lambda route: route.fulfill(**refusal(500, "internal error")))
    viewer.page.locator("[data-key='1.2']").click()
    expect(notice).to_have_text(re.compile("internal error"))
    expect(viewer.page.locator("body")).to_have_class(re.compile("stale"))
    viewer.page.unroute("**/encode")
    viewer.page.locator("[data-key='3.4']").click()
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 3, head 4")
    expect(notice).to_have_count(0)
    expect(viewer.page.locator("body")).not_to_have_class(re.compile("stale"))
    viewer.wait_until_filled()


def test_what_runs_in_parallel_stops_at_the_first_failure(open_viewer: OpenViewer) -> None:
    body = """
    const begun = [];
    const task = async (item) => {
      begun.push(item);
      await new Promise((resolve) => setTimeout(resolve, 10 * item));
      if (item === 1) throw new Error("the first");
    };
    const said = await module.inParallel([1, 2, 3, 4, 5, 6], 2, new AbortController().signal, task).catch(String);
    await new Promise((resolve) => setTimeout(resolve, 200));
    return [said, begun];
    """
    assert open_viewer().module("asking", body) == ["Error: the first", [1, 2]]
