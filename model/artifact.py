"""The artifact: a directory that `export` writes and `service` reads, described by `manifest.json`.

The manifest names the network, where it came from, its files with their hashes, and figures. Here are also the names of
the graph's inputs and outputs. Standard library only; this module opens neither the graph nor the tokenizer.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from model.config import EncoderConfig
from model.config_parts import OUTPUT_NAMES, ClassificationSettings, ConfigError, ScoreActivation, Task, require
from model.json_types import JsonTypeError, read_fields

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 4 << 20  # a thousand times what one takes
GRAPH = "model.onnx"
GRAPH_WEIGHTS = "model.onnx.data"
EXPLAIN_GRAPH = "explain.onnx"
PLAIN_GRAPH = "plain.onnx"  # the task's output alone, without branches, for engines that compute no `If`
ONNX_RUNTIME, OPENVINO = "onnxruntime", "openvino"
FURTHER_OUTPUTS = "further_outputs.npz"  # small layers and tables outside the graph
TOKENIZER = "tokenizer.json"
HEADS = "heads.json"
HEADS_PAGE = "heads.html"
PRUNING = "pruning.json"
PRUNING_PICTURE = "pruning.svg"
SCHEMA_VERSION = 1
COSINE, DOT = "cosine", "dot"
INPUT_IDS = "input_ids"
LENGTHS = "lengths"
SEEN_LENGTHS = "seen_lengths"  # int64 [B]: tokens whose keys are seen; of networks that expand queries
ATTENTION_LAYERS = "attention_layers"
NORM_LAYERS = "norm_layers"  # bool [L]: which layers' value norms to compute
HEAD_GATES = "head_gates"  # float32 [B, sum of all layers' heads], first layer first; no rows: no gates
TOKEN_TYPE_IDS = "token_type_ids"  # noqa: S105 - a tensor name, no password
LAST_HIDDEN_STATE = "last_hidden_state"
SOURCES = "sources"  # of the explaining graph: int64 [N], places of the tokens whose parts are computed
PLACE = "place"  # of the explaining graph of a token classifier: int64 [1], the token whose logits they are parts of
PARTS = "parts"  # float32 [N, D'], what each gives to the task's output
WHOLE = "whole"  # float32 [D'], that output
OWN_SHARES = "own_shares"  # float32 [L, N], how much of each token's vector is its own after each layer


def attentions_name(layer: int) -> str:
    """Name of the graph output that holds one layer's attention weights."""
    return f"attentions.{layer}"


def value_norms_name(layer: int) -> str:
    """Name of the graph output [B, H_l, S] that holds one layer's value norms; [0, H_l, 0] where not wanted."""
    return f"value_norms.{layer}"


