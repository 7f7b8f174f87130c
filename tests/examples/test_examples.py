"""The examples as their users call them, with the real model; figures against the model's own answer."""

import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from examples import cluster, guard, rerank_over_http, search_folder, search_passages, why_similar
from polyhead import Encoded, Engine, SourceError
from polyhead.cli import main as polyhead
from tests.service.process import ServerProcess
from tests.task_artifacts import TaskArtifact

needs_qdrant = pytest.mark.skipif(find_spec("qdrant_client") is None, reason="qdrant-client is not installed")
ANIMALS = ["The cat sleeps on the sofa.", "The dog chases the cat.", "The kitten drinks milk."]
MONEY = ["The bank raised its interest rates.", "Shares fell on the stock market.", "Banks and markets fear inflation."]
SPACE = ["The rocket left for the moon.", "Astronauts walked on the moon.", "The space station orbits the earth."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "animals.txt").write_text("\n\n".join(ANIMALS) + "\n\n\n \n")
    (tmp_path / "below" / "money.txt").write_text("\n\n".join(MONEY))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "no text.bin").write_bytes(b"\0\xff")
    return tmp_path


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What engines are given to encode, call by call."""
    calls: list[list[str]] = []
    encode = Engine.encode

    def note(engine: Engine, inputs: list[str], **options: Any) -> Encoded:
        calls.append(list(inputs))
        return encode(engine, inputs, **options)

    monkeypatch.setattr(Engine, "encode", note)
    return calls


def test_search_finds_what_is_meant(default_artifact: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search_folder.main([str(folder), "a young pet is thirsty", "--model", str(default_artifact), "--top", "2"])
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("animals.txt: The kitten drinks milk.")
    assert float(first[:5]) > float(second[:5])
    search_folder.main([str(folder), "monetary policy", "--model", str(default_artifact), "--top", "1"])
    assert "below/money.txt: " in capsys.readouterr().out.replace(os.sep, "/")


def test_search_encodes_only_what_changed(embedder: TaskArtifact, folder: Path, encoded: list[list[str]]) -> None:
    def ask(query: str) -> list[list[str]]:
        encoded.clear()
        search_folder.main([str(folder), query, "--model", str(embedder.artifact)])
        return list(encoded)

    assert ask("first") == [ANIMALS, MONEY, [], ["first"]]
    assert ask("second") == [["second"]]
    (folder / "animals.txt").write_text("A fish swims.")
    os.utime(folder / "animals.txt", (1, 1))
    (folder / "below" / "money.txt").unlink()
    assert ask("third") == [["A fish swims."], ["third"]]
    with np.load(folder / ".search.npz", allow_pickle=False) as kept:
        assert sorted(name.rpartition("/")[2] for name in kept) == ["animals.txt", "empty.txt"]


def test_queries_and_paragraphs_are_read_behind_their_prompts(
    embedder: TaskArtifact, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompted = shutil.copytree(embedder.artifact, tmp_path / "prompted")
    manifest = json.loads((prompted / "manifest.json").read_text())
    manifest["defaults"]["prompts"] = {"query": "query: ", "document": "passage: "}
    (prompted / "manifest.json").write_text(json.dumps(manifest))
    with Engine.load(prompted) as engine:
        (best,) = engine.rerank("a thirsty pet", [*ANIMALS, *MONEY], top_n=1)
    for model in (embedder.artifact, prompted):  # vectors of the other model are not taken for its own
        search_folder.main([str(folder), "a thirsty pet", "--model", str(model), "--top", "1"])
    name = "animals.txt" if best.document in ANIMALS else Path("below/money.txt")
    assert capsys.readouterr().out.splitlines()[1] == f"{best.score:.3f}  {name}: {best.document}"


@needs_qdrant
def test_passages_are_searched_by_their_tokens(
    expanding_encoder: TaskArtifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passages, model = tmp_path / "passages.txt", ["--model", str(expanding_encoder.artifact), "--pool-factor", "1"]
    passages.write_text("\n".join([*ANIMALS, "", *MONEY]))
    with Engine.load(expanding_encoder.artifact) as engine:
        scores = engine.score(ANIMALS[1], [*ANIMALS, *MONEY])
    for _ in range(2):  # the second time from the index that is there
        search_passages.main([str(passages), ANIMALS[1], *model, "--top", "2"])
        best, second = capsys.readouterr().out.splitlines()
        assert float(best.split()[0]) == pytest.approx(float(scores.max()), abs=2e-3)
        assert best.endswith([*ANIMALS, *MONEY][int(scores.argmax())])
        assert float(second.split()[0]) == pytest.approx(float(np.sort(scores)[-2]), abs=2e-3)


@needs_qdrant
def test_an_index_of_other_passages_is_not_gone_on_with(
    expanding_encoder: TaskArtifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passages, model = tmp_path / "passages.txt", ["--model", str(expanding_encoder.artifact)]

    def scores(*texts: str, factor: int = 1) -> list[str]:
        passages.write_text("\n".join(texts))
        search_passages.main([str(passages), ANIMALS[1], *model, "--pool-factor", str(factor), "--top", "1"])
        return capsys.readouterr().out.splitlines()

    whole = scores(*ANIMALS)
    assert scores(*ANIMALS, *MONEY) == whole  # a passage more is added
    assert scores(*ANIMALS, factor=4) != whole  # in an index of its own
    for others in (MONEY, ANIMALS[:2]):
        with pytest.raises(SystemExit, match="1"):
            scores(*others)
        assert "holds other passages" in capsys.readouterr().err


def test_clusters_are_the_subjects(default_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(line for group in zip(ANIMALS, MONEY, SPACE, strict=True) for line in group) + "\n\n")
    picture = tmp_path / "clusters.png"
    cluster.main([str(lines), "--clusters", "3", "--plot", str(picture), "--model", str(default_artifact)])
    parts = capsys.readouterr().out.split("cluster ")[1:]
    assert {frozenset(part.split("\n  ")[1:]) for part in map(str.rstrip, parts)} == {
        frozenset(group) for group in (ANIMALS, MONEY, SPACE)
    }
    with Image.open(picture) as image:
        assert len(image.getcolors(1 << 20) or ()) > 100  # dots in three colours and text, smoothed


def test_why_two_texts_are_similar_is_the_commands_table(
    embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["A cat sat down.", "The kitten is resting.", "--model", str(embedder.artifact), "--top", "3"]
    assert polyhead(["explain", *given]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    why_similar.main(given)
    printed, *table = capsys.readouterr().out.splitlines()
    assert (printed.partition(" pairs of tokens")[0], table) == (head.partition(" pairs of tokens")[0], rows)


def test_what_is_not_there_is_one_line(
    folder: Path,
    classifier: TaskArtifact,
    embedder: TaskArtifact,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polyhead.models.find_folder", Mock(side_effect=SourceError("could not be fetched")))
    lines, model, hub = str(folder / "animals.txt"), ["--model", str(folder / "no model")], ["--model", "no/one"]
    no_server = ["--url", "http://127.0.0.1:1"]
    other, pooled = (["--model", str(made.artifact)] for made in (classifier, embedder))
    calls: list[tuple[Any, list[str], str]] = [
        (cluster.main, [str(folder / "nowhere.txt")], "No such file"),
        (cluster.main, [str(folder / "no text.bin")], "can't decode"),
        (cluster.main, [lines, "--clusters", "2", *model], "there is no folder"),
        (search_folder.main, [str(folder), "a cat", *model], "there is no folder"),
        (search_folder.main, [str(folder), "a cat", "--pattern", "/etc/*"], "Non-relative patterns"),
        (cluster.main, [lines, "--clusters", "2", *other], "gives no vector of a text (its task is classification)"),
        (search_folder.main, [str(folder), "a cat", *other], "gives no vector of a text"),
        (search_passages.main, [lines, "a cat", *pooled], "gives no vectors of tokens (its task is embedding)"),
        (why_similar.main, ["a cat", "a dog", *other], "only the similarity of two embeddings"),
        (why_similar.main, ["a cat", "a dog", *model], "there is no folder"),
        (why_similar.main, ["a cat", "a dog", *hub], "could not be fetched"),
        (cluster.main, [lines, "--clusters", "2", *hub], "could not be fetched"),
        (search_folder.main, [str(folder), "a cat", *hub], "could not be fetched"),
        (search_passages.main, [lines, "a cat", *hub], "could not be fetched"),
        (rerank_over_http.main, [lines, "a cat", *no_server], "no server answers at http://127.0.0.1:1 "),
        (guard.main, ["a cat", "--label", "x", *no_server], "no server answers at http://127.0.0.1:1 "),
    ]
    for main, arguments, message in calls:
        with pytest.raises(SystemExit, match="1"):
            main(arguments)
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.count("\n") == 1


@pytest.fixture(scope="module")
def url(reranker: TaskArtifact) -> Iterator[str]:
    """Of a server with a cross-encoder, whose only label is LABEL_0."""
    with ServerProcess("service", "--model", str(reranker.artifact)) as process:
        yield "http://{}:{}".format(*process.wait_until_ready().address)
        assert process.stop() == 0


def test_lines_are_ranked_by_a_server_and_heads_named(
    url: str, reranker: TaskArtifact, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder / "animals.txt"), "a young pet is thirsty", "--url", url, "--top", "2", "--heads", "3"]
    rerank_over_http.main(given)
    with Engine.load(reranker.artifact) as engine:
        best, second = engine.rerank("a young pet is thirsty", ANIMALS, top_n=2, attention={"layers": "all"})
    masses = np.asarray((best.attention or {})["query_to_document_mass"])
    order = np.argsort(-masses, axis=None)[:3].tolist()
    heads = [f"layer {at // 4}, head {at % 4} gives documents {masses.flat[at]:.1%}" for at in order]
    ranked = [f"{one.score:.4f}  {one.document}" for one in (best, second)]
    assert capsys.readouterr().out.splitlines() == [*ranked, *heads]
    with pytest.raises(SystemExit, match="1"):
        rerank_over_http.main([*given[:3], f"{url}/nowhere"])
    assert "no such route" in capsys.readouterr().err


def test_a_guard_goes_by_the_worst_part_of_a_long_message(
    url: str, reranker: TaskArtifact, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "the cats sat on the mats, lower newest wider. " * 40 + "the widest cat. " * 20
    parts = guard.parts_of(message)
    assert len(parts) == 2
    assert all(one[-300:] == other[:300] for one, other in pairwise(parts))
    parts = guard.parts_of(message, guard.PART // 16)  # of 64 tokens at most, which the model reads
    with Engine.load(reranker.artifact) as engine:
        found = engine.classify(parts, truncate=False)
    expected = max(entry["score"] for labels in found for entry in labels)
    assert guard.worst_score(url, message, "LABEL_0") == pytest.approx(expected, abs=1e-5)
    for most, code, said in ((1.0, 0, "pass"), (0.0, 1, "refuse")):
        with pytest.raises(SystemExit) as ended:
            guard.main([message, "--label", "LABEL_0", "--most", str(most), "--url", url])
        assert (ended.value.code, capsys.readouterr().out.split()[0]) == (code, said)
    with pytest.raises(SystemExit, match="1"):
        guard.main([message, "--label", "INJECTION", "--url", url])
    assert "no label INJECTION: the model has LABEL_0" in capsys.readouterr().err
