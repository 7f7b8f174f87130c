import hashlib
import html.parser
import json
import math
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from starlette.testclient import TestClient

from export.checkpoint import Checkpoint, read_checkpoint
from export.cli import main
from export.exporter import export_artifact
from export.heads.relations import RULES
from export.heads.report import make_report
from export.heads.statistics import REPORTED
from export.heads.subject import find_subject
from export.sources import Folder
from export.weights import read_weights
from model.artifact import HEADS, HEADS_PAGE, Artifact
from service.app import create_app
from service.runner import Runner
from service.services import Readiness
from service.settings import read_settings
from tests.export.conftest import write_artifact
from tests.family_models import read
from tests.planted import DEAD, NEXT, PREVIOUS, REPEATED, SELF, SEPARATOR, TWIN, UNIFORM, draw_texts, sharp_weight

LENGTHS = np.array([len(text.split()) + 2 for text in draw_texts(60)])  # [CLS] and [SEP] besides the words
SHARP = np.array([sharp_weight(int(length)) for length in LENGTHS])
REST = (1 - SHARP) / (LENGTHS - 1)  # weight of each other token


@pytest.fixture(scope="module")
def report(planted: Checkpoint, corpus: Path, pairs_file: Path, parses_file: Path) -> dict[str, Any]:
    return make_report(planted, corpus, rated=pairs_file, parsed=parses_file, importance_texts=24, max_tokens=40)


