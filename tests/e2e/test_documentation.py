"""What the documents name is there: links, headings, modules, commands and their flags."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *("README.md", "deploy/README.md", "deploy/RUNBOOK.md", "export/heads/README.md", "export/pruning/README.md"),
]
COMMAND = re.compile(
    r"python -m (benchmarks\.\w+ [a-z]+|(?:deploy|examples|export|polyhead|service|tests)[\w.]*(?: heads| tune)?)"
    r"([^`\n]*)"
)
NEEDS_RAY = "deploy.bulk"


def commands() -> dict[str, set[str]]:
    """The flags that documents give to each command of ours."""
    found: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        for command, rest in COMMAND.findall((ROOT / document).read_text()):
            if not command.endswith(("NAME", NEEDS_RAY)):
                found.setdefault(command, set()).update(re.findall(r"--[a-z][a-z-]*", rest.partition("#")[0]))
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / document).read_text()):
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, link


@pytest.mark.parametrize("package", ["model", "export", "service"])
def test_layout_names_every_module_of_a_package(package: str) -> None:
    layout = (ROOT / "README.md").read_text().partition("\n## Layout\n")[2].partition("\n## ")[0]
    listed = re.search(rf"^{package}/ .*\n((?:  .*\n)+)", layout, re.MULTILINE)
    assert listed is not None
    modules = {path.name for path in (ROOT / package).glob("*.py") if not path.name.startswith("__")}
    assert set(re.findall(r"(?<![\w/])\w+\.py\b", listed[1])) == modules


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_take_the_flags_they_are_shown_with(command: str) -> None:
    asked = [sys.executable, "-m", *command.split(), "--help"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout  # noqa: S603 - our own programs
    assert shown.startswith(("usage: polyhead ", f"usage: python -m {command} "))
    assert commands()[command] <= {"--help", *re.findall(r"--[a-z][a-z-]*", shown)}
