"""Requests and programs of the README and of pages under docs/, as they are there, give the answers there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.service.process import ServerProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
VIEWER, API, PYTHON, RERANK, NOTEBOOK = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("viewer", "api", "python", "rerank", "notebook")
)


def section_of(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def json_blocks(text: str) -> Iterator[Any]:
    return (json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL))


def run_programs(text: str, artifact: Path, count: int | None = 1) -> dict[str, Any]:
    """Runs the first blocks of Python, all of them for None, on an artifact; their names."""
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:count])
    assert "artifacts/all-MiniLM-L6-v2" in program
    names: dict[str, Any] = {}
    exec(program.replace("artifacts/all-MiniLM-L6-v2", str(artifact)), names)  # noqa: S102 - our own documents
    return names


def test_the_first_requests_give_the_first_answers(server: ServerProcess) -> None:
    start = section_of(README, "First requests")
    sent = re.findall(r"curl -s \S+:8000(/\w+) .*? -d '(\{.*?\})'", start, re.DOTALL)
    assert [path for path, _ in sent] == ["/encode", "/rerank", "/encode"]
    answers = [server.post(path, json.loads(body)) for path, body in sent]
    shown = list(json_blocks(start))
    for ranked, expected in zip(answers.pop(1), shown.pop(1), strict=True):
        assert ranked == pytest.approx(expected, abs=1e-5)
    assert [answer.keys() for answer in answers] == [expected.keys() for expected in shown]
    for answer, expected in zip(answers, shown, strict=True):
        np.testing.assert_allclose(answer["embeddings"], expected["embeddings"], atol=1e-5)
        for name in ("model", "usage", "items"):
            assert answer[name] == expected[name]
    (found,), (attention,) = answers[1]["attention"], shown[1]["attention"]
    for name in ("tokens", "offsets", "layers", "heads"):
        assert found[name] == attention[name]
    (((row,),),) = attention["weights"]
    np.testing.assert_allclose(found["weights"][0][0][0][: len(row) - 1], row[:-1], atol=1e-5)


def test_the_examples_of_attention_give_the_numbers_that_stand_there(server: ServerProcess) -> None:
    section = section_of(VIEWER, "Three examples")
    pronoun, pair = json_blocks(section)
    shown = np.array(sorted({float(number) for number in re.findall(r"(?<![\d.])\d\.\d{4}(?!\d)", section)}))
    found = [*_pronoun(server, pronoun), *_resting_head(server, pronoun["inputs"]), *_two_texts(server, pair)]
    np.testing.assert_allclose(np.unique(np.round(found, 4)), shown, atol=1.1e-4)


def test_the_explained_pair_gets_the_answer_that_stands_there(server: ServerProcess) -> None:
    section = section_of(API, "`POST /explain`")
    request = re.search(r'`(\{"a": .*?\})`', section)
    (shown,) = json_blocks(section)
    assert request is not None
    answer = server.post("/explain", json.loads(request[1]))
    assert answer.keys() == shown.keys()
    for name in ("similarity", "contributions"):
        np.testing.assert_allclose(answer[name], shown[name], atol=1e-5)
    np.testing.assert_allclose(answer["a"].pop("saliency"), shown["a"].pop("saliency"), atol=1e-5)
    assert (answer["a"], answer["model"], answer["usage"]) == (shown["a"], shown["model"], shown["usage"])
    assert answer["b"]["tokens"] == shown["b"]["tokens"]


def test_programs_give_what_stands_beside_them(default_artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_programs(section_of(README, "Python and command line"), default_artifact)
    assert capsys.readouterr().out == "(1, 384) 6\n"
    encoded = run_programs(section_of(PYTHON, "`Engine`"), default_artifact)["encoded"]
    assert (encoded.embeddings.dtype, encoded.embeddings.shape) == (np.float32, (1, 384))
    assert [layer.shape for layer in encoded.attention[0]["weights"]] == [(12, 9, 9)] * 6


def test_the_page_on_reranking_gives_the_scores_that_stand_there(
    server: ServerProcess, default_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = re.findall(r"curl -s \S+/rerank .*? -d '(\{.*?\})'", RERANK, re.DOTALL)[0]
    for ranked, expected in zip(server.post("/rerank", json.loads(body)), next(json_blocks(RERANK)), strict=True):
        assert ranked.pop("text") == expected.pop("text")
        assert ranked == pytest.approx(expected, abs=1e-5)
    run_programs(RERANK, default_artifact)
    assert f"```\n{capsys.readouterr().out}```" in RERANK


def test_the_first_cells_of_the_notebook_give_what_stands_there(
    default_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_programs(NOTEBOOK.partition("\n## BertViz")[0], default_artifact, None)
    names["engine"].close()
    *heads, turn = capsys.readouterr().out.splitlines(keepends=True)
    for printed in ("".join(heads), turn):
        assert f"```\n{printed}```" in NOTEBOOK
    assert names["encoded"]._repr_html_().startswith("<svg")


def _pronoun(server: ServerProcess, request: dict[str, Any]) -> list[float]:
    (tokens, weights), (_, other) = _head(server, request), _head(server, _with_small(request))
    it, trophy, suitcase = (tokens.index(token) for token in ("it", "trophy", "suitcase"))
    effects = [_effect(server, request["inputs"], layer, head) for layer, head in ((3, 1), (5, 5))]
    return [weights[it, trophy], weights[it, suitcase], other[it, trophy], *effects]


def _resting_head(server: ServerProcess, text: str) -> list[float]:
    attention = {"layers": [2], "heads": [9]}
    tokens, weights = _head(server, {"inputs": text, "attention": attention})
    _, norms = _head(server, {"inputs": text, "attention": {**attention, "form": "norms"}})
    statistics = server.post("/encode", {"inputs": text, "attention": {**attention, "form": "stats"}})["attention"][0]
    too = tokens.index("too")
    pairs = [array[too, key] for array in (weights, norms) for key in (0, too)]
    return [statistics["statistics"]["special_mass"][0][0], *pairs, _effect(server, text, 2, 9)]


def _two_texts(server: ServerProcess, request: dict[str, str]) -> list[float]:
    answer = server.post("/explain", request)
    cells, rows, columns = np.array(answer["contributions"]), answer["a"]["tokens"], answer["b"]["tokens"]
    same = [cells[rows.index(token), columns.index(token)] for token in ("medicine", "children")]
    assert sorted(cells.ravel())[-2:] == sorted(same)
    return [answer["similarity"], *same, cells[:, columns.index("not")].sum()]


def _with_small(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "inputs": request["inputs"].replace("large", "small")}


def _head(server: ServerProcess, request: dict[str, Any]) -> tuple[list[str], NDArray[Any]]:
    entry = server.post("/encode", request)["attention"][0]
    return entry["tokens"], np.array(entry["weights"][0][0])


def _effect(server: ServerProcess, text: str, layer: int, head: int) -> float:
    whole = server.post("/encode", {"inputs": text})["embeddings"][0]
    without = server.post("/encode", {"inputs": text, "head_mask": [[layer, head, 0]]})["embeddings"][0]
    return 1 - float(np.dot(whole, without))
