"""What a Markdown document holds, as GitHub renders it: headings with their anchors, links, code that is named."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "export", "model", "polyhead", "service", "tests", "train")
DOCUMENTS = sorted({*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))})
_FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")


def without_code_blocks(text: str) -> str:
    """The text that is rendered as prose: a `#` in a shell's comment is no heading, `](` in code no link."""
    return _FENCED.sub("", text)


def links(text: str) -> list[str]:
    """Targets of links and pictures, a picture inside a link included."""
    prose = re.sub(r"`[^`\n]*\]\([^`\n]*`", "", without_code_blocks(text))
    found = []
    for match in _LINK.finditer(prose):
        found += [match["target"], *(inner["target"] for inner in _LINK.finditer(match["text"]))]
    return found


def anchors(text: str) -> set[str]:
    """Anchors of all headings, those that come twice numbered as GitHub does."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t#]*$", without_code_blocks(text), re.MULTILINE):
        anchor = anchor_of(heading)
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def anchor_of(heading: str) -> str:
    """A heading's anchor: the rendered text, lower case, without punctuation but `-` and `_`, spaces as hyphens."""
    rendered = _LINK.sub(lambda match: match["text"], heading)
    rendered = re.sub(r"(?<!\w)(\*{1,3}|_{1,3})(\S.*?\S|\S)\1(?!\w)", r"\2", rendered)
    return re.sub(r"[^\w\- ]", "", rendered.strip().lower()).replace(" ", "-")


def inline_code(text: str) -> list[str]:
    """The text between single backticks."""
    return re.findall(r"`([^`\n]+)`", without_code_blocks(text))
