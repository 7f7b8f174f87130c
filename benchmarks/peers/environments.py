"""An environment of its own for every peer, made on first use and kept.

Peers need versions of the same packages that contradict each other and this project's; each gets a virtual environment
with the versions named here, so that a figure can be had again.
"""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.command import CannotMeasure, last_line

TORCH = "torch==2.13.0"  # pinned: an open range takes gigabytes of CUDA packages
INSTALL_LIMIT = 1800.0  # seconds


class NotInstallable(CannotMeasure):
    """The environment cannot be made here; the message is one line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages of one peer.

    Attributes:
        name: of the folder.
        packages: what is installed, with versions.
        reported: packages whose versions belong into the results.
    """

    name: str
    packages: tuple[str, ...]
    reported: tuple[str, ...]

    def python(self, cache: Path) -> Path:
        """Its interpreter; made first where it is missing or was made for other packages.

        Raises:
            NotInstallable: pip failed.
        """
        folder = cache / self.name
        python, stamp = folder / "bin" / "python", folder / "made-for"
        wanted = hashlib.sha256(repr((sys.version, self.packages)).encode()).hexdigest()
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        print(f"==> making an environment for {self.name} in {folder}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages])
        stamp.write_text(wanted)
        return python

    def versions(self, cache: Path) -> dict[str, str]:
        """Versions of the packages that matter, as installed."""
        code = f"from importlib.metadata import version; print(*(version(name) for name in {self.reported!r}))"
        return dict(zip(self.reported, _run([str(self.python(cache)), "-c", code]).split(), strict=True))


# BetterTransformer is Infinity's default and its faster engine on a CPU; optimum has it below 2.0 only, and there asks
# for transformers below 4.49. typer 0.12 of that time does not work with click 8.2.
INFINITY = Environment(
    "infinity",
    ("infinity-emb[torch,server]==0.0.78", TORCH, "transformers==4.48.3", "optimum==1.27.0", "click==8.1.8"),
    ("infinity-emb", "torch", "transformers", "optimum", "sentence-transformers"),
)
SENTENCE_TRANSFORMERS = Environment(
    "sentence-transformers",
    ("sentence-transformers==6.2.0", TORCH, "transformers==5.23.0"),
    ("sentence-transformers", "torch", "transformers"),
)
OPENVINO = Environment(
    "openvino",
    ("openvino==2026.4.1", "nncf==3.4.0", TORCH, "transformers==5.23.0"),
    ("openvino", "nncf", "transformers"),
)
CTRANSLATE2 = Environment(
    "ctranslate2",
    ("ctranslate2==4.8.5", TORCH, "transformers==5.23.0"),
    ("ctranslate2", "transformers"),
)
XPLAINSIM = Environment(  # it imports matplotlib and networkx without asking for them
    "xplainsim",
    ("xplainsim==0.9.4", TORCH, "matplotlib==3.11.2", "networkx==3.6.1"),
    ("xplainsim", "torch", "transformers"),
)


@dataclass(frozen=True, slots=True)
class ThisProject(Environment):
    """The environment that this process runs in."""

    def python(self, cache: Path) -> Path:  # noqa: ARG002 - nothing is made
        """This process's interpreter."""
        return Path(sys.executable)


THIS_PROJECT = ThisProject("this project", (), ("onnxruntime", "torch", "transformers"))


def _run(command: Sequence[str]) -> str:
    """Standard output of a command."""
    try:
        done = subprocess.run(  # noqa: S603 - commands are this module's own
            command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT
        )
    except subprocess.CalledProcessError as error:
        last = last_line(error.stderr, "no message")
        raise NotInstallable(f"{' '.join(command[:4])} ...: {last}") from error
    except (subprocess.TimeoutExpired, OSError) as error:
        raise NotInstallable(f"{' '.join(command[:4])} ...: {error}") from error
    return done.stdout
