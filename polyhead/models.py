"""Which artifact a command works on: a folder, or a model that is exported into a cache before it is served.

The cache is a folder of artifacts. A name holds the model, the precision and a hash of the source's revision, the
settings of the export and the versions that made it, so that what changes an artifact gives it another name.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args
from urllib.parse import quote

import typer

from export.errors import ExportError, SourceError
from export.sources import ALLOW_PICKLES, DEFAULT_MODEL, DEFAULT_SHA256, Folder, find_folder
from model.artifact import MANIFEST, OPENVINO, ArtifactError, read_manifest, write_whole
from model.config_parts import Precision
from model.processor import processor_name
from polyhead.output import say
from service.errors import one_line
from service.machine import module_command, own_version, usable_cores

if TYPE_CHECKING:
    from polyhead.engine import Engine

DEFAULT_ARTIFACT = Path("artifacts/all-MiniLM-L6-v2")
VARIABLE = "POLYHEAD_MODEL"  # what the service reads the same setting from
CACHE_VARIABLE = "POLYHEAD_CACHE"
MODEL_ID = re.compile(r"[\w.-]+/[\w.-]+")  # of the hub
COMMIT = re.compile(r"[0-9a-f]{40}")
TUNED = ".tuned"  # what `polyhead tune --write` chose, a file a model
REFERENCES = ".revisions"  # of branches on the hub, as they were when a model was exported
DEFAULT_SAID = "[default: POLYHEAD_MODEL, else artifacts/all-MiniLM-L6-v2]"
ArtifactArgument = Annotated[
    Path | None, typer.Argument(metavar="ARTIFACT", help=f"artifact, made by `polyhead export` {DEFAULT_SAID}")
]
ModelFlag = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help=f"artifact; or checkpoint's folder or Hugging Face id, exported once {DEFAULT_SAID}",
    ),
]
SameAsFlag = Annotated[Path | None, typer.Option("--model", metavar="DIR", help="the same, as a flag")]
TWICE = "--model is the argument as a flag: give one of the two"
EXPORTERS = ("torch", "onnx", "onnxscript", "onnx-ir")  # whose versions an artifact depends on


def default_artifact() -> Path:
    """The artifact if the command line names none: a variable's, the one beside us, else what a server exported."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if not DEFAULT_ARTIFACT.is_dir():
        with suppress(ArtifactError, OSError):  # no home folder, or another user's
            if (cached := _place(Wanted(), DEFAULT_SHA256)).is_dir():
                return cached
    return DEFAULT_ARTIFACT


def named_artifact(context: typer.Context, argument: Path | None, flag: Path | None) -> Path:
    """The artifact that a command line names, or the default one."""
    if argument and flag:
        context.fail(TWICE)
    found = argument or flag or default_artifact()
    if is_hub_id(found):
        raise ArtifactError(f"{found} is no folder here: `polyhead export {found}` makes an artifact of it")
    return found


def load_engine(named: Path | None) -> "Engine":
    """The engine of an artifact, or of a model that is exported first; of None the default artifact's.

    Raises:
        ArtifactError, ExportError: it cannot be had; the message names it.
        ModuleNotFoundError: a package is not installed.
    """
    from polyhead.engine import Engine  # noqa: PLC0415 - a command's --help answers without it

    model = named or default_artifact()
    try:
        return Engine.load(model)
    except (ArtifactError, ExportError, ModuleNotFoundError):
        raise
    except Exception as error:  # whatever it is, nothing can be encoded; an OSError is none of the output's
        raise ArtifactError(f"cannot load {model}: {one_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model, and how it is exported."""

    model: str | None = None  # a hub id or a checkpoint's folder; None for the default model
    revision: str | None = None  # branch, tag or commit on the hub
    precision: str = "fp32"
    task: str | None = None  # None for what the checkpoint is for
    max_length: int | None = None  # in tokens; None for what the checkpoint says
    allows_pickles: bool = False  # whether weights are also read from pickles, tensors alone
    engine: str | None = None  # what computes plain answers; None for what the precision asks for

    @property
    def flags(self) -> list[str]:
        """The flags of an export, but for where it comes from and where it goes."""
        given = {
            "--precision": self.precision,
            "--task": self.task,
            "--max-length": self.max_length,
            "--engine": self.engine,
        }
        flags = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        return [*flags, ALLOW_PICKLES] if self.allows_pickles else flags


@dataclass(frozen=True, slots=True)
class Tuned:
    """The form of a model and the service's settings that `polyhead tune` chose; a file of it outlives versions."""

    processor: str
    cores: int
    precision: str
    engine: str | None
    processes: int
    workers: int
    intra_op_threads: int
    max_batch_tokens: int | None = None

    @property
    def layout(self) -> dict[str, int]:
        """The settings."""
        found = {name: getattr(self, name) for name in ("processes", "workers", "intra_op_threads", "max_batch_tokens")}
        return {name: value for name, value in found.items() if value is not None}


def keep_tuned(model: Path, tuned: Tuned) -> None:
    """Leaves a choice where `tuned_for` finds it."""
    path = _tuned_path(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"model": str(model), **asdict(tuned)}, indent=1).encode())