def statistic(report: dict[str, Any], head: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = report["heads"][head]["statistics"][name]
    return found


@pytest.mark.parametrize(
    ("head", "role"),
    [
        (PREVIOUS, "previous"),
        (SELF, "self"),
        (NEXT, "next"),
        (SEPARATOR, "special"),
        (UNIFORM, "broad"),
        (REPEATED, "repeated_token"),
        (TWIN, "previous"),
    ],
)
def test_each_planted_head_gets_its_role(report: dict[str, Any], head: int, role: str) -> None:
    assert report["heads"][head]["role"] == role
    passed = report["heads"][head]["rules_passed"][0]
    assert passed["p"] < 1e-6
    assert passed["mean"] > passed["threshold"]
    assert passed["n"] > 40


@pytest.mark.parametrize(
    ("head", "name", "by_text"),
    [
        # One row has no such neighbour: it is uniform, and adds nothing to the score.
        (PREVIOUS, "offset_previous", (LENGTHS - 1) / LENGTHS * SHARP),
        (NEXT, "offset_next", (LENGTHS - 1) / LENGTHS * SHARP),
        (SELF, "offset_self", SHARP),
        (SELF, "entropy", -SHARP * np.log(SHARP) - (LENGTHS - 1) * REST * np.log(REST)),
        (UNIFORM, "entropy", np.log(LENGTHS)),
        (UNIFORM, "normalized_entropy", np.ones(60)),
        (UNIFORM, "distance", (LENGTHS**2 - 1) / (3 * LENGTHS)),
        (UNIFORM, "signed_distance", np.zeros(60)),
        (UNIFORM, "sink", 1 / LENGTHS),
        (UNIFORM, "special_mass", 2 / LENGTHS),
        (SEPARATOR, "special_mass", SHARP + REST),
        (PREVIOUS, "previous_rate", np.ones(60)),
        (SELF, "previous_rate", np.zeros(60)),
    ],
)
def test_means_intervals_and_counts_are_those_of_the_closed_form(
    report: dict[str, Any], head: int, name: str, by_text: np.ndarray[Any, Any]
) -> None:
    found = statistic(report, head, name)
    assert found["n"] == 60
    assert found["mean"] == pytest.approx(by_text.mean(), rel=1e-4, abs=1e-5)
    half = 2.0009954 * by_text.std(ddof=1) / math.sqrt(60)  # Student's t for 59 degrees, from a table
    assert found["high"] - found["mean"] == pytest.approx(half, rel=1e-3, abs=1e-5)
    assert found["mean"] - found["low"] == pytest.approx(half, rel=1e-3, abs=1e-5)


def test_a_repeating_querys_mass_on_its_repetitions(report: dict[str, Any]) -> None:
    # k repetitions share e^12 each against n - k others, so nearly all mass is theirs.
    found = statistic(report, REPEATED, "repeated_token")
    assert found["mean"] == pytest.approx(1, abs=1e-3)
    assert found["n"] == sum(len(set(text.split())) < len(text.split()) for text in draw_texts(60))


def test_a_dead_head_is_of_no_importance_by_any_definition(report: dict[str, Any]) -> None:
    heads = report["heads"]
    for name in ("leave_one_out", "jacobian", "output_norm", "spearman_loss", "loss_gradient"):
        assert heads[DEAD]["importance"][name]["mean"] == pytest.approx(0, abs=1e-12), name
        values = [abs(head["importance"][name]["mean"]) for head in heads]
        assert np.argmin(values) == DEAD, name
        assert heads[SELF]["importance"][name]["low"] is not None
    assert statistic(report, DEAD, "special_norm_share")["mean"] is None
    assert statistic(report, DEAD, "special_norm_share")["n"] == 0


def test_identical_heads_are_at_no_distance_and_in_one_group(report: dict[str, Any]) -> None:
    redundancy = report["redundancy"]
    divergences = np.array(redundancy["divergences"])
    assert divergences[PREVIOUS, TWIN] == pytest.approx(0, abs=1e-7)
    assert divergences[SELF, DEAD] == pytest.approx(0, abs=1e-7)
    np.testing.assert_array_equal(divergences, divergences.T)
    assert 0.6 < divergences[PREVIOUS, NEXT] <= math.log(2)  # nearly disjoint
    mean = pytest.approx(divergences[np.triu_indices(8, k=1)].mean(), rel=1e-3)
    assert redundancy["means"] == {"same_layer": mean, "different_layers": None}
    assert 0 < redundancy["untrained_means"]["same_layer"] < 1e-3  # all nearly uniform
    heads = report["heads"]
    assert heads[PREVIOUS]["group"] == heads[TWIN]["group"] != heads[NEXT]["group"]
    assert heads[PREVIOUS]["nearest"] == {"layer": 0, "head": TWIN, "divergence": pytest.approx(0, abs=1e-7)}
    first_joins = {frozenset((int(a), int(b))) for a, b, *_ in redundancy["tree"][:2]}
    assert first_joins == {frozenset((PREVIOUS, TWIN)), frozenset((SELF, DEAD))}
    assert heads[PREVIOUS]["map"] == pytest.approx(heads[TWIN]["map"], abs=1e-3)
    assert sorted(redundancy["leaf_order"]) == list(range(8))


def test_relations_are_scored_against_the_best_offset_and_an_untrained_network(report: dict[str, Any]) -> None:
    rows = {row["relation"]: row for row in report["relations"]["relations"]}
    assert set(rows) == {"prior", "same"}  # subtypes are left out, the root is no relation
    prior, same = rows["prior"], rows["same"]
    assert prior["baseline"]["accuracy"] == prior["best"]["accuracy"] == 1.0
    assert prior["best"]["head"] in (PREVIOUS, TWIN)
    assert same["cases"] == same["sentences"] == 60
    # 60 sentences, distances 2 to 8 in turn: the rule is right in 9 of them, the repeating head in all.
    assert same["baseline"]["accuracy"] == pytest.approx(9 / 60, abs=1e-5)
    assert same["best"] == {**same["best"], "head": REPEATED, "accuracy": 1.0, "high": 1.0}
    assert same["best"]["low"] == pytest.approx(60 / (60 + 1.959964**2), rel=1e-4)  # Wilson's for 60 of 60
    assert same["best"]["p"] < 1e-6
    assert same["untrained"]["accuracy"] < 0.7


def test_a_head_follows_a_relation_only_where_it_beats_the_rule(report: dict[str, Any]) -> None:
    followed = {h["head"]: {f["relation"] for f in h["relations_followed"]} for h in report["heads"]}
    assert followed[REPEATED] == {"same"}
    assert followed[PREVIOUS] == set()  # all of `prior`, and so does the rule


def test_files_are_named_with_their_hashes_and_counts(
    report: dict[str, Any], corpus: Path, pairs_file: Path, parses_file: Path
) -> None:
    described = report["corpus"], report["importance"]["pairs"], report["relations"]
    for path, found in zip((corpus, pairs_file, parses_file), described, strict=True):
        assert (found["name"], found["sha256"]) == (path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    assert (described[0]["texts_in_file"], described[1]["pairs"], described[2]["sentences"]) == (60, 24, 60)


def test_documentation_names_every_field_statistic_and_definition(report: dict[str, Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "heads.md").read_text()
    named = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    head = report["heads"][0]
    fields = {*report, *head, *head["rules_passed"][0], *report["corpus"], *report["importance"], *report["redundancy"]}
    assert fields | {*head["statistics"], *head["importance"], *REPORTED} <= named
    for role, statistic, threshold in RULES:
        row = re.search(rf"^\| (?=.*`{role}`).* \| (.*`{statistic}`.*) above {threshold} \|$", page, re.MULTILINE)
        assert row, (role, statistic, threshold)


class Checker(html.parser.HTMLParser):
    """Notes what a page loads, and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("rect", "line", "circle", "path", "image")
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def bert(bert_folder: Path) -> Checkpoint:
    return read_checkpoint(Folder(bert_folder, "bert <&> one"))


@pytest.fixture
def artifact(bert: Checkpoint, tmp_path: Path) -> Path:
    return write_artifact(tmp_path / "artifact", bert)


@pytest.mark.slow
def test_reports_on_an_artifact_which_then_serves_it(
    bert_folder: Path, bert: Checkpoint, corpus: Path, parses_file: Path, pairs_file: Path, tmp_path: Path, capsys: Any
) -> None:
    artifact = tmp_path / "served"
    export_artifact(bert, artifact, explains=False)
    files = ["--corpus", str(corpus), "--conllu", str(parses_file), "--pairs", str(pairs_file)]
    options = ["--importance-texts", "8", "--weights", str(bert_folder)]
    assert main(["heads", str(artifact), *files, *options]) == 0
    printed = capsys.readouterr().err
    assert f"wrote {artifact / HEADS} and {artifact / HEADS_PAGE}: 12 heads over 60 texts\n" in printed
    assert {HEADS, HEADS_PAGE} <= set(Artifact.open(artifact).manifest.files)
    report = json.loads((artifact / HEADS).read_bytes())
    assert report["model"] == "bert <&> one"

    settings, readiness = read_settings(["--model", str(artifact), "--workers", "1"]), Readiness()
    app, services = create_app(settings, readiness)
    engine = Runner.load(artifact, settings)
    services.models.start(services.model, engine)
    readiness.start()
    answer = TestClient(app).get("/heads")
    engine.close(5)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == report

    page = (artifact / HEADS_PAGE).read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert all(source.startswith("data:") for source in checker.loaded)
    assert not re.search(r"https?://", page)
    assert "Heads of bert &lt;&amp;&gt; one" in page
    assert page.count("<figure>") > 15
    assert page.count('text-anchor="middle">0</text>') == page.count('text-anchor="end">0</text>') > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{artifact}", "--corpus", "{corpus}"], "was made from bert <&> one, a folder: its weights are needed"),
        (["{folder}", "--corpus", "{corpus}"], "is no artifact to write the report into"),
        (["{folder}", "--corpus", "{corpus}", "--weights", "{folder}"], "names the weights of an artifact"),
        (["{artifact}", "--corpus", "{corpus}", "--revision", "v1"], "is of a model on the hub, and {artifact} is an"),
        (["{folder}", "--corpus", "./none.txt", "--output", "{out}"], "none.txt cannot be read: No such file"),
        (["{folder}", "--corpus", "{corpus}", "--texts", "3", "--output", "{out}"], "3 of 3 texts drawn hold a token"),
        (["{folder}", "--corpus", "{corpus}", "--pairs", "{corpus}", "--output", "{out}"], "expected text,text,rating"),
        (
            ["{folder}", "--corpus", "{corpus}", "--pairs", "{pairs}", "--importance-texts", "3", "--output", "{out}"],
            "to measure importance on (--importance-texts); at least 8",
        ),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    bert_folder: Path,
    artifact: Path,
    corpus: Path,
    pairs_file: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: Any,
) -> None:
    before = {path.name: path.read_bytes() for path in artifact.iterdir()}
    places = {"artifact": artifact, "folder": bert_folder, "corpus": corpus, "pairs": pairs_file}
    places["out"] = tmp_path / "out"
    assert main(["heads", *(argument.format(**places) for argument in arguments)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("head report failed: ")
    assert message.format(**places) in printed
    assert printed.count("\n") == 1
    assert {path.name: path.read_bytes() for path in artifact.iterdir()} == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("choice", [{"pooling": "cls"}, {"task": "embedding"}], ids=str)
def test_an_artifacts_weights_are_read_once_with_the_choices_of_its_export(
    bert_folder: Path, tmp_path: Path, choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = json.loads((bert_folder / "config.json").read_bytes())
    kind = "BertForSequenceClassification" if "task" in choice else "BertModel"
    (bert_folder / "config.json").write_text(json.dumps({**described, "architectures": [kind]}))
    exported = read(bert_folder, **choice)
    artifact = write_artifact(tmp_path / "artifact", exported)
    reads = Mock(wraps=read_weights)
    monkeypatch.setattr("export.checkpoint.read_weights", reads)
    found = find_subject(str(artifact), weights=str(bert_folder))
    assert found.checkpoint.encoder.config == exported.encoder.config
    reads.assert_called_once_with(bert_folder, allows_pickles=False)


def test_reports_on_a_folder_of_pickles_where_that_is_allowed(
    bert_folder: Path, corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    torch.save(load_file(bert_folder / "model.safetensors"), bert_folder / "pytorch_model.bin")
    (bert_folder / "model.safetensors").unlink()
    output = tmp_path / "report"
    command = ["heads", str(bert_folder), "--corpus", str(corpus), "--output", str(output), "--texts", "10"]
    assert main(command) == 1
    assert "--allow-pickled-weights reads it" in capsys.readouterr().err
    assert main([*command, "--allow-pickled-weights", "--importance-texts", "2"]) == 0
    assert {path.name for path in output.iterdir()} == {HEADS, HEADS_PAGE}
    report = json.loads((output / HEADS).read_bytes())
    assert (report["relations"], report["importance"]["pairs"], len(report["heads"])) == (None, None, 12)


def test_other_weights_are_refused(bert_folder: Path, artifact: Path, corpus: Path, capsys: Any) -> None:
    weights = bert_folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert main(["heads", str(artifact), "--corpus", str(corpus), "--weights", str(bert_folder)]) == 1
    assert "the artifact was made from" in capsys.readouterr().err
