"""`POST /encode` on artifacts of every task, long texts, spans and tables: what the originals give for the folder."""

import json
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from export.checkpoint import read_checkpoint
from export.errors import UnsupportedModel
from export.exporter import export_artifact
from export.original import compare_with_original
from export.sources import Folder
from export.verify import Case
from tests.service.conftest import Serve
from tests.service.fake_engine import MAX_LENGTH
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import LONGEST, TaskArtifact
from tests.tokenizers import VOCABULARY, wordpiece

TOLERANCE = 1e-5
PAIRS = [["the cat", "the cat sat on the mat."], ["a dog", "mat"], ["the cat " * 40, "a dog " * 20]]


@cache
def original(folder: Path, kind: str = "AutoModel") -> tuple[Any, Any]:
    """Tokenizer and network of `transformers`."""
    import transformers  # noqa: PLC0415 - seconds to import

    network = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()
    return transformers.AutoTokenizer.from_pretrained(folder), network


def test_a_reranker_scores_pairs_as_cross_encoder_does(client: Client, reranker: TaskArtifact) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds to import

    expected = CrossEncoder(str(reranker.folder)).predict([tuple(pair) for pair in PAIRS])
    answer = post(client(reranker.artifact), "/encode", pairs=PAIRS)
    np.testing.assert_allclose(np.array(answer["scores"])[:, 0], expected, atol=TOLERANCE, rtol=0)
    assert answer["labels"] == ["LABEL_0"]
    assert "embeddings" not in answer
    assert [item["truncated"] for item in answer["items"]] == [False, False, True]


def test_attention_across_a_pair_is_transformers_own(client: Client, reranker: TaskArtifact) -> None:
    tokenizer, network = original(reranker.folder, "AutoModelForSequenceClassification")
    with torch.no_grad():
        expected = network(**tokenizer(*PAIRS[0], return_tensors="pt"), output_attentions=True).attentions
    (entry,) = post(client(reranker.artifact), "/encode", pairs=PAIRS[:1], attention={"layers": "all"})["attention"]
    for layer, weights in enumerate(expected):
        np.testing.assert_allclose(entry["weights"][layer], weights[0].numpy(), atol=TOLERANCE, rtol=0)
    second = entry["tokens"].index("[SEP]") + 1
    assert entry["segments"] == [None, *[0] * (second - 2), None, *[1] * (len(entry["tokens"]) - second - 1), None]
    assert entry["offsets"][1] == entry["offsets"][second] == [0, 3]


def test_words_of_a_pair_are_those_of_its_texts(client: Client, reranker: TaskArtifact) -> None:
    asked = {"layers": "all", "level": "word", "exclude_special": True}
    (entry,) = post(client(reranker.artifact), "/encode", pairs=PAIRS[:1], attention=asked)["attention"]
    assert entry["words"] == ["the", "cat", "the", "cat", "sat", "on", "the", "mat", "."]
    assert entry["segments"] == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert entry["offsets"][2] == [0, 3]


