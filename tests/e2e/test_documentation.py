"""What the documents name is there: links, headings, packages, files, settings, routes, commands and their flags."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic import SecretStr

import polyhead
from export.checkpoint import FAMILIES
from export.tasks.registry import EXPORTS
from model.config_parts import Precision
from polyhead.cli import tree
from service.app import ROUTES
from service.requests.schemas import AttentionRequest, EncodeRequest
from service.settings import Settings
from tests.markdown import DOCUMENTS, ROOT, anchors, inline_code, links

DOCS = ROOT / "docs"
PACKAGES = ("model", "train", "export", "service", "polyhead")
NO_MODULES = {"static"}
COMMAND = re.compile(
    r"python -m (benchmarks [a-z]+ [a-z0-9]+|(?:deploy|examples|export|polyhead|service|tests)[\w.]*(?: heads| tune)?)"
    r"([^`\n]*)"
)
NEEDS_RAY = ("deploy.bulk", "deploy.bulk.show")
WITHOUT_HELP = {"service tune", "polyhead.service", "tests.published.page"}  # gone; of installations; has no flags
FILE = re.compile(r"(?:\.ci|benchmarks|deploy|docs|examples|export|model|polyhead|service|tests|train)/[\w./-]*")
PLACEHOLDER = re.compile(r"COMMAND|NAME|QUESTION")  # a reader's choice


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def commands() -> dict[str, set[str]]:
    """The flags that documents give to each command of ours."""
    found: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        text = document.read_text().replace("\\\n", " ")
        for command, rest in COMMAND.findall(text):
            if not command.endswith(NEEDS_RAY) and command not in WITHOUT_HELP:
                found.setdefault(command, set()).update(re.findall(r"--[a-z][a-z-]*", rest.partition("#")[0]))
    return found


def is_there(pattern: str) -> bool:
    """Whether a file or folder is, at the root or below the tests, whose names some tables shorten."""
    return any(ROOT.glob(pattern)) or any((ROOT / "tests").glob(pattern))


def folders(package: Path) -> set[str]:
    """The package and every package inside it."""
    inner = {str(path.parent.relative_to(ROOT)) for path in package.rglob("__init__.py")}
    return {name for name in inner if not NO_MODULES & set(Path(name).parts)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    for link in links(document.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = document.parent / path if path else document
        assert target.exists(), link
        assert target.resolve().is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_are_named_exist(document: Path) -> None:
    named = [code for code in inline_code(document.read_text()) if FILE.fullmatch(code)]
    assert [code for code in named if not is_there(PLACEHOLDER.sub("*", code))] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=name_of)
def test_readme_links_to_every_page(page: Path) -> None:
    assert f"docs/{page.name}" in links((ROOT / "README.md").read_text())


def test_architecture_names_every_package() -> None:
    block = re.search(r"## Packages\n\n```\n(.*?)```", (DOCS / "architecture.md").read_text(), re.DOTALL)
    assert block is not None
    listed, above = set(), [""]
    for indent, name in re.findall(r"^( *)(\w+)/ ", block[1], re.MULTILINE):
        depth = len(indent) // 2
        above[depth + 1 :] = [f"{above[depth]}{name}/"]
        listed.add(above[depth + 1].rstrip("/"))
    assert listed == set().union(*(folders(ROOT / package) for package in PACKAGES))


def test_configuration_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", (DOCS / "configuration.md").read_text(), re.MULTILINE)
    assert dict(rows) == {f"--{name.replace('_', '-')}": _default(name) for name in Settings.model_fields}


def _default(name: str) -> str:
    field = Settings.model_fields[name]
    if field.is_required():
        return "required"
    value = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    return "none" if value in ("", None) else f"`{value}`"


def test_models_lists_every_family_and_precision() -> None:
    families, precisions = (_first_column("models.md", heading) for heading in ("Families", "Precisions"))
    assert set(inline_code(" ".join(families))) == {*FAMILIES}
    assert precisions == [*get_args(Precision)]


def test_models_lists_every_threshold() -> None:
    rows = re.findall(
        r"^\| (?:`(\w+)`)? ?\| `(\w+)`.*?, at (least|most) \| (.*?) \|$", (DOCS / "models.md").read_text(), re.MULTILINE
    )
    listed, task = set(), ""
    for named, figure, bound, numbers in rows:
        task = named or task
        for precision, number in zip(("fp16", "bf16", "int8"), numbers.split(" | "), strict=True):
            listed.add((task, precision, f"{figure} at {bound} {float(number)}"))
    thresholds = {
        (task, precision, str(threshold._replace(figure=figure, instead="")))
        for task, export in EXPORTS.items()
        for precision, several in export.thresholds.items()
        for threshold in several
        for figure in filter(None, (threshold.figure, threshold.instead))
    }
    assert listed == thresholds


def _first_column(page: str, heading: str) -> list[str]:
    """Of a section's first table, without its head."""
    section = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2]
    table = section.partition("\n|")[2].partition("\n\n")[0]
    return [row.partition("|")[0].strip() for row in re.findall(r"^\|?(.*)$", table, re.MULTILINE)][2:]


