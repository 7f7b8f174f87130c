"""What a model's numbers become: scores against plain loops, pooled tokens and entities as the originals have them."""

import asyncio
import tracemalloc
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from transformers import BertConfig, BertForTokenClassification
from transformers import PreTrainedTokenizerFast as TheirTokenizer
from transformers import TokenClassificationPipeline as TheirPipeline

from model.artifact import Artifact
from model.config_parts import MultiVectorSettings
from service.answers.entities import LabelledText
from service.answers.scores import best, counting, rank, similarities
from service.answers.vectors import pool_tokens, ward_clusters
from service.requests.schemas import Aggregation, EntityRequest
from service.tokenization.rows import TokenizedInput, stitch
from service.tokenization.tokenizer import Tokenizer
from tests.task_artifacts import TaskArtifact
from tests.tokenizers import TOKENIZERS

FULL_STOP = 9


@pytest.mark.parametrize("skipped_in", [(), ("query",), ("document",), ("query", "document")])
def test_max_sim_leaves_out_what_the_model_skips(
    multi_vector_encoder: TaskArtifact,
    generator: np.random.Generator,
    skipped_in: tuple[Literal["query", "document"], ...],
) -> None:
    manifest = Artifact.open(multi_vector_encoder.artifact).manifest
    settings = MultiVectorSettings(size=4, skipped_ids=(FULL_STOP,), skipped_in=skipped_in)
    manifest = replace(manifest, config=replace(manifest.config, task_settings=settings))
    ids = [np.array([1, 5, FULL_STOP]), np.array([FULL_STOP, 6])], [np.array([7, FULL_STOP]), np.array([8, 8, 8])]
    queries, documents = ([generator.standard_normal((len(row), 4), np.float32) for row in kind] for kind in ids)
    read = [[TokenizedInput(row, False, len(row), None) for row in kind] for kind in ids]
    asked, answering = counting(queries, read[0], "query", manifest), counting(documents, read[1], "document", manifest)
    found = similarities(asked, answering, manifest)
    for place, score in enumerate(found):
        query = queries[place][(ids[0][place] != FULL_STOP) | ("query" not in skipped_in)]
        document = documents[place][(ids[1][place] != FULL_STOP) | ("document" not in skipped_in)]
        expected = sum(max(float(vector @ other) for other in document) for vector in query)
        assert score == pytest.approx(expected, rel=1e-5)


def test_max_sim_holds_a_long_query_once(multi_vector_encoder: TaskArtifact) -> None:
    manifest = Artifact.open(multi_vector_encoder.artifact).manifest
    query, count = np.zeros((1000, 16), np.float32), 100
    tracemalloc.start()
    similarities([query] * count, [query[:2]] * count, manifest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < count * query.nbytes / 2


def test_an_embedder_s_score_is_the_cosine(embedder: TaskArtifact, generator: np.random.Generator) -> None:
    manifest = Artifact.open(embedder.artifact).manifest
    a, b = (row / np.linalg.norm(row, axis=1, keepdims=True) for row in generator.standard_normal((2, 5, 8)))
    found = similarities(a, b, manifest)
    np.testing.assert_allclose(found, [float(np.dot(x, y)) for x, y in zip(a, b, strict=True)], rtol=1e-6)
    assert similarities([], b[:0], manifest).shape == (0,)


def test_equal_scores_keep_their_order() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.9], dtype=np.float32)
    assert best(scores, None) == [1, 3, 0, 2]
    assert [one.index for one in rank(scores, ["a", "b", "c", "d"], None, 3)] == [1, 3, 0]


SIZES = (1, 2, 3, 9, 40, 150)


def draw(count: int, generator: np.random.Generator) -> np.ndarray:
    vectors = generator.standard_normal((count, 12)).astype(np.float32)
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


@pytest.mark.parametrize("factor", [1, 1.5, 2, 5, 1000])
def test_pooled_vectors_are_those_of_sentence_transformers(factor: float, generator: np.random.Generator) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling  # noqa: PLC0415 - seconds

    reference = HierarchicalTokenPooling(factor)
    for count in SIZES:
        vectors = draw(count, generator)
        found, rows = pool_tokens(vectors, factor)
        expected = reference.pool_one(torch.from_numpy(vectors)).numpy()
        assert found.shape == expected.shape
        distances = np.abs(found[:, np.newaxis] - expected[np.newaxis]).max(axis=2)
        assert distances.min(axis=1).max() < 1e-6  # the same vectors, in the order of their first tokens
        assert sorted(set(rows.tolist())) == list(range(len(found)))
        assert rows[0] == 0
        for row, mean in enumerate(found):
            own = vectors[rows == row].mean(axis=0)
            np.testing.assert_allclose(own / np.linalg.norm(own), mean, atol=1e-6)