class ArtifactError(Exception):
    """The directory is no artifact, or not the one its manifest describes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where an artifact came from."""

    id: str  # a hub id, or a folder's name
    revision: str | None  # commit on the hub, or None
    sha256: str  # of the network's weights: of the file, or of its shards' hashes in order
    adapter: str | None = None  # which of the checkpoint's adapters the weights hold; None if it has none
    # SHA-256 of the checkpoint's other files by path: settings, tokenizer, further layers
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of the artifact: SHA-256 in hex, size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What a request gets where it says nothing."""

    pooling: str  # how token vectors become one vector (done in the graph, named here for the reader)
    normalize: bool  # whether the model's own pipeline ends in an L2 normalisation
    prompts: Mapping[str, str]  # texts by name that the model wants in front of an input
    default_prompt_name: str | None  # the prompt used when a request names none, or None
    unit_length: bool = True  # whether vectors are answered at length 1 unless a request says otherwise
    similarity: str = COSINE  # what two embeddings are compared by, `cosine` or `dot`

    @property
    def compares_unit_vectors(self) -> bool:
        """Whether two embeddings are brought to length 1 before they are compared."""
        return self.unit_length or self.similarity != DOT


@dataclass(frozen=True, kw_only=True, slots=True)
class PairWording:
    """Words in front of and behind each text of a pair, tokenised together with it.

    Tokens of the wording may reach into a text: a byte-level tokenizer reads a question mark and the line's end behind
    it as one token. So these words are no special tokens of the tokenizer's template.
    """

    before: tuple[str, str]  # in front of the first text, and of the second
    after: tuple[str, str]  # behind each

    def wrap(self, pairs: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
        """Pairs of texts with their words around them; a text of several pairs is wrapped once."""
        firsts, seconds = (
            {text: before + text + after for text in {pair[side] for pair in pairs}}
            for side, (before, after) in enumerate(zip(self.before, self.after, strict=True))
        )
        return [(firsts[first], seconds[second]) for first, second in pairs]

    def spans(self, texts: Sequence[str]) -> list[tuple[int, int]]:
        """Where each text of a pair is in what `wrap` makes of it, [start, end) in characters."""
        return [(len(before), len(before) + len(text)) for before, text in zip(self.before, texts, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorRanges:
    """Least and greatest value of each dimension of normalised embeddings, over the export's calibration texts.

    What `quantize_embeddings` of sentence-transformers calls `ranges`: int8 and uint8 scale each dimension to 256 steps
    between the two. They are of vectors of length 1 with all their dimensions, as the service answers them by default.
    """

    minimum: tuple[float, ...]
    maximum: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Everything the service knows of an artifact before it opens the graph."""

    model: str  # name under which the model is served
    source: Source  # id, revision and hash of the weights
    config: EncoderConfig  # the network
    precision: str  # `fp32`, `fp16`, `bf16` or `int8`
    opset: int  # ONNX operator set of the graph
    inputs: tuple[str, ...]  # names of the graph's inputs, in order
    outputs: tuple[str, ...]  # names of the graph's outputs, in order
    defaults: Defaults  # pooling, normalisation and prompts
    max_sequence_length: int  # longest input in tokens, special tokens included
    fused_attention: Mapping[str, int]  # fused attention nodes in the graph, by operator
    # largest absolute difference from the PyTorch encoder by output, and other figures the export measured
    parity: Mapping[str, Any]
    files: Mapping[str, FileEntry]  # every other file of the directory, by name
    versions: Mapping[str, str]  # versions of what produced the artifact, by package
    # which heads were removed, by what, and what it cost; None where none were
    pruning: Mapping[str, Any] | None = None
    # what training left out: heads as [layer, head], a number of neurons for each layer that stayed, layers, and how
    # much faster that made the network; None for nothing
    removed_in_training: Mapping[str, Any] | None = None
    # texts that the model knows the words of, for the viewer to begin with; empty if it names none
    examples: tuple[str, ...] = ()
    pairs: bool = False  # whether the model takes pairs of texts, made as `tokenizer.json` makes them
    # what is put around the two texts before `tokenizer.json` reads them; None for nothing
    pair_wording: PairWording | None = None
    # what 8-bit vectors are scaled by; None if the task has no such vectors, or they were not measured
    vector_ranges: VectorRanges | None = None
    # int8 weights with which sums of two products never exceed 16 bits, whatever the input, so that processors without
    # VNNI compute them exactly with their fastest kernel
    fits_16_bits: bool = False
    # what computes plain answers, `onnxruntime` or `openvino`; the latter from `plain.onnx`, in `precision` where the
    # processor can, and all other answers are ONNX Runtime's from a float32 `model.onnx`
    engine: str = ONNX_RUNTIME
    # what an embedder makes of each token besides a text's vector, with how many numbers a token: `sparse` and
    # `multi_vector` (BGE-M3); empty for nothing
    token_outputs: Mapping[str, int] = field(default_factory=dict)
    query_table: bool = False  # whether a sparse model reads queries by a table of weights, without the network
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        require("max_sequence_length", self.max_sequence_length, minimum=1)

    @property
    def task(self) -> Task:
        """What the artifact is for."""
        return self.config.task

    @property
    def task_output(self) -> str:
        """Name of the graph output that the task is for."""
        return OUTPUT_NAMES[self.config.task]

    @property
    def labels(self) -> tuple[str, ...]:
        """A name a logit; empty where the task is no classification."""
        settings = self.config.task_settings
        return settings.labels if isinstance(settings, ClassificationSettings) else ()

    @property
    def activation(self) -> ScoreActivation:
        """The function from logits to scores."""
        settings = self.config.task_settings
        return settings.activation if isinstance(settings, ClassificationSettings) else "identity"

    def to_dict(self) -> dict[str, Any]:
        """The manifest as JSON writes it; `from_dict` reverses it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Manifest":
        """Reads what `to_dict` wrote.

        Raises:
            ArtifactError: another schema version, or a field is unknown, missing or malformed.
        """
        if (version := data.get("schema_version")) != SCHEMA_VERSION:
            raise ArtifactError(f"manifest schema {version!r}: this version reads {SCHEMA_VERSION}; export it again")
        if unknown := sorted(set(data) - {field.name for field in fields(cls)}):
            raise ArtifactError(f"manifest has unknown fields {', '.join(unknown)}; export it again")
        try:
            return cls(**read_fields(data, cls))
        except (ConfigError, JsonTypeError) as error:
            raise ArtifactError(f"malformed manifest: {error}") from error


def manifest_bytes(manifest: Manifest) -> bytes:
    """What `manifest.json` holds; `ValueError` where a figure is not finite, which JSON cannot say."""
    return (json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified directory: every file that the manifest lists is there with its size and hash."""

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path) -> "Artifact":
        """Reads the manifest and checks every file against it, before anything is loaded.

        Raises:
            ArtifactError: no manifest, a malformed one, or a file that is missing, outside the directory or different.
        """
        manifest = read_manifest(directory)
        for required in (GRAPH, TOKENIZER):
            if required not in manifest.files:
                raise ArtifactError(f"{directory / MANIFEST} lists no {required}; export it again")
        if manifest.engine not in (ONNX_RUNTIME, OPENVINO):
            raise ArtifactError(f"{directory / MANIFEST} names engine {manifest.engine!r}; this version has others")
        if manifest.engine == OPENVINO and PLAIN_GRAPH not in manifest.files:
            raise ArtifactError(f"{directory / MANIFEST} lists no {PLAIN_GRAPH}; export it again")
        artifact = cls(directory, manifest)
        artifact.check()
        return artifact

    def check(self) -> None:
        """Checks every file against the manifest, as it was read: whoever opens one later asks again."""
        for name, entry in self.manifest.files.items():
            _check_file(self.directory, name, entry)

    def path(self, name: str) -> Path:
        """Path of one of the artifact's files."""
        return self.directory / name


