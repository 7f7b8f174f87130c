"""Dense, sparse and multi-vector outputs of one artifact, against BGE-M3's published formulas on the original network;
and queries of a sparse model that reads them by a table, against sentence-transformers' `Router`.

The formulas are those of FlagEmbedding's `BGEM3Model`: weights of words are a layer on the last hidden state with a
relu, the largest of equal tokens, none for special ones; vectors of tokens are a layer on all but the first, of length
1; a query's vectors of tokens count by the mean of what each finds.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from export.checkpoint import read_checkpoint
from export.errors import UnsupportedModel
from export.exporter import export_artifact
from export.sources import Folder
from export.tasks.vectors import TOKEN_OUTPUT_THRESHOLDS, measure_token_outputs
from model.artifact import FURTHER_OUTPUTS, Artifact
from service.errors import Invalid
from service.inference.token_outputs import QueryTable
from tests.service.conftest import EngineOf
from tests.service.routes.conftest import Client, post, post_tensors
from tests.task_artifacts import LONGEST, SIZES, TaskArtifact, export_folder, quick_export

HIDDEN, SIZE = int(SIZES["hidden_size"]), 12
TEXTS = ["the cat", "the cats sat on the mats, the mats.", "lower newest wider: abc123 café!", "the cat sat " * LONGEST]
SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[UNK]")
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Original:
    """What the published formulas make of one text."""

    dense: NDArray[Any]
    words: Mapping[int, float]
    vectors: NDArray[Any]


@pytest.fixture(scope="module")
def served(embedder: TaskArtifact, tmp_path_factory: pytest.TempPathFactory) -> TaskArtifact:
    """An embedder with BGE-M3's two files next to its weights."""
    directory = tmp_path_factory.mktemp("outputs")
    folder = directory / "folder"
    shutil.copytree(embedder.folder, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "[SEP]"}))
    torch.manual_seed(3)
    for name, size in (("sparse", 1), ("colbert", SIZE)):
        state = torch.nn.Linear(HIDDEN, size).state_dict()
        state["bias"] += 1.5 * (name == "sparse")  # most words have a weight above 0, some have none
        torch.save(state, folder / f"{name}_linear.pt")
    checkpoint = read_checkpoint(Folder(folder, "m3", allows_pickles=True), name="m3")
    with quick_export():
        export_artifact(checkpoint, directory / "artifact", explains=False)
    return TaskArtifact(folder, directory / "artifact")


@pytest.fixture(scope="module")
def originals(served: TaskArtifact) -> list[Original]:
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - seconds to import

    tokenizer: Any = AutoTokenizer.from_pretrained(served.folder)
    network: Any = AutoModel.from_pretrained(served.folder).eval()
    layers = {}
    for name, size in (("sparse", 1), ("colbert", SIZE)):
        layers[name] = torch.nn.Linear(HIDDEN, size)
        layers[name].load_state_dict(torch.load(served.folder / f"{name}_linear.pt", weights_only=True))
    special = set(tokenizer.convert_tokens_to_ids(list(SPECIAL)))
    found = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.no_grad():
            hidden = network(**ids).last_hidden_state[0]
            weights = torch.relu(layers["sparse"](hidden))[:, 0].tolist()
            words: dict[int, float] = {}
            for token, weight in zip(ids["input_ids"][0].tolist(), weights, strict=True):
                if token not in special and weight > 0:
                    words[token] = max(weight, words.get(token, 0.0))
            vectors = normalize(layers["colbert"](hidden[1:]), dim=-1).numpy()
            found.append(Original(normalize(hidden.mean(0), dim=0).numpy(), words, vectors))
    return found


def check_words(found: Mapping[str, Any], expected: Mapping[int, float]) -> None:
    assert list(found["indices"]) == sorted(expected)
    np.testing.assert_allclose(found["values"], [expected[index] for index in sorted(expected)], atol=TOLERANCE)


def test_all_outputs_are_the_originals(client: Client, served: TaskArtifact, originals: list[Original]) -> None:
    asked = client(served.artifact)
    wanted = ["dense", "sparse", "multi_vector"]
    answer = post(asked, "/encode", inputs=TEXTS, outputs=wanted, return_tokens=True)
    for place, original in enumerate(originals):
        np.testing.assert_allclose(answer["embeddings"][place], original.dense, atol=TOLERANCE)
        check_words(answer["sparse"][place], original.words)
        np.testing.assert_allclose(answer["multi_vector"][place], original.vectors, atol=TOLERANCE)
        assert len(answer["tokens"][place]["input_ids"]) == len(original.vectors)
    assert any(original.words for original in originals)
    for name, field in (("dense", "embeddings"), ("sparse", "sparse"), ("multi_vector", "multi_vector")):
        alone = post(asked, "/encode", inputs=TEXTS, outputs=[name])
        assert alone[field] == answer[field]
        assert {"embeddings", "sparse", "multi_vector"} & alone.keys() == {field}
    assert post(asked, "/encode", inputs=TEXTS)["embeddings"] == answer["embeddings"]


