"""Long texts over HTTP: cut at their start, or read in windows whose mean answers; compared with `transformers`."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.service.conftest import Serve
from tests.service.fake_engine import MAX_LENGTH
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import LONGEST, TaskArtifact

TOLERANCE = 1e-5
LONG = "the cat sat on the mat. a dog " * 25
TEXTS = [LONG, "a dog", LONG[: len(LONG) // 2]]


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
    answer = post(client(embedder.artifact), "/encode", inputs=TEXTS, long_texts="mean", normalize=False)
    for text, found, item in zip(TEXTS, answer["embeddings"], answer["items"], strict=True):
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
