"""`python -m deploy.release VERSION` writes the version wherever one has to stand; the one in pyproject.toml counts.

Manifests and image tags cannot read another file, so they hold copies; a test compares each with pyproject.toml.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = {  # the file, and the text before its versions
    "pyproject.toml": r'^version = "',
    "Dockerfile": r"^ARG VERSION=",
    "deploy/compose.yaml": r"image: polyhead:",
    "deploy/chart/Chart.yaml": r"^(?:version|appVersion): ",
    "deploy/chart/values.yaml": r"^image: registry.example.com/polyhead:",
    "deploy/kubernetes/base/kustomization.yaml": r"app.kubernetes.io/version: ",
    "deploy/kubernetes/overlays/production/kustomization.yaml": r"newTag: ",
    "deploy/kubernetes/overlays/models/kustomization.yaml": r"newTag: ",
    "deploy/kubernetes/overlays/hub/kustomization.yaml": r"newTag: ",
}
NUMBERS = r"\d+\.\d+\.\d+"


def versions(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Every place with a version that stands there."""
    for name, before in PLACES.items():
        for found in re.findall(f"(?:{before})({NUMBERS})", (root / name).read_text(), re.MULTILINE):
            yield name, found


def write_version(version: str, root: Path = ROOT) -> None:
    """Writes it to all places."""
    for name, before in PLACES.items():
        path = root / name
        path.write_text(re.sub(f"({before}){NUMBERS}", rf"\g<1>{version}", path.read_text(), flags=re.MULTILINE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the version, and says where."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description="Write a version to every place.")
    parser.add_argument("version", help="MAJOR.MINOR.PATCH")
    version = parser.parse_args(arguments).version
    if not re.fullmatch(NUMBERS, version):
        parser.error(f"version is {version!r}: expected MAJOR.MINOR.PATCH, as 1.2.3")
    write_version(version)
    for name, found in versions():
        sys.stdout.write(f"{name}: {found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