def read_manifest(directory: Path) -> Manifest:
    """Reads `manifest.json` without checking the other files.

    Raises:
        ArtifactError: the directory or the manifest is missing or malformed.
    """
    path = directory / MANIFEST
    if not path.is_file():
        fault, output = f"there is no folder {directory}", str(directory)
        if directory.is_dir():  # which an export does not replace
            fault, output = f"{directory} holds no {MANIFEST}", "DIR"
        raise ArtifactError(f"{fault}: make an artifact with `polyhead export --output {output}`")
    _check_place(directory, path)
    if (size := path.stat().st_size) > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{path} has {size} bytes, at most {MAX_MANIFEST_BYTES} are read")
    try:
        data = json.loads(path.read_bytes())
        json.dumps(data, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which no answer can hold
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ArtifactError(f"{path} holds {type(data).__name__}, expected an object")
    try:
        return Manifest.from_dict(data)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes `manifest.json`, keys in field order, readable by people."""
    (directory / MANIFEST).write_bytes(manifest_bytes(manifest))


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """Size and hash of every file of a directory except the manifest, by name."""
    paths = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
    return {path.name: FileEntry(sha256=hash_file(path), size=path.stat().st_size) for path in paths}


def install_files(directory: Path, contents: Mapping[str, bytes]) -> Manifest:
    """Writes files into an artifact and its manifest, instead of files of the same names."""
    manifest = read_manifest(directory)
    others = {name: entry for name, entry in manifest.files.items() if name not in contents}
    if len(others) < len(manifest.files):
        write_whole(directory / MANIFEST, manifest_bytes(replace(manifest, files=others)))
    for name, content in contents.items():
        write_whole(directory / name, content)
    entries = {name: FileEntry(sha256=hash_file(directory / name), size=len(contents[name])) for name in contents}
    installed = replace(manifest, files={**others, **entries})
    write_whole(directory / MANIFEST, manifest_bytes(installed))
    return installed


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file at once: a reader sees the old content or the new, also after a loss of power."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk's error names no file
        raise


def identity(manifest: Manifest) -> str:
    """SHA-256 of everything that an answer depends on; equal for two artifacts that give the same answers.

    Whole, pruned and distilled networks have one source, and so has one that cuts texts earlier: only the graph, the
    tokenizer and what the manifest says about texts and the task tell them apart. Reports and the explaining graph
    change no answer. OpenVINO rounds by itself, so artifacts for it have the same graph in every precision.
    """
    answering = (GRAPH, GRAPH_WEIGHTS, TOKENIZER, FURTHER_OUTPUTS)
    files = {name: manifest.files[name].sha256 for name in answering if name in manifest.files}
    given = manifest.to_dict()
    said = {name: given[name] for name in ("defaults", "max_sequence_length", "pairs", "pair_wording", "vector_ranges")}
    if manifest.engine == OPENVINO:
        said |= {name: given[name] for name in ("engine", "precision")}
    if (task := given["config"]["task_settings"]) is not None:  # labels, activation, skipped tokens: not in the graph
        said["task_settings"] = task
    return hashlib.sha256(json.dumps([files, said], sort_keys=True).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(directory: Path, name: str, entry: FileEntry) -> None:
    path = directory / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise ArtifactError(f"manifest names {name!r}: only plain file names inside the directory are allowed")
    if not path.is_file():
        raise ArtifactError(f"{path} is missing; export it again")
    _check_place(directory, path)
    if (size := path.stat().st_size) != entry.size:
        raise ArtifactError(f"{path} has {size} bytes, the manifest says {entry.size}; export it again")
    if (digest := hash_file(path)) != entry.sha256:
        raise ArtifactError(f"{path} has SHA-256 {digest}, the manifest says {entry.sha256}; export it again")


def _check_place(directory: Path, path: Path) -> None:
    """Refuses a link that leads out of the directory. Links within it are allowed: Kubernetes mounts files so."""
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ArtifactError(f"{path} is a link out of its directory: put the file itself there")