LONG = "the cat sat on the mat. a dog " * 25
LONG_TEXTS = [LONG, "a dog", LONG[: len(LONG) // 2]]


def pooled_windows(folder: Path, text: str) -> tuple[Any, list[int]]:
    """Mean-pooled vectors [windows, D] and tokens of each window, by `transformers`."""
    tokenizer, network = original(folder)
    ids = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    vectors, lengths = [], []
    for start in range(0, len(ids), LONGEST - 2):
        window = [tokenizer.cls_token_id, *ids[start : start + LONGEST - 2], tokenizer.sep_token_id]
        with torch.no_grad():
            vectors.append(network(torch.tensor([window])).last_hidden_state[0].mean(0).numpy())
        lengths.append(len(window))
    return np.stack(vectors), lengths


def test_a_long_text_is_the_mean_of_its_windows(client: Client, embedder: TaskArtifact) -> None:
    answer = post(client(embedder.artifact), "/encode", inputs=LONG_TEXTS, long_texts="mean", normalize=False)
    for text, found, item in zip(LONG_TEXTS, answer["embeddings"], answer["items"], strict=True):
        vectors, lengths = pooled_windows(embedder.folder, text)
        expected = (vectors * np.array(lengths)[:, np.newaxis]).sum(axis=0) / sum(lengths)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)
        assert item == {"tokens": sum(lengths), "truncated": False, "windows": len(lengths)}
    assert [item["windows"] > 1 for item in answer["items"]] == [True, False, True]
    assert answer["usage"]["tokens"] == sum(item["tokens"] for item in answer["items"])


def test_the_mean_is_cut_and_normalised_last(client: Client, embedder: TaskArtifact) -> None:
    asked = client(embedder.artifact)
    (whole,) = post(asked, "/encode", inputs=LONG, long_texts="mean", normalize=False)["embeddings"]
    (found,) = post(asked, "/encode", inputs=LONG, long_texts="mean", dimensions=8)["embeddings"]
    expected = np.array(whole[:8]) / np.linalg.norm(whole[:8])
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


def test_a_long_text_is_cut_at_its_start(client: Client, embedder: TaskArtifact) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds to import

    model = SentenceTransformer(str(embedder.folder), processor_kwargs={"truncation_side": "left"})
    answer = post(client(embedder.artifact), "/encode", inputs=[LONG], truncate="start")
    np.testing.assert_allclose(answer["embeddings"], model.encode([LONG]), atol=TOLERANCE, rtol=0)
    (item,) = answer["items"]
    assert (item["tokens"], item["truncated"]) == (LONGEST, True)
    ends = post(client(embedder.artifact), "/encode", inputs=[LONG])["embeddings"]
    assert np.abs(np.array(ends) - answer["embeddings"]).max() > TOLERANCE


def test_the_tokens_of_all_windows_count(serve: Serve) -> None:
    text = "cat " * 2 * (MAX_LENGTH - 2)
    limit = 2 * MAX_LENGTH
    taken = serve("--max-request-tokens", str(limit)).encode({"inputs": text, "long_texts": "mean"})
    assert taken.json()["items"] == [{"tokens": limit, "truncated": False, "windows": 2}]
    served = serve("--max-request-tokens", str(limit))
    refused = served.encode({"inputs": text + "cat", "long_texts": "mean"})
    assert refused.status_code == 413
    assert refused.json()["error"]["message"].startswith(f"inputs: {limit + 3} tokens, at most {limit} a request")
    assert not served.backend.batches


SPAN_TEXTS = ["The cat sat on the mat. It rained all day; nobody minded.", "Über allen Gipfeln ist Ruh."]
SPANS = [[[0, 23], [24, 57], [4, 7], [0, 5], [5, 10]], [[0, 10], [0, 27]]]  # some end within a token


def hidden_states(folder: Path, text: str) -> tuple[Any, Any]:
    """[n, D] and offsets [n, 2] of a text, without the special tokens, by `transformers`."""
    tokenizer, network = original(folder)
    batch = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    offsets = batch.pop("offset_mapping")[0].numpy()
    with torch.no_grad():
        return network(**batch).last_hidden_state[0].numpy()[1:-1], offsets[1:-1]


@pytest.mark.parametrize("prompt", ["", "query: "])
def test_a_span_is_the_mean_of_its_tokens(client: Client, embedder: TaskArtifact, prompt: str) -> None:
    asked = client(embedder.artifact)
    found = post(asked, "/encode", inputs=SPAN_TEXTS, spans=SPANS, prompt=prompt, normalize=False)
    unit = post(asked, "/encode", inputs=SPAN_TEXTS, spans=SPANS, prompt=prompt)["embeddings"]
    for text, spans, vectors, units in zip(SPAN_TEXTS, SPANS, found["embeddings"], unit, strict=True):
        hidden, offsets = hidden_states(embedder.folder, prompt + text)
        ends = offsets[:, 1] - len(prompt)
        expected = np.stack([hidden[(start < ends) & (ends <= end)].mean(axis=0) for start, end in spans])
        np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(units, expected / lengths, atol=TOLERANCE, rtol=0)


def test_spans_of_what_was_kept_of_a_long_text(client: Client, embedder: TaskArtifact) -> None:
    asked, text, fits = client(embedder.artifact), "cat " * 100, "cat " * 31  # of two tokens each
    kept = post(asked, "/encode", inputs=text, spans=[[[0, len(fits)]]], normalize=False)
    assert kept["items"][0]["truncated"]
    shorter = post(asked, "/encode", inputs=fits, spans=[[[0, len(fits)]]], normalize=False)
    np.testing.assert_allclose(kept["embeddings"], shorter["embeddings"], atol=TOLERANCE, rtol=0)
    end = post(asked, "/encode", inputs=text, spans=[[[400 - len(fits), 400]]], truncate="start", normalize=False)
    np.testing.assert_allclose(end["embeddings"], shorter["embeddings"], atol=TOLERANCE, rtol=0)


SIZE = 12
TABLE_TEXTS = ["the cat", "the cats sat on the mats, the mats.", "lower [SEP] newest", "zzz"]


def write_table(folder: Path, form: str) -> Path:
    """A folder as the form has it: potion's has a row for several tokens, weights and other settings beside it."""
    generator = torch.Generator().manual_seed(3)
    modules = [{"type": "sentence_transformers.models.StaticEmbedding", "path": "0_StaticEmbedding"}]
    tensors = {"embedding.weight": torch.randn(VOCABULARY, SIZE, generator=generator)}
    if form == "model2vec":
        modules = [{"type": modules[0]["type"], "path": "."}, {"type": "sentence_transformers.models.Normalize"}]
        modules[1]["path"] = "1_Normalize"
        mapping = torch.randint(0, 40, (VOCABULARY,), generator=generator)
        rows = torch.randn(40, SIZE, generator=generator)
        tensors = {"embeddings": rows, "mapping": mapping, "weights": torch.rand(VOCABULARY, generator=generator)}
    network = folder / modules[0]["path"]
    network.mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps([{"idx": i, "name": str(i), **m} for i, m in enumerate(modules)]))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "architectures": ["StaticModel"]}))
    (network / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    save_file(tensors, network / "model.safetensors")
    wordpiece().save(str(network / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=["sentence-transformers", "model2vec"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TaskArtifact:
    directory = tmp_path_factory.mktemp("table")
    folder = write_table(directory / "folder", request.param)
    with patch("export.verify.grid", lambda _: [Case((7, 3), 7, (0,))]):
        export_artifact(read_checkpoint(Folder(folder, "table")), directory / "artifact", explains=False)
    return TaskArtifact(folder, directory / "artifact")


def test_a_table_answers_as_its_original_and_has_no_attention(client: Client, table: TaskArtifact) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds to import

    expected = SentenceTransformer(str(table.folder), device="cpu").encode(
        TABLE_TEXTS, show_progress_bar=False, normalize_embeddings=True
    )
    asked = client(table.artifact)
    np.testing.assert_allclose(post(asked, "/encode", inputs=TABLE_TEXTS)["embeddings"], expected, atol=1e-6)
    vectors = [row["embedding"] for row in post(asked, "/v1/embeddings", input=TABLE_TEXTS)["data"]]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    compared = compare_with_original(read_checkpoint(Folder(table.folder, "table")), table.folder)
    assert compared["compared"]
    assert compared["pooled"] < 1e-6
    refused = asked.post("/encode", json={"inputs": "the cat", "attention": {}})
    assert refused.status_code == 422
    assert "the model has no heads (a table of vectors, or all were removed), so it has no attention" in refused.text


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "folder", "model2vec")
    for tensors in ({"other": torch.ones(3, 4)}, {"embeddings": torch.ones(3, 4, dtype=torch.int8)}):
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(UnsupportedModel, match="needs a tensor embedding.weight, or embeddings"):
            read_checkpoint(Folder(folder, "table"))