def test_every_route_is_on_a_page() -> None:
    paths = {route.path.replace(":path}", "}") for route in ROUTES if not route.path.startswith("/static/")}
    pages = inline_code((DOCS / "api.md").read_text()) + inline_code((DOCS / "clients.md").read_text())
    named = {path for code in pages for path in re.findall(r"(?<!\S)/[\w{}./-]*", code)}
    assert paths <= named


def test_api_lists_every_field_of_encode() -> None:
    listed = [field.strip("`") for field in _first_column("api.md", "`POST /encode`")]
    attention = [f"attention.{name}" for name in AttentionRequest.model_fields]
    assert sorted(listed) == sorted([*EncodeRequest.model_fields, *attention])


def test_reference_has_every_public_name() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    assert sorted(re.findall(r"^::: [\w.]+\.(\w+)$", page, re.MULTILINE)) == sorted(polyhead.__all__)


def test_readme_repeats_the_figures_of_performance() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Figures\n")[2].partition("\n## ")[0]
    rates = set(re.findall(r"\d+,\d{3}", section)) | set(re.findall(r"\| (\d+) \|", section))
    measured = (DOCS / "performance.md").read_text().partition("## Beside other engines")[2].partition("\n## ")[0]
    assert rates
    assert rates <= set(re.findall(r"[\d,]+", measured))


def test_python_lists_every_command() -> None:
    listed = re.findall(r"^\| `polyhead ([a-z]+)` \|", (DOCS / "python.md").read_text(), re.MULTILINE)
    assert listed == [*tree().commands]


def test_development_lists_every_make_command() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    table = re.findall(r"^\| `make .*?\|", (DOCS / "development.md").read_text(), re.MULTILINE)
    assert {*re.findall(r"`make ([a-z-]+)`", " ".join(table))} | {"help"} == {*targets}


def test_development_says_what_each_dependency_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: packages for name, packages in project["optional-dependencies"].items() if name != "clients"}
    listed = [package for packages in (project["dependencies"], *extras.values()) for package in packages]
    wanted = {re.split(r"[<>=!;~ ]", package)[0] for package in listed if not package.startswith("polyhead[")}
    text = (DOCS / "development.md").read_text().partition("\n## Dependencies\n")[2]
    assert {package for package in wanted if not re.search(rf"(?<![\w-]){re.escape(package)}(?![\w-])", text)} == set()


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_take_the_flags_they_are_shown_with(command: str) -> None:
    asked = [sys.executable, "-m", *command.split(), "--help"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout  # noqa: S603 - our own programs
    assert shown.startswith(("usage: polyhead ", "Usage: polyhead ", f"usage: python -m {command} "))
    assert commands()[command] <= {"--help", *re.findall(r"--[a-z][a-z-]*", shown)}