def test_clusters_are_scipy_s(generator: np.random.Generator) -> None:
    for count in SIZES[2:]:
        vectors = draw(count, generator)
        distances = np.clip(1 - vectors @ vectors.T, 0, 2).astype(np.float64)
        linkage = hierarchy.linkage(squareform(distances, checks=False), method="ward")
        for most in (1, 2, count // 2, count - 1):
            expected = hierarchy.fcluster(linkage, t=most, criterion="maxclust")
            found = ward_clusters(distances.copy(), most)
            assert len({*zip(found.tolist(), expected.tolist(), strict=True)}) == len(set(found.tolist())) == most


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")
DECODERS: dict[str, Any] = {"wordpiece": decoders.WordPiece(), "unigram": decoders.Metaspace(), "bpe": None}
UNKNOWN = {"wordpiece": "[UNK]", "unigram": "<unk>", "gemma": "<unk>"}
TEXTS = ["the cats sat on the mats, newest lowest!", "naïve 日本 语 café", "a  b\tc - d", "", "word\n\nother widest."]


def make(name: str) -> FastTokenizer:
    tokenizer = FastTokenizer.from_str(TOKENIZERS[name]().to_str())  # theirs are shared by all tests
    if DECODERS.get(name) is not None:
        tokenizer.decoder = DECODERS[name]
    return tokenizer


@pytest.fixture(scope="module", params=["wordpiece", "unigram", "bpe", "qwen", "gemma"])
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, Any]:
    name = request.param
    sizes = {"vocab_size": 4, "hidden_size": 4, "num_hidden_layers": 0, "num_attention_heads": 1}
    model = BertForTokenClassification(BertConfig(**sizes, id2label=dict(enumerate(LABELS))))
    theirs: Any = TheirTokenizer
    pipeline: Any = TheirPipeline
    tokenizer = theirs(tokenizer_object=make(name), unk_token=UNKNOWN.get(name))
    return Tokenizer(make(name), 500, threads=1), pipeline(model=model, tokenizer=tokenizer)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_groups_are_those_of_the_pipeline(
    both: tuple[Tokenizer, Any], aggregation: Aggregation, generator: np.random.Generator
) -> None:
    ours, pipeline = both
    for text in TEXTS * 3:
        item = ours.encode_now([text])[0]
        if not len(item.input_ids):
            continue
        logits = generator.normal(0, 2, (len(item.input_ids), len(LABELS))).astype(np.float32)
        (given,) = pipeline.preprocess(text, is_split_into_words=False)
        assert given["input_ids"][0].tolist() == item.input_ids.tolist()
        expected = pipeline.postprocess(
            [{**given, "logits": torch.from_numpy(logits)[None]}],
            **pipeline._sanitize_parameters(aggregation_strategy=aggregation, ignore_labels=["O", "LOC"])[2],
        )
        scores = torch.from_numpy(logits).softmax(dim=1).numpy()
        labelled = LabelledText(item, item.input_ids, scores, LABELS, ours)
        found = labelled.entities(EntityRequest(aggregation=aggregation, ignore_labels=["O", "LOC"]))
        assert [{**entity, "score": 0} for entity in found] == [{**entity, "score": 0} for entity in expected]
        np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in expected], atol=1e-6)


@pytest.mark.parametrize("overlap", [0, 1, 3, 4, 90])
@pytest.mark.parametrize("words", [0, 1, 6, 7, 8, 30])
def test_windows_joined_are_the_whole_text(words: int, overlap: int) -> None:
    tokenizer, text = Tokenizer(make("wordpiece"), 9, threads=1), "the cat " * (words // 2) + "a " * (words % 2)
    (item,) = asyncio.run(tokenizer.encode_windows([text], overlap, ids_only=False))
    whole = Tokenizer(make("wordpiece"), 500, threads=1).encode_now([text])[0]
    assert stitch(item, [window.input_ids for window in item.windows]).tolist() == whole.input_ids.tolist()
    assert list(item.offsets or ()) == list(whole.offsets or ())
    assert max(len(window.input_ids) for window in item.windows) <= 9
    assert len(item.input_ids) <= 2 * len(whole.input_ids) + 2 * len(item.windows)  # however many are shared


def test_a_token_comes_from_the_window_that_holds_more_around_it() -> None:
    tokenizer = Tokenizer(make("wordpiece"), 9, threads=1)
    (item,) = asyncio.run(tokenizer.encode_windows(["the " * 12], 3, ids_only=False))
    assert item.window_starts == (0, 4, 8)
    of = stitch(item, [np.full(len(window.input_ids), place) for place, window in enumerate(item.windows)])
    assert of.tolist() == [0] * 6 + [1] * 4 + [2] * 4  # windows hold tokens 0 to 6, 4 to 10 and 8 to 11 of the text's
