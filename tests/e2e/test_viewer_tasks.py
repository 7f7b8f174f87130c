"""The viewer on other models than the default one: other tasks, prompts, lengths, no heads, a causal network."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Route, expect

from export.checkpoint import read_checkpoint
from export.exporter import export_artifact
from export.sources import Folder
from tests.e2e.conftest import OpenViewer, serve, with_manifest
from tests.e2e.viewer_page import ViewerPage
from tests.service.process import ServerProcess
from tests.service.routes.test_encode_tasks import write_table
from tests.task_artifacts import TaskArtifact, quick_export

LONG_PROMPT = "Represent this sentence for searching relevant passages: "
QUERY, DOCUMENT = "the cat", "the cat sat on the mat."
DARKNESS = """
(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const dark = (row, column) => -[0, 1, 2].reduce((sum, at) => sum + data[4 * (row * canvas.width + column) + at], 0);
  const counted = (length, read) => Array.from({ length }, (_, at) => read(at));
  return counted(canvas.height, (row) => counted(canvas.width, (column) => dark(row, column)));
}
"""


def on(*models: Any) -> pytest.MarkDecorator:
    """Serves the artifacts of these fixtures, one after the other."""
    return pytest.mark.parametrize("viewer_server", models, indirect=True)


@pytest.fixture(scope="module")
def viewer_server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A service on the artifact of the fixture that the test names, instead of the default model."""
    served: TaskArtifact = request.getfixturevalue(request.param)
    yield from serve(served.artifact)