def tuned_for(model: Path) -> Tuned | None:
    """What `polyhead tune --write` chose for a model; None if it was on another processor, or cannot be read."""
    try:
        record = json.loads(_tuned_path(model).read_text())
        tuned = Tuned(**{name: value for name, value in record.items() if name != "model"})
    except (ArtifactError, OSError, TypeError, ValueError):
        return None  # not tuned, or by another version, or cut off, or in a folder that is not this user's
    return tuned if (tuned.processor, tuned.cores) == (processor_name(), usable_cores()) else None


def _tuned_path(model: Path) -> Path:
    name = str(model.resolve()) if model.exists() or model == DEFAULT_ARTIFACT else str(model)
    return cache_folder() / TUNED / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"


def is_artifact(model: Path) -> bool:
    """Whether a folder is an artifact, which is served without an export.

    Raises:
        ArtifactError: its name is not UTF-8, in which engines and tokenizers are given names of files.
    """
    try:
        str(model).encode()
    except UnicodeEncodeError as error:
        raise ArtifactError(f"{model}: this name is not UTF-8: rename the folder") from error
    return (model / MANIFEST).is_file()


def is_hub_id(model: Path) -> bool:
    """Whether a name can only be a model's on the hub: `owner/name`, and no such folder is here."""
    is_named_so = model != DEFAULT_ARTIFACT and MODEL_ID.fullmatch(str(model)) is not None
    return is_named_so and not model.exists() and not model.parent.exists()


def artifact_to_load(model: Path, precision: str | None) -> Path:
    """The artifact of what `Engine.load` is given: a hub id and a checkpoint's folder are exported first.

    Raises:
        SourceError: the model cannot be had, or its export failed.
        ArtifactError: the artifact that is there has another precision, or there is no such precision.
    """
    if precision is not None and precision not in get_args(Precision):  # before a model is fetched
        raise ArtifactError(f"precision is {precision!r}: expected one of {', '.join(get_args(Precision))}")
    if is_hub_id(model) or (not is_artifact(model) and (model / "config.json").is_file()):
        return exported(Wanted(str(model), precision=precision or "fp32"))
    if precision is not None and (found := read_manifest(model).precision) != precision:
        raise ArtifactError(f"{model} is an artifact in {found}, not in {precision}")
    return model


def artifact_to_serve(model: Path, wanted: Wanted) -> Path:
    """The artifact of what `polyhead serve` names: one that is there, else an export from the cache.

    Raises:
        SourceError: there is no such model, it cannot be had without the network, or its export failed.
        ArtifactError: settings of an export were given with an artifact that is there.
    """
    if is_artifact(model):
        if wanted != Wanted():
            raise ArtifactError(f"{model} is an artifact: how it was exported cannot be chosen any more")
        return model
    return exported(replace(wanted, model=name_to_export(model)))


def name_to_export(model: Path) -> str | None:
    """What `Wanted` calls a model that is no artifact.

    Raises:
        ArtifactError: it is a folder without a checkpoint.
    """
    if model.is_dir() and not (model / "config.json").is_file():
        raise ArtifactError(f"{model} holds neither an artifact ({MANIFEST}) nor a checkpoint (config.json)")
    return None if model == DEFAULT_ARTIFACT else str(model)


def exported(wanted: Wanted) -> Path:
    """The artifact of a model, exported unless the cache has it; two processes share one export.

    Raises:
        SourceError: the model cannot be had, the cache not be written to, or the export failed.
    """
    known = _known_revision(wanted)
    if known is not None and (found := _place(wanted, known)).is_dir():
        return found
    revision = known if wanted.model and not Path(wanted.model).is_dir() else None
    folder = find_folder(wanted.model, revision, allows_pickles=wanted.allows_pickles)
    source = _identity(folder)
    target = _place(wanted, source)
    with _alone(target):
        if not target.is_dir():
            say(f"polyhead: exporting {folder.id} ({wanted.precision}) into {target}")
            _export(wanted, folder, target)
    if folder.revision is not None:
        _reference(wanted).parent.mkdir(parents=True, exist_ok=True)
        write_whole(_reference(wanted), folder.revision.encode())
    return target


