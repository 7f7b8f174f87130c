"""The reader of Markdown that the tests of documents use."""

import pytest

from tests.markdown import DOCUMENTS, ROOT, anchor_of, anchors, inline_code, links


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Other engines and servers", "other-engines-and-servers"),
        ("`POST /encode`", "post-encode"),
        ("`heads.json`, schema version 1", "headsjson-schema-version-1"),
        ("Clients & servers", "clients--servers"),
        ("What *does* it cost?", "what-does-it-cost"),
        ("Keys (and `--api-keys`)", "keys-and---api-keys"),
        ("snake_case stays", "snake_case-stays"),
        ("See [the API](api.md#errors)", "see-the-api"),
        ("Größe", "größe"),
    ],
)
def test_anchor_is_githubs(heading: str, anchor: str) -> None:
    assert anchor_of(heading) == anchor


def test_a_heading_that_comes_twice_is_numbered() -> None:
    assert anchors("# A\n\n## Same\n\n## Same\n") == {"a", "same", "same-1"}


def test_code_holds_neither_headings_nor_links() -> None:
    text = "# Title\n\n```sh\n# a comment\n[x](gone.md)\n```\n\n`[y](gone.md)` but [z](there.md)\n"
    assert anchors(text) == {"title"}
    assert links(text) == ["there.md"]


def test_a_picture_inside_a_link_counts_too() -> None:
    assert links("[![shown](a.png)](b.md) and ![alone](c.png)") == ["b.md", "a.png", "c.png"]


def test_inline_code_is_found_outside_blocks() -> None:
    assert inline_code("`one`\n```\n`two`\n```\n") == ["one"]


def test_all_documents_are_looked_at() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {"README.md", "CONTRIBUTING.md", "docs/api.md", "deploy/README.md", "deploy/RUNBOOK.md"} <= names
