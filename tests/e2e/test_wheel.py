"""What is installed: everything below `polyhead`, beside a user's own packages of our folders' names."""

import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from hatch_build import MOVED, moved
from tests.task_artifacts import TaskArtifact

ROOT = Path(__file__).parents[2]
SCRIPT = """
from polyhead import ArtifactError, Engine
with Engine.load({artifact!r}) as engine:
    print(engine.encode(["a cat"]).embeddings.shape)
"""
COMMANDS = """
from polyhead.cli import main
for given in (["--help"], ["info", {artifact!r}], ["train", "--help"], ["export", "--help"]):
    assert main(given) == 0
"""


def test_imports_of_a_module_are_found_below_polyhead() -> None:
    source = (
        '"""from model to service"""\nfrom {}model.artifact import (\n    A,\n)\nfrom {}train import loop\nimport sys\n'
    )
    assert moved(source.format("", "")) == source.format("polyhead.", "polyhead.")
    assert moved("def f():\n    from polyhead.cli import x\n") == "def f():\n    from polyhead.cli import x\n"
    with pytest.raises(ValueError, match="line 1: write `from PACKAGE import NAME`: import model.artifact as a"):
        moved("import model.artifact as a\n")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, what it depends on, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, cwd=folder)  # noqa: S603 - our own package
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)  # noqa: S603
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # whose own .pth files are not read
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody who has modules and packages of the same names, all empty."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for place, name in enumerate(MOVED):
        if place % 2:
            (tmp_path / f"{name}.py").touch()
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").touch()
    return tmp_path


def run(python: Path, *words: str, folder: Path) -> str:
    done = subprocess.run([python, *words], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_polyhead_is_installed_with_its_types(installed: Path) -> None:
    (packages,) = (installed.parents[1] / "lib").glob("python*/site-packages")
    assert {path.name.partition("-")[0] for path in packages.iterdir()} == {"polyhead", "dependencies.pth"}
    assert (packages / "polyhead" / "py.typed").is_file()
    assert (packages / "polyhead" / "service" / "static" / "viewer").is_dir()


def test_the_engine_and_the_command_line_live_beside_packages_of_our_names(
    installed: Path, project: Path, embedder: TaskArtifact
) -> None:
    artifact = str(embedder.artifact)
    (project / "script.py").write_text(SCRIPT.format(artifact=artifact))
    assert run(installed, "script.py", folder=project) == "(1, 32)\n"
    shown = run(installed, "-c", COMMANDS.format(artifact=artifact), folder=project)
    assert all(words in shown for words in ("verify", "embedding", "heal", "--precision"))


def served(command: list[str], project: Path) -> list[str]:
    """What a server says that is ended once it listens."""
    lines = []
    flags = ("--uds", str(project / "socket"))
    with subprocess.Popen([*command, *flags], cwd=project, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603
        assert server.stderr is not None
        for line in server.stderr:
            lines.append(line)
            if "listening on" in line:
                server.terminate()
    assert any("listening on" in line for line in lines), lines
    assert server.returncode == 0, lines
    return lines


def test_processes_serve_beside_packages_of_our_names(installed: Path, project: Path, embedder: TaskArtifact) -> None:
    served([str(installed), "-m", "polyhead", "serve", str(embedder.artifact), "--processes", "2"], project)


def test_other_processes_import_nothing_of_the_present_folder(
    installed: Path,
    project: Path,
    embedder: TaskArtifact,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As little as the program does that starts them."""
    monkeypatch.setenv("POLYHEAD_CACHE", str(project / "cache"))
    (project / "token.py").write_text("raise RuntimeError('of the present folder')")
    program = tmp_path_factory.mktemp("bin") / "run.py"
    program.write_text("import sys; from polyhead.cli import main; sys.exit(main())")
    for model in ((str(embedder.artifact), "--processes", "2"), (str(embedder.folder), "--max-length", "16")):
        assert "of the present folder" not in "".join(served([str(installed), str(program), "serve", *model], project))


def test_the_engine_needs_no_server(
    installed: Path, project: Path, embedder: TaskArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the packages of the extra it encodes, and `polyhead serve` says what is missing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = sorted({re.split("[<>=]", package)[0].replace("-", "_") for package in extras["server"]} | {"starlette"})
    without = tmp_path / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({modules}))")
    monkeypatch.setenv("PYTHONPATH", str(without))
    (project / "script.py").write_text(SCRIPT.format(artifact=str(embedder.artifact)))
    assert run(installed, "script.py", folder=project) == "(1, 32)\n"
    command = [str(installed), "-m", "polyhead", "serve", str(embedder.artifact)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)  # noqa: S603
    missing = "fastapi, httptools, prometheus_client, uvicorn"
    assert done.stderr == f"polyhead serve: serving needs {missing}: pip install 'polyhead[server]'\n"
    assert done.returncode == 1