def test_other_forms_hold_the_same(client: Client, served: TaskArtifact) -> None:
    asked = client(served.artifact)
    body = {"inputs": TEXTS[:2], "outputs": ["sparse", "multi_vector"]}
    plain = post(asked, "/encode", **body)
    encoded = post(asked, "/encode", **body, encoding_format="base64")
    whole, _ = post_tensors(asked, **body)
    for place, vectors in enumerate(plain["multi_vector"]):
        np.testing.assert_array_equal(whole[f"multi_vector.{place}"], np.array(vectors, np.float32))
        np.testing.assert_array_equal(whole[f"sparse.{place}.indices"], plain["sparse"][place]["indices"])
        assert isinstance(encoded["multi_vector"][place], str)


def test_routes_for_one_kind_of_output_take_it(client: Client, served: TaskArtifact, originals: list[Original]) -> None:
    asked = client(served.artifact)
    for words, original in zip(post(asked, "/embed_sparse", inputs=TEXTS), originals, strict=True):
        found = {"indices": [word["index"] for word in words], "values": [word["value"] for word in words]}
        check_words(found, original.words)
    data = post(asked, "/v1/multi-vector", input=TEXTS)["data"]
    for entry, original in zip(data, originals, strict=True):
        np.testing.assert_allclose(entry["embeddings"], original.vectors, atol=TOLERANCE)
    assert len(post(asked, "/embed", inputs=TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("weights", [{"dense": 1}, {"sparse": 0.5}, {"dense": 0.4, "sparse": 0.2, "multi_vector": 0.4}])
def test_scores_are_the_weighted_mean(
    client: Client, served: TaskArtifact, originals: list[Original], weights: dict[str, float]
) -> None:
    query, *documents = originals
    expected = []
    for document in documents:
        parts = {
            "dense": float(query.dense @ document.dense),
            "sparse": sum(weight * document.words.get(word, 0) for word, weight in query.words.items()),
            "multi_vector": float((query.vectors @ document.vectors.T).max(1).mean()),
        }
        expected.append(sum(weight * parts[name] for name, weight in weights.items()) / sum(weights.values()))
    asked = client(served.artifact)
    answer = post(asked, "/score", queries=TEXTS[0], documents=TEXTS[1:], weights=weights)
    np.testing.assert_allclose([entry["score"] for entry in answer["data"]], expected, atol=TOLERANCE)
    ranked = post(asked, "/rerank", query=TEXTS[0], documents=TEXTS[1:], weights=weights)["results"]
    assert [entry["index"] for entry in ranked] == np.argsort(-np.array(expected)).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": []}, "outputs"),
        ({"outputs": ["words"]}, "outputs"),
        ({"outputs": ["sparse"], "output": "tokens"}, "output: does not go with outputs that are not dense"),
        ({"outputs": ["sparse"], "spans": [[[0, 1]]]}, "spans: does not go with outputs"),
        ({"outputs": ["sparse"], "long_texts": "mean"}, "long_texts: does not go with outputs"),
        ({"outputs": ["multi_vector"], "encoding_format": "int8"}, "encoding_format: int8 is for dense vectors alone"),
        ({"outputs": ["sparse"], "dimensions": 4}, "dimensions: does not go with outputs"),
        ({"outputs": ["sparse"], "return_tokens": True}, "return_tokens: the answer has no vectors of tokens"),
    ],
)
def test_what_does_not_go_with_them_is_said(client: Client, served: TaskArtifact, change: Any, message: str) -> None:
    response = client(served.artifact).post("/encode", json={"inputs": ["the cat"], **change})
    assert (response.status_code, message in response.text) == (422, True), response.text


def test_the_engine_has_dense_vectors_alone(engine_of: EngineOf, served: TaskArtifact) -> None:
    with pytest.raises(Invalid, match="outputs: only POST /encode"):
        engine_of(served.artifact).encode(["a"], outputs=["sparse"])  # type: ignore[call-overload]


