"""The pages need nothing else: every byte from this process, nothing inline, under the strictest policy."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.service.conftest import Serve, Served

STATIC = Path(__file__).parents[3] / "service" / "static"
LOADING = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("form", "action")}


class Page(HTMLParser):
    """What a page loads and links to, and what of it is inline."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.inline: list[str] = []
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in = tag
        for name, value in attrs:
            if (tag, name) in LOADING:
                self.loaded.append(value or "")
            elif tag == "a" and name == "href":
                self.linked.append(value or "")
            elif name == "style" or name.startswith("on"):
                self.inline.append(f"{name} of <{tag}>")

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_page_loads_from_here_and_has_nothing_inline(served: Served, path: str) -> None:
    response = served.client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(response.text)
    assert not page.inline
    assert page.loaded
    for reference in page.loaded:
        if reference == "data:,":
            continue
        assert not re.match(r"[a-z]+:|//", reference), reference
        loaded = served.client.get(f"/{reference}")
        assert loaded.status_code == 200, reference
        assert loaded.headers["x-content-type-options"] == "nosniff"


def test_links_of_the_front_page_lead_somewhere(served: Served) -> None:
    page = Page(served.client.get("/").text)
    assert len(page.linked) >= 7
    for reference in page.linked:
        expected = 404 if reference == "heads" else 200  # the fake artifact has no head report
        assert served.client.get(f"/{reference}").status_code == expected, reference


def test_front_page_links_to_nothing_that_the_admin_port_has(serve: Serve) -> None:
    served = serve("--admin-port", "9999")
    page = Page(served.client.get("/").text)
    assert page.linked == ["info", "heads", "healthz", "readyz"]
    assert "openapi" not in served.client.get("/nope").text
    assert page.loaded == Page((STATIC / "viewer" / "index.html").read_text()).loaded


def test_policy_allows_this_origin_only(served: Served) -> None:
    for path in ("/", "/docs", "/info", "/nope", "/static/docs.js"):
        policy = served.client.get(path).headers["content-security-policy"]
        directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert directives["default-src"] == "'none'"
        assert directives["script-src"] == "'self'"
        assert "unsafe" not in policy
        assert "http" not in policy


@pytest.mark.parametrize("known", ["{}", "W/{}", '"other", {}', 'W/"other",W/{} ', "*"])
def test_unchanged_file_is_not_sent_again(served: Served, known: str) -> None:
    first = served.client.get("/static/docs.js")
    again = served.client.get("/static/docs.js", headers={"if-none-match": known.format(first.headers["etag"])})
    assert (again.status_code, again.content) == (304, b"")
    assert served.client.get("/static/docs.js", headers={"if-none-match": '"other"'}).content == first.content


@pytest.mark.parametrize(
    "path",
    ["/static/", "/static/../settings.py", "/static/%2e%2e/settings.py", "/static//etc/passwd", "/static/swagger-ui"],
)
def test_nothing_beside_the_static_files_is_served(served: Served, path: str) -> None:
    assert served.client.get(path).status_code == 404


def test_viewer_loads_each_of_its_modules_and_nothing_else(served: Served) -> None:
    viewer = STATIC / "viewer"
    reached, waiting = set(), ["main.js"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        response = served.client.get(f"/static/viewer/{name}")
        assert response.headers["content-type"].startswith("text/javascript")
        imported = re.findall(r'^(?:import .*|\} )from "(.*)";$', response.text, re.MULTILINE)
        assert all(path.startswith("./") for path in imported)
        waiting += [path.removeprefix("./") for path in imported]
    assert reached == {path.name for path in viewer.glob("*.js")}


def test_viewer_never_reads_text_as_markup_or_code() -> None:
    for path in (STATIC / "viewer").glob("*.js"):
        found = re.findall(r"(?:inner|outer|Adjacent)HTML|document\.write|\beval\b|new Function", path.read_text())
        assert not found, path.name