def cache_folder() -> Path:
    """Where exports are kept: `POLYHEAD_CACHE`, else below the user's cache folder.

    Raises:
        ArtifactError: neither is named, and the user has no home folder.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyhead"
    except RuntimeError as error:
        raise ArtifactError(f"there is no home folder for exports: name one with {CACHE_VARIABLE}") from error


def cached_artifacts() -> list[Path]:
    """The artifacts that the cache holds, by name."""
    return sorted(path.parent for path in cache_folder().glob(f"*/{MANIFEST}"))


def clear_cache(names: list[str]) -> list[Path]:
    """Removes artifacts of these names from the cache, or all; refuses a name that it does not hold."""
    found = {path.name: path for path in cached_artifacts()}
    if unknown := sorted(set(names) - set(found)):
        raise ArtifactError(f"{cache_folder()} holds no {unknown[0]}: `polyhead cache` lists what it holds")
    chosen = [found[name] for name in names or found]
    for path in chosen:
        shutil.rmtree(path)
    if not names:
        for folder in (REFERENCES, TUNED):
            shutil.rmtree(cache_folder() / folder, ignore_errors=True)
    return chosen


def _known_revision(wanted: Wanted) -> str | None:
    """What identifies the source, if that is known without asking the hub."""
    if wanted.model is None or Path(wanted.model).is_dir():
        return _identity(find_folder(wanted.model, wanted.revision))
    if wanted.revision and COMMIT.fullmatch(wanted.revision):
        return wanted.revision
    reference = _reference(wanted)
    return reference.read_text() if reference.is_file() else wanted.revision


def _identity(folder: Folder) -> str:
    """A commit on the hub; of a folder its files with sizes and times."""
    if folder.revision is not None:
        return folder.revision
    if folder.sha256 == DEFAULT_SHA256:
        return DEFAULT_SHA256
    files = sorted(path for path in folder.path.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(folder.path)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([str(folder.path.resolve()), stats]).encode()).hexdigest()


def _place(wanted: Wanted, source: str) -> Path:
    exporters = (*EXPORTERS, OPENVINO) if OPENVINO in wanted.flags or wanted.precision == "bf16" else EXPORTERS
    versions = {"polyhead": own_version(), **{name: _version(name) for name in exporters}}
    described = json.dumps([source, wanted.flags, versions], sort_keys=True)
    name = Path(wanted.model or DEFAULT_MODEL).name
    return cache_folder() / f"{name}-{wanted.precision}-{hashlib.sha256(described.encode()).hexdigest()[:12]}"


def _reference(wanted: Wanted) -> Path:
    return cache_folder() / REFERENCES / quote(f"{wanted.model}@{wanted.revision or 'main'}", safe="")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Holds the lock of an artifact's name, waiting for whoever exports it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        opened = (target.parent / f".{target.name}.lock").open("w")
    except OSError as error:
        raise SourceError(
            f"exports are kept in {target.parent}, which cannot be written to ({error.strerror}): name another folder "
            f"with {CACHE_VARIABLE}, or an artifact"
        ) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"polyhead: waiting for another process that exports {target.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _export(wanted: Wanted, folder: Folder, target: Path) -> None:
    """Runs the exporter in a process of its own: a server has no use for PyTorch in its memory."""
    source, environment = [str(folder.path)] if wanted.model else [], dict(os.environ)
    if folder.revision is not None:
        source = [folder.id, "--revision", folder.revision]
        environment["HF_HUB_OFFLINE"] = "1"  # its files are here by now
    command = [*module_command("polyhead"), "export", *source, *wanted.flags, "--output", str(target)]
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603 - our own program
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()  # Popen itself leaves after a quarter of a second behind Ctrl-C
            raise
    if code == -signal.SIGKILL:
        raise SourceError(
            f"{folder.id} was not exported: the exporter was killed, which happens where memory is short; give it "
            "more, or export on another machine (`polyhead export`)"
        )
    if code:
        raise SourceError(f"{folder.id} was not exported: its last line says why, in the words of `polyhead export`")