@pytest.fixture(scope="module")
def prompted(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The default model with prompts."""
    prompts = {"prompts": {"query": LONG_PROMPT, "document": "page: "}, "default_prompt_name": "document"}
    copy = tmp_path_factory.mktemp("prompted") / "copy"
    return SimpleNamespace(artifact=with_manifest(default_artifact, copy, defaults=prompts))


@pytest.fixture(scope="module")
def dot_products(embedder: TaskArtifact, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """An embedder made for dot products, whose vectors have lengths of their own, with texts to begin with."""
    copy, defaults = tmp_path_factory.mktemp("dot") / "copy", {"unit_length": False, "similarity": "dot"}
    changes: dict[str, Any] = {"defaults": defaults, "examples": [DOCUMENT, "the dog"]}
    return SimpleNamespace(artifact=with_manifest(embedder.artifact, copy, **changes))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A table of vectors, which has no heads."""
    directory = tmp_path_factory.mktemp("table")
    folder = write_table(directory / "folder", "sentence-transformers")
    with quick_export():
        export_artifact(read_checkpoint(Folder(folder, "table")), directory / "artifact", explains=False)
    return SimpleNamespace(artifact=directory / "artifact")


@on("dot_products")
def test_a_first_visit_opens_on_a_text_of_the_models_own(open_viewer: OpenViewer) -> None:
    viewer = open_viewer(is_first_visit=True)
    viewer.wait_until_filled()
    assert viewer.page.input_value("#a") == DOCUMENT
    viewer.type("")
    examples = viewer.page.locator("#examples button")
    expect(examples).to_have_text([DOCUMENT, "the dog"])
    examples.last.click()
    viewer.wait_until_filled()
    assert viewer.page.input_value("#a") == "the dog"


@on("prompted")
def test_a_prompt_of_the_model_is_chosen(open_viewer: OpenViewer, viewer_server: ServerProcess, tmp_path: Path) -> None:
    viewer = open_viewer("prompt=foreign&layer=2&head=3", a="The cat sat.")
    assert viewer.labels()[1:3] == ["page", ":"]
    prompt = viewer.page.get_by_label("Prompt")
    prompt.select_option(label=f"query: “{LONG_PROMPT.strip()}”")
    expect(viewer.page.locator("#tokens .token").nth(1)).to_have_text("represent")
    viewer.wait_until_filled()
    body = {"inputs": "The cat sat.", "prompt_name": "query", "attention": {"layers": [2], "heads": [3]}}
    expected = viewer_server.post("/encode", body)["attention"][0]["weights"][0][0]
    saved = json.loads(viewer.save("json", tmp_path).read_text())
    assert saved["prompt_name"] == "query"
    np.testing.assert_allclose(saved["weights"], expected, atol=1e-6)
    viewer.page.wait_for_url("**prompt=query**")
    viewer.page.set_viewport_size({"width": 390, "height": 800})
    assert viewer.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    prompt.select_option(label="none")
    expect(viewer.page.locator("#tokens .token").nth(1)).to_have_text("the")
    viewer.wait_until_filled()
    assert "no prompt" in viewer.save("svg", tmp_path).read_text()


def show_pair(viewer: ViewerPage) -> None:
    viewer.type(DOCUMENT, "#b")
    viewer.show(QUERY)


def rerank(server: ServerProcess, **options: Any) -> Any:
    (entry,) = server.post("/rerank", {"query": QUERY, "texts": [DOCUMENT], **options})
    return entry


def why(viewer: ViewerPage, query: str, documents: list[str]) -> tuple[list[float], list[list[str]]]:
    """The scores of a ranking, and the table of what each word of the query adds."""
    viewer.page.locator("#why summary").click()
    viewer.page.fill("#why-query", query)
    viewer.page.fill("#why-documents", "\n".join(documents))
    viewer.page.locator("#why-rank").click()
    expect(viewer.page.locator("#why-rows tr").last).to_contain_text("sum")
    scores = [float(text) for text in viewer.page.locator("#why-ranked .number").all_inner_texts()]
    rows = viewer.page.locator("#why-rows tr").all()
    return scores, [row.locator("th, td").all_inner_texts() for row in rows]


@on(pytest.param("embedder", marks=pytest.mark.exhaustive), "reranker", "prompted", "dot_products")
def test_the_page_says_why_one_document_is_above_another(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer()
    query, documents = "the cat", ["it rained", "the cat sat on the mat", "a dog"]
    order = viewer_server.post("/rerank", {"query": query, "texts": documents, "raw_scores": True})
    scores, table = why(viewer, query, documents)
    assert scores == pytest.approx([entry["score"] for entry in order], abs=1e-4)
    for column, entry in ((1, order[0]), (2, order[1])):
        cells = [float(row[column]) for row in table]
        assert cells[-1] == pytest.approx(entry["score"], abs=2e-4, rel=5e-4)
        assert sum(cells[:-1]) == pytest.approx(cells[-1], abs=1e-3, rel=1e-3)
    assert {"the", "cat"} <= {row[0] for row in table}
    total = viewer.page.locator("#why-rows tr").last
    before = total.text_content() or ""
    viewer.page.select_option("#why-b", "2")
    expect(total).not_to_have_text(before)
    assert float(total.locator("td").nth(1).inner_text()) == pytest.approx(order[2]["score"], abs=2e-4, rel=5e-4)


@on("dot_products")
def test_effects_are_of_directions_where_vectors_have_lengths(
    open_viewer: OpenViewer, viewer_server: ServerProcess
) -> None:
    viewer = open_viewer("mode=pair&off=1.2")
    viewer.page.route("**/explain", lambda route: route.fulfill(status=422))
    show_pair(viewer)
    bodies = [{"inputs": QUERY}, {"inputs": QUERY, "head_mask": [[1, 2, 0]]}, {"inputs": DOCUMENT}]
    vectors = np.array([viewer_server.post("/encode", body)["embeddings"][0] for body in bodies])
    lengths = np.linalg.norm(vectors, axis=1)
    assert abs(lengths[0] - 1) > 0.1
    cosine, similarity = vectors[1:] @ vectors[0] / lengths[1:] / lengths[0]
    effect = viewer.page.locator("#effect [data-effect]")
    expect(effect).to_be_visible()
    assert float(effect.get_attribute("data-effect") or "nan") == pytest.approx(1 - cosine, abs=1e-5)
    assert float(viewer.page.locator("#similarity").inner_text()) == pytest.approx(similarity, abs=1e-4)


@on("table")
def test_a_model_without_heads_compares_texts(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer("mode=pair&off=1.2")
    viewer.type(DOCUMENT, "#b")
    viewer.type(QUERY)
    (entry,) = viewer_server.post("/rerank", {"query": QUERY, "texts": [DOCUMENT]})
    expect(viewer.page.locator("#similarity")).not_to_be_empty()
    assert float(viewer.page.locator("#similarity").inner_text()) == pytest.approx(entry["score"], abs=1e-4)
    expect(viewer.page.locator("#tokens-card, #work, #keep").locator("visible=true")).to_have_count(0)
    expect(viewer.page.locator("#notices .notice")).to_contain_text("no attention heads")
    viewer.page.wait_for_load_state("networkidle")
    assert not [address for address in viewer.refused if not address.endswith("/explain")]


def mass_of(server: ServerProcess, **attention: Any) -> Any:
    """Of each head of the first layer asked for, or of what its heads are reduced to."""
    return rerank(server, attention=attention)["attention"]["query_to_document_mass"][0]


@on("reranker")
def test_a_cross_encoder_shows_its_score_and_both_blocks(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    """Of the chosen head, of all heads of a layer reduced to one map, and of the rollout."""
    viewer = open_viewer("mode=pair&layer=1&head=2", a=QUERY, b=DOCUMENT)
    expected = rerank(viewer_server, attention={"layers": [1]})
    expect(viewer.page.locator("#score")).to_have_attribute("data-value", str(expected["score"]))
    names = ("query_to_document", "document_to_query")
    masses = [expected["attention"][f"{name}_mass"][0] for name in names]
    shown = viewer.page.locator("#across-blocks [data-mass]")
    assert [float(one.get_attribute("data-mass") or "nan") for one in shown.all()] == [mass[2] for mass in masses]
    rows = viewer.page.locator("#across-heads tr").all()
    table = [[float(cell) for cell in row.locator("td").all_text_contents()] for row in rows]
    np.testing.assert_allclose(table, np.transpose(masses), atol=5.1e-5)
    for place, name in enumerate(names):
        block = viewer.page.locator("#across-blocks figure").nth(place)
        block.locator("canvas").press("ArrowDown")  # from nowhere to the first cell
        weight = float(block.locator(".readout b").inner_text())
        assert weight == pytest.approx(expected["attention"][name][0][2][0][0], abs=5.1e-5)
    viewer.page.locator("#across-heads button").nth(3).click()
    expect(shown.first).to_have_attribute("data-mass", str(masses[0][3]))
    expect(viewer.page.locator("#across-heads :focus")).to_have_text("head 3")
    expect(viewer.page.locator("#head-title")).to_have_text("Layer 1, head 3")

    maps = np.array(expected["attention"]["query_to_document"][0])
    for reduce, reduced in {"mean": maps.mean(axis=0), "max": maps.max(axis=0)}.items():
        viewer.page.locator(f"#blocks input[value={reduce}]").check(force=True)
        (mass,) = mass_of(viewer_server, layers=[1], reduce=reduce)
        expect(shown.first).to_have_attribute("data-mass", str(mass))
        assert mass == pytest.approx(reduced.sum(axis=1).mean(), abs=1e-5)
        expect(viewer.page.locator("#across-table")).to_be_hidden()
        expect(viewer.page.locator("#across-title-of-map")).to_contain_text("of its heads")
    viewer.page.locator("#blocks input[value=head]").check(force=True)
    expect(viewer.page.locator("#across-table")).to_be_visible()
    viewer.page.locator(".tile.wide").click()
    expect(shown.first).to_have_attribute("data-mass", str(mass_of(viewer_server, reduce="rollout")[0]))
    expect(viewer.page.locator("#across-table")).to_be_hidden()


@on("reranker")
def test_a_small_map_of_every_head_shows_what_a_pair_looks_at(
    open_viewer: OpenViewer, viewer_server: ServerProcess, tmp_path: Path
) -> None:
    viewer = open_viewer("mode=pair", a=QUERY, b=DOCUMENT)
    tiles = viewer.page.locator("#across-grid .tile")
    expect(tiles).to_have_count(8)
    expected = rerank(viewer_server, attention={"layers": "all"})["attention"]["query_to_document"]
    for layer, maps in enumerate(expected):
        for head, weights in enumerate(maps):
            canvas = viewer.page.locator(f'#across-grid [data-key="{layer}.{head}"] canvas')
            darkness = np.array(canvas.evaluate(DARKNESS))
            assert darkness.shape == np.shape(weights)  # query's tokens by document's
            assert np.argmax(darkness) == np.argmax(weights)
            by_weight = darkness.ravel()[np.argsort(weights, axis=None)]
            assert np.diff(by_weight).min() > -10  # of 765: colours are steps, and weights come in half precision
    viewer.page.locator('#across-grid [data-key="1.2"]').click()
    expect(viewer.page.locator("#across-title-of-map")).to_have_text("Layer 1, head 2")
    expect(viewer.page.locator("#across-grid [aria-selected=true]")).to_have_attribute("data-key", "1.2")
    mass = viewer.page.locator("#across-blocks [data-mass]").first
    expect(mass).to_have_attribute("data-mass", str(mass_of(viewer_server, layers=[1])[2]))
    viewer.page.get_by_role("radio", name="Words").check(force=True)
    words = rerank(viewer_server, attention={"layers": [0], "level": "word"})["attention"]["query_to_document"][0][0]
    canvas = tiles.first.locator("canvas")
    expect(canvas).to_have_js_property("width", len(words[0]))
    expect(canvas).to_have_js_property("height", len(words))
    viewer.page.get_by_label("Hide special tokens").check()
    viewer.type("\u200b", "#b")  # not empty, and yet no token: nothing is left of the pair before
    expect(viewer.page.locator("#across .readout").last).to_have_text("A text has no tokens.")
    expect(viewer.page.locator("#across-grid .waiting")).to_have_count(0)
    assert tiles.locator("canvas").evaluate_all("all => all.map(one => one.width)") == [0] * 8
    with Image.open(viewer.save("png", tmp_path)) as picture:
        assert picture.width == 2 * (2 * 744 + 24)  # lines and matrix of one text


@on("reranker")
def test_heads_are_ranked_by_the_score(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer(a=QUERY)
    expect(viewer.page.locator("#effect")).to_contain_text("Give two texts")
    expect(viewer.page.locator("#rank")).to_have_count(0)
    viewer.page.get_by_role("radio", name="Two texts").check(force=True)
    viewer.type(DOCUMENT, "#b")
    viewer.page.locator("#rank").click()
    expect(viewer.page.locator("#ranked li")).to_have_count(8)
    whole = rerank(viewer_server, raw_scores=True)["score"]
    heads = [(layer, head) for layer in range(2) for head in range(4)]
    changes = [rerank(viewer_server, raw_scores=True, head_mask=[[*place, 0]])["score"] - whole for place in heads]
    largest = int(np.argmax(np.abs(changes)))
    first = viewer.page.locator("#ranked li").first
    assert first.locator("button").inner_text() == "layer {}, head {}".format(*heads[largest])
    assert float(first.locator(".number").inner_text()) == pytest.approx(changes[largest], abs=1e-4)


@on("reranker")
def test_a_refused_pair_is_said_in_the_servers_words(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("mode=pair")
    body = json.dumps({"error": "the answer would have 99 bytes", "error_type": "Validation"})
    viewer.page.route("**/rerank", lambda route: route.fulfill(status=413, content_type="application/json", body=body))
    show_pair(viewer)
    expect(viewer.page.locator("#across-failure")).to_contain_text("the answer would have 99 bytes")
    expect(viewer.page.locator("#across-blocks")).to_be_hidden()
    viewer.page.unroute("**/rerank")
    viewer.page.locator("#grid [data-key='1.2']").click()
    expect(viewer.page.locator("#across-grid .tile:not(.waiting)")).to_have_count(8)
    expect(viewer.page.locator("#across-note")).to_be_hidden()
    viewer.type(DOCUMENT * 20, "#b")  # more than the model takes
    expect(viewer.page.locator("#across-note")).to_be_visible()


@on("expanding_encoder")
def test_a_multi_vector_model_shows_what_a_token_found(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    viewer = open_viewer("mode=pair", width=1440)
    document = "🙂 the dog ate. The cat sat on the mat."  # a character of two halves in JavaScript
    viewer.type(document, "#b")
    viewer.show(QUERY)
    (entry,) = viewer_server.post("/rerank", {"query": QUERY, "texts": [document], "matches": True})
    expect(viewer.page.locator("#matches-score")).to_have_attribute("data-value", str(entry["score"]))
    total = float(viewer.page.locator("#matches-sum").get_attribute("data-value") or "nan")
    assert total == pytest.approx(entry["score"], abs=1e-4)
    rows = viewer.page.locator("#matches-rows tr")
    expect(rows).to_have_count(len(entry["matches"]))
    expect(viewer.page.locator("#matches-document")).to_have_text(document)
    expect(viewer.page.locator("#why")).to_be_hidden()  # its scores are not explained by words
    place = next(at for at, match in enumerate(entry["matches"]) if match["offsets"][1])
    match = entry["matches"][place]
    assert rows.nth(place).locator("bdi").all_text_contents() == [match["query_token"], match["token"]]
    rows.nth(place).hover()
    marked = "".join(viewer.page.locator("#matches-document mark.pointed").all_text_contents())
    assert marked == document[slice(*match["offsets"])]
    expect(viewer.page.locator("#matches-readout")).to_contain_text(match["token"])
    for width in (1440, 390):
        viewer.page.set_viewport_size({"width": width, "height": 900})
        assert viewer.page.evaluate("document.documentElement.scrollWidth") <= width
    expect(viewer.page.locator("#matches-note")).to_be_hidden()
    viewer.type(document * 20, "#b")  # more than the model takes
    expect(viewer.page.locator("#matches-note")).to_be_visible()
    assert viewer.refused == []


@on("token_classifier")
def test_a_model_that_labels_tokens_marks_entities(open_viewer: OpenViewer, viewer_server: ServerProcess) -> None:
    text = "🙂 the cats sat on the mats, lower newest wider."  # a character of two halves in JavaScript
    body = {"inputs": text, "level": "tokens", "aggregation": "first"}
    entities = viewer_server.post("/predict", body)
    viewer = open_viewer("", a=text)
    marks = viewer.page.locator("#entities-text mark")
    expect(marks).to_have_count(len(entities))
    assert marks.locator("bdi").all_text_contents() == [text[one["start"] : one["end"]] for one in entities]
    assert marks.locator("small").all_text_contents() == [one["entity_group"] for one in entities]
    marks.last.press("Enter")
    expect(marks.last).to_have_attribute("aria-pressed", "true")
    body = {"a": text, "at": entities[-1]["start"], "through": "network", "level": "word"}
    explained = viewer_server.post("/explain", body)
    best = explained["logits"].index(max(explained["logits"]))
    parts = zip([*explained["text"]["words"], "biases"], explained["contributions"][best], strict=True)
    largest = sorted(parts, key=lambda part: -abs(part[1]))[:6]
    carriers = viewer.page.locator("#entities-note .carrier")
    expect(carriers).to_have_count(len(largest))
    assert carriers.locator("bdi").all_text_contents() == [word for word, _ in largest]
    expect(viewer.page.locator("#entities-note")).to_contain_text(f"{explained['labels'][best]} has a logit of")
    held: list[Route] = []
    viewer.page.route("**/predict", lambda route: held.extend([route]))
    viewer.type("the mats " + text)
    expect(viewer.page.locator("#entities-text")).to_have_text("the mats " + text)
    expect(marks).to_have_count(0)  # a click on one of the text before would take the place of this one's
    held[0].fallback()
    expect(marks).not_to_have_count(0)
    viewer.page.wait_for_load_state("networkidle")
    assert viewer.refused == []


@on("classifier", pytest.param("sparse_encoder", marks=pytest.mark.slow))
def test_another_task_shows_each_text_and_says_that_it_compares_none(open_viewer: OpenViewer) -> None:
    viewer = open_viewer("mode=pair&off=0.1", a=QUERY, b=DOCUMENT)
    expect(viewer.page.locator(".notice[data-matter=pair]")).to_contain_text("the page compares no two texts")
    expect(viewer.page.locator("#effect")).to_contain_text("this model gives neither")
    expect(viewer.page.locator("#pair, #across").locator("visible=true")).to_have_count(0)
    viewer.page.wait_for_load_state("networkidle")
    assert viewer.refused == []
    viewer.page.get_by_role("radio", name="One text").check(force=True)
    expect(viewer.page.locator("#notices .notice")).to_have_count(0)
