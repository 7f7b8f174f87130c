"""`POST /encode` on artifacts of every task, with long texts and spans: what the originals give for the same folder."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.context import RequestContext
from tests.service.conftest import Serve
from tests.service.fake_engine import MAX_LENGTH
from tests.service.routes.conftest import Client, post, serving
from tests.task_artifacts import LONGEST, TaskArtifact

TOLERANCE = 1e-5
TEXTS = ["the cat sat on the mat.", "a dog", "mat"]
PAIRS = [["the cat", "the cat sat on the mat."], ["a dog", "mat"], ["the cat " * 40, "a dog " * 20]]


def test_a_reranker_scores_pairs_as_cross_encoder_does(client: Client, reranker: TaskArtifact) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds to import

    expected = CrossEncoder(str(reranker.folder)).predict([tuple(pair) for pair in PAIRS])
    answer = post(client(reranker.artifact), "/encode", pairs=PAIRS)
    np.testing.assert_allclose(np.array(answer["scores"])[:, 0], expected, atol=TOLERANCE, rtol=0)
    assert answer["labels"] == ["LABEL_0"]
    assert "embeddings" not in answer
    assert [item["truncated"] for item in answer["items"]] == [False, False, True]


def test_attention_across_a_pair_is_transformers_own(client: Client, reranker: TaskArtifact) -> None:
    import torch  # noqa: PLC0415 - seconds to import
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415 - seconds to import

    network = AutoModelForSequenceClassification.from_pretrained(reranker.folder, attn_implementation="eager")
    batch = AutoTokenizer.from_pretrained(reranker.folder)(*PAIRS[0], return_tensors="pt")
    with torch.no_grad():
        expected = network(**batch, output_attentions=True).attentions
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


@pytest.mark.parametrize(("path", "field"), [("/predict", "inputs"), ("/classify", "input")])
def test_labels_and_their_scores_count_in_the_size_of_an_answer(
    classifier: TaskArtifact, monkeypatch: pytest.MonkeyPatch, path: str, field: str
) -> None:
    of_text = sum(len(label) + 48 for label in ("contradiction", "entailment", "neutral"))
    held: list[int] = []
    monkeypatch.setattr(RequestContext, "hold_answer", lambda _context, _budget, size: held.append(size))
    with serving(classifier.artifact, f"--max-embedding-bytes={2 * of_text}") as asked:
        texts = [["cats"]] * 3 if path == "/predict" else ["cats"] * 3
        assert asked.post(path, json={field: texts[:2]}).status_code == 200
        response = asked.post(path, json={field: texts})
    assert response.status_code == 413
    assert f"{field}: the answer would hold {3 * of_text} bytes of labels and scores" in response.text
    assert held == [2 * (of_text + 21 * 3)]


LONG = "the cat sat on the mat. a dog " * 25
LONG_TEXTS = [LONG, "a dog", LONG[: len(LONG) // 2]]


def pooled_windows(folder: Path, text: str) -> tuple[Any, list[int]]:
    """Mean-pooled vectors [windows, D] and tokens of each window, by `transformers`."""
    import torch  # noqa: PLC0415 - seconds to import
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - seconds to import

    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
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
    assert [item["windows"] for item in answer["items"]] == [5, 1, 3]
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
SPANS = [[[0, 23], [24, 57], [4, 7]], [[0, 10], [0, 27]]]


@pytest.fixture(scope="module")
def hidden_states(embedder: TaskArtifact) -> Callable[[str], tuple[Any, Any]]:
    """Of a text [n, D] and offsets [n, 2], without the special tokens, by `transformers`."""
    import torch  # noqa: PLC0415 - seconds to import
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - seconds to import

    tokenizer = AutoTokenizer.from_pretrained(embedder.folder)
    network = AutoModel.from_pretrained(embedder.folder).eval()

    def read(text: str) -> tuple[Any, Any]:
        batch = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = batch.pop("offset_mapping")[0].numpy()
        with torch.no_grad():
            return network(**batch).last_hidden_state[0].numpy()[1:-1], offsets[1:-1]

    return read


@pytest.mark.parametrize("prompt", ["", "query: "])
def test_a_span_is_the_mean_of_its_tokens(
    client: Client, embedder: TaskArtifact, hidden_states: Callable[[str], tuple[Any, Any]], prompt: str
) -> None:
    asked = client(embedder.artifact)
    found = post(asked, "/encode", inputs=SPAN_TEXTS, spans=SPANS, prompt=prompt, normalize=False)
    unit = post(asked, "/encode", inputs=SPAN_TEXTS, spans=SPANS, prompt=prompt)["embeddings"]
    for text, spans, vectors, units in zip(SPAN_TEXTS, SPANS, found["embeddings"], unit, strict=True):
        hidden, offsets = hidden_states(prompt + text)
        ends = offsets[:, 1] - len(prompt)
        expected = np.stack([hidden[(start < ends) & (ends <= end)].mean(axis=0) for start, end in spans])
        np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(units, expected / lengths, atol=TOLERANCE, rtol=0)


def test_spans_side_by_side_share_no_token_and_leave_none_out(client: Client, embedder: TaskArtifact) -> None:
    asked, text = client(embedder.artifact), "the cat sat on the mat."
    spans = [[start, end] for start, end in pairwise([0, 5, 11, len(text)])]
    asked_for = {"inputs": text, "normalize": False, "attention": {"layers": "last"}}
    answer = post(asked, "/encode", **asked_for, spans=[[*spans, [0, len(text)]]])
    *parts, whole = np.array(answer["embeddings"][0])
    ends = [end for start, end in answer["attention"][0]["offsets"] if end > start]
    counts = [sum(start < end <= stop for end in ends) for start, stop in spans]
    assert sum(counts) == len(ends)
    np.testing.assert_allclose(np.average(parts, axis=0, weights=counts), whole, atol=TOLERANCE, rtol=0)


def test_spans_of_what_was_kept_of_a_long_text(client: Client, embedder: TaskArtifact) -> None:
    asked, text, fits = client(embedder.artifact), "cat " * 100, "cat " * 31  # of two tokens each
    kept = post(asked, "/encode", inputs=text, spans=[[[0, len(fits)]]], normalize=False)
    assert kept["items"][0]["truncated"]
    shorter = post(asked, "/encode", inputs=fits, spans=[[[0, len(fits)]]], normalize=False)
    np.testing.assert_allclose(kept["embeddings"], shorter["embeddings"], atol=TOLERANCE, rtol=0)
    end = post(asked, "/encode", inputs=text, spans=[[[400 - len(fits), 400]]], truncate="start", normalize=False)
    np.testing.assert_allclose(end["embeddings"], shorter["embeddings"], atol=TOLERANCE, rtol=0)