def test_int8_is_judged_by_every_output(
    client: Client, served: TaskArtifact, originals: list[Original], tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(Folder(served.folder, "m3", allows_pickles=True), name="m3")
    with quick_export():
        manifest = export_artifact(checkpoint, tmp_path / "int8", precision="int8", explains=False)
    quality = manifest.parity["quality"]
    assert quality["multi_vector_cosine_mean"] >= 0.99
    assert quality["sparse_cosine_mean"] >= 0.99
    answer = post(client(tmp_path / "int8"), "/encode", inputs=TEXTS, outputs=["sparse", "multi_vector"])
    for place, original in enumerate(originals):
        found = np.array(answer["multi_vector"][place])
        assert (found * original.vectors).sum(axis=1).mean() > 0.98
    states = np.random.default_rng(0).standard_normal((20, HIDDEN)).astype(np.float32)
    for found, passes in ((states, True), (states[::-1], False)):
        figures = measure_token_outputs(checkpoint.further_outputs, [found], [states], [np.arange(5, 25)])
        for name in ("sparse_cosine_mean", "multi_vector_cosine_mean", "multi_vector_cosine_worst"):
            threshold = next(one for one in TOKEN_OUTPUT_THRESHOLDS["int8"] if one.figure == name)
            assert threshold.holds(figures) == passes, figures


@pytest.fixture(scope="module")
def routed(sparse_encoder: TaskArtifact, tmp_path_factory: pytest.TempPathFactory) -> TaskArtifact:
    """A sparse model that reads queries by a table, as sentence-transformers saves it."""
    from sentence_transformers import SparseEncoder  # noqa: PLC0415 - seconds to import
    from sentence_transformers.base.modules import Router  # noqa: PLC0415
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding  # noqa: PLC0415

    directory = tmp_path_factory.mktemp("routed")
    network: Any = SparseEncoder(str(sparse_encoder.folder), device="cpu")
    weights = torch.rand(SIZES["vocab_size"], generator=torch.Generator().manual_seed(5))
    weights[::3] = 0
    table = SparseStaticEmbedding(network.tokenizer, weight=weights, frozen=True)
    router = Router.for_query_document(query_modules=[table], document_modules=list(network.children()))
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(directory / "folder"))
    return export_folder(directory / "folder", directory, explains=False)


def test_queries_are_read_by_a_table(client: Client, engine_of: EngineOf, routed: TaskArtifact) -> None:
    from sentence_transformers import SparseEncoder  # noqa: PLC0415 - seconds to import

    original: Any = SparseEncoder(str(routed.folder), device="cpu")
    encode_here: Any = engine_of(routed.artifact).encode
    asked = client(routed.artifact)
    texts = [*TEXTS[:3], "the [SEP] cat [CLS]", "zzz"]
    for role, encode in (("query", original.encode_query), ("document", original.encode_document)):
        rows = encode(texts, convert_to_sparse_tensor=False).numpy()
        expected = [{int(word): float(row[word]) for word in row.nonzero()[0]} for row in rows]
        answer = post(asked, "/encode", inputs=texts, role=role)["sparse"]
        for found, words in zip(answer, expected, strict=True):
            check_words(found, words)
        own = encode_here(texts, role=role).sparse
        values = post(asked, "/embed_sparse", inputs=texts, role=role)
        for found, words, of_engine in zip(answer, values, own, strict=True):
            assert found["indices"] == [word["index"] for word in words] == list(of_engine["indices"])
    assert post(asked, "/encode", inputs=texts)["sparse"] == answer


def test_ids_beyond_the_table_have_no_weight(routed: TaskArtifact, tmp_path: Path) -> None:
    manifest = Artifact.open(routed.artifact).manifest
    np.savez(tmp_path / FURTHER_OUTPUTS, query_weights=np.ones(5, np.float32))
    table = QueryTable.load(Artifact(tmp_path, manifest), (None, None))
    assert table is not None
    assert table.words(np.array([3, manifest.config.vocab_size - 1])).tolist() == [[3, 1]]


@pytest.mark.parametrize("change", [{"attention": {}}, {"head_mask": [[0, 0, 0]]}, {"output": "tokens"}])
def test_a_table_has_no_network_to_ask(client: Client, routed: TaskArtifact, change: dict[str, Any]) -> None:
    asked = client(routed.artifact)
    refused = asked.post("/encode", json={"inputs": "the cat", "role": "query", **change})
    message = f"{next(iter(change))}: does not go with queries that a table of weights reads"
    assert (refused.status_code, message in refused.text) == (422, True), refused.text
    assert asked.post("/encode", json={"inputs": "the cat", "role": "document", **change}).status_code == 200


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("router_config.json", {"structure": {"query": [], "document": []}}, "supported are a network for documents"),
        ("router_config.json", {"parameters": {"route_mappings": {"('query', None)": "query"}}}, "has the routes"),
        ("query_0_SparseStaticEmbedding/config.json", {"path": "idf.json"}, "path 'idf.json'"),
        ("query_0_SparseStaticEmbedding/tokenizer_config.json", {"do_lower_case": False}, "another tokenizer"),
    ],
)
def test_other_routes_are_refused(routed: TaskArtifact, tmp_path: Path, file: str, change: Any, message: str) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(routed.folder, folder)
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **change}))
    with pytest.raises(UnsupportedModel, match=re.escape(message)):
        read_checkpoint(Folder(folder, "routed"))
