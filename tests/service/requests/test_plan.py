"""Each limit of a request: what is at it is taken, one more is refused before anything runs; prompts; spans."""

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import Artifact, Defaults, Manifest
from model.config_parts import Projection
from service.answers.vectors import span_vectors
from service.batching.jobs import JobResult
from service.errors import Invalid
from service.requests.plan import plan_encoding
from service.requests.schemas import EncodeRequest
from service.requests.spans import SpanPlan
from service.tokenization.inputs import Inputs
from service.tokenization.rows import KeptEncoding, TokenizedInput
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import CLS, HIDDEN_SIZE, MAX_LENGTH, NUM_HEADS, SEP, VOCABULARY, write_fake_artifact
from tests.task_artifacts import LONGEST, TaskArtifact

LAST_ID = len(VOCABULARY) - 1
LAST_LAYER, LAST_HEAD = len(NUM_HEADS) - 1, NUM_HEADS[0] - 1
WHOLE = " ".join(["cat"] * (MAX_LENGTH - 2))
FIRST, TOKENS, ROLLOUT = {"layers": [0]}, {"output": "tokens"}, {"layers": [0], "reduce": "rollout"}
Body = dict[str, Any]
# Flags; what changes in {"inputs": "cat"}, at the limit and beyond; status.
ENCODE: list[tuple[str, Body, Body, int]] = [
    ("", {"inputs": [0, LAST_ID]}, {"inputs": [0, LAST_ID + 1]}, 422),
    ("", {"inputs": [[LAST_ID], [0]]}, {"inputs": [[LAST_ID], [-1]]}, 422),
    ("", {"inputs": [5] * MAX_LENGTH}, {"inputs": [5] * (MAX_LENGTH + 1)}, 413),
    ("--max-texts 3", {"inputs": ["cat"] * 3}, {"inputs": ["cat"] * 4}, 413),
    ("--max-text-characters 7", {"inputs": "the cat"}, {"inputs": "the cats"}, 413),
    ("--max-request-tokens 6", {"inputs": ["cat", "dog"]}, {"inputs": ["cat", "the dog"]}, 413),
    ("", {"inputs": WHOLE, "truncate": False}, {"inputs": f"{WHOLE} cat", "truncate": False}, 413),
    ("", {"dimensions": HIDDEN_SIZE}, {"dimensions": HIDDEN_SIZE + 1}, 422),
    ("", {"dimensions": 1}, {"dimensions": 0}, 422),
    (f"--max-embedding-bytes {2 * 4 * HIDDEN_SIZE}", {"inputs": ["cat"] * 2}, {"inputs": ["cat"] * 3}, 413),
    (f"--max-embedding-bytes {3 * 4 * HIDDEN_SIZE}", TOKENS, {"inputs": "a cat"} | TOKENS, 413),
    ("", {"attention": {"layers": [LAST_LAYER, -1 - LAST_LAYER]}}, {"attention": {"layers": [LAST_LAYER + 1]}}, 422),
    ("", {"attention": {"layers": [-1 - LAST_LAYER]}}, {"attention": {"layers": [-2 - LAST_LAYER]}}, 422),
    ("", {"attention": ROLLOUT}, {"attention": ROLLOUT | {"layers": [LAST_LAYER + 1]}}, 422),
    ("", {"attention": {"layers": [0], "heads": [1]}}, {"attention": {"layers": [0], "heads": [LAST_HEAD + 1]}}, 422),
    ("--max-attention-bytes 72", {"attention": FIRST}, {"inputs": "a cat", "attention": FIRST}, 413),  # 4 * 2 heads * 9
    ("", {"head_mask": [[0, LAST_HEAD, 0.0]]}, {"head_mask": [[0, LAST_HEAD + 1, 0.0]]}, 422),
]
OTHERS: list[tuple[str, str, Body, Body, int]] = [  # path, and the same of a whole body
    ("/v1/embeddings", "", {"input": [CLS, LAST_ID, SEP]}, {"input": [CLS, LAST_ID + 1, SEP]}, 422),
    # Its source counts.
    ("/similarity", "--max-texts 3", {"source": "a", "targets": ["a"] * 2}, {"source": "a", "targets": ["a"] * 3}, 413),
    ("/tokenize", "--max-texts 3", {"inputs": ["cat"] * 3}, {"inputs": ["cat"] * 4}, 413),
    ("/tokenize", "--max-request-tokens 6", {"inputs": ["cat", "dog"]}, {"inputs": ["cat", "a dog"]}, 413),
    ("/explain", "--max-text-characters 7", {"a": "x", "b": "the cat"}, {"a": "x", "b": "the cats"}, 413),
    ("/explain", f"--max-attention-bytes {4 * 3 * 4}", {"a": "cat", "b": "a dog"}, {"a": "a cat", "b": "a dog"}, 413),
    (
        "/explain",
        f"--max-attention-bytes {4 * (4 * 5 + 3 * 9)}",  # biases are one more token, in each layer too
        {"a": "cat", "b": "a dog", "through": "network"},
        {"a": "a cat", "b": "a dog", "through": "network"},
        413,
    ),
]
CAT = {"inputs": "cat"}


@pytest.mark.parametrize(
    ("path", "flags", "at", "beyond", "status"),
    [*(("/encode", flags, CAT | at, CAT | beyond, status) for flags, at, beyond, status in ENCODE), *OTHERS],
)
def test_at_a_limit_and_beyond(
    serve: Serve, shared: Served, path: str, flags: str, at: Body, beyond: Body, status: int
) -> None:
    served = serve(*flags.split()) if flags else shared
    taken = served.client.post(path, json=at)
    assert taken.status_code == 200, taken.text
    runs = len(served.backend.batches)
    refused = served.client.post(path, json=beyond)
    assert refused.status_code == status, refused.text
    assert len(served.backend.batches) == runs


ROLLOUTS = "attention: {} bytes of weights would be computed, at most {} are allowed; a rollout needs every layer: send"


@pytest.mark.parametrize(
    ("path", "body", "texts", "message"),
    [
        ("/explain", {"a": "cat", "b": "dog"}, 2, "{} bytes of attention weights would be computed"),
        ("/encode", CAT | {"attention": ROLLOUT}, 1, f"{ROLLOUTS} fewer or shorter inputs"),
    ],
)
def test_every_head_that_is_computed_counts(serve: Serve, path: str, body: Body, texts: int, message: str) -> None:
    computed = 4 * sum(NUM_HEADS) * texts * 9  # each text has three tokens
    served = serve("--max-attention-work-bytes", str(computed - 1))
    refused = served.client.post(path, json=body)
    assert refused.status_code == 413
    assert refused.json()["error"]["message"].startswith(message.format(computed, computed - 1))
    assert not served.backend.batches
    taken = serve("--max-attention-work-bytes", str(computed)).client.post(path, json=body)
    assert taken.status_code == 200


def test_a_request_that_fills_the_queue_is_taken(serve: Serve) -> None:
    limits = ("--max-queue-tokens", "6", "--max-request-tokens", "6")
    assert serve(*limits).encode({"inputs": ["cat", "dog"]}).status_code == 200


PROMPTS = {"query": "the cat ", "passage": "a dog ", "plain": ""}
NAMED = {"prompt_name": "query", "prompt": "the cat "}


@pytest.fixture
def prompted(serve: Serve, tmp_path: Path, request: pytest.FixtureRequest) -> Served:
    """A model with prompts; its default is the fixture's parameter, if any."""
    default = getattr(request, "param", None)
    defaults = Defaults(pooling="mean", normalize=True, prompts=PROMPTS, default_prompt_name=default)
    served: Served = serve("--model", str(write_fake_artifact(tmp_path / "prompts", defaults)))
    return served


def used(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("prompt_name", "prompt") if name in answer}


ASKED: dict[str | None, list[tuple[Body, str, Body]]] = {  # by default prompt: what is asked, what it puts before, says
    None: [
        ({}, "", {}),
        ({"prompt_name": "query"}, "the cat ", NAMED),
        ({"prompt": "a mat "}, "a mat ", {"prompt": "a mat "}),
    ],
    "query": [
        ({}, "the cat ", NAMED),
        ({"prompt_name": "passage"}, "a dog ", {"prompt_name": "passage", "prompt": "a dog "}),
        ({"prompt": ""}, "", {}),
        ({"prompt": "", "role": "query"}, "", {}),
        ({"prompt_name": "plain"}, "", {"prompt_name": "plain", "prompt": ""}),
    ],
}


@pytest.mark.parametrize(("prompted", "cases"), ASKED.items(), indirect=["prompted"])
def test_a_prompt_is_the_text_before_each_text(prompted: Served, cases: list[tuple[Body, str, Body]]) -> None:
    texts = ["sat on", "run"]
    for asked, before, said in cases:
        answer = prompted.encode({"inputs": texts, **asked}).json()
        written_out = prompted.encode({"inputs": [before + text for text in texts], "prompt": ""}).json()
        assert answer["embeddings"] == written_out["embeddings"], asked
        assert answer["usage"] == written_out["usage"], asked
        options = {name: value for name, value in asked.items() if name != "role"}
        tokens = prompted.client.post("/tokenize", json={"inputs": texts, **options}).json()
        assert tokens["usage"] == answer["usage"], asked
        assert used(tokens) == used(answer) == said, asked


def test_unknown_name_is_refused_with_those_that_are_known(prompted: Served) -> None:
    for path, field in (("/encode", "inputs"), ("/tokenize", "inputs"), ("/embed", "inputs"), ("/embeddings", "input")):
        response = prompted.client.post(path, json={field: "cat", "prompt_name": "Query"})
        error = response.json()["error"]
        message = error if path == "/embed" else error["message"]
        assert (response.status_code, message) == (422, "prompt_name: expected one of passage, plain, query"), path


@pytest.mark.parametrize("prompted", ["query"], indirect=True)
def test_default_prompt_is_not_for_token_ids_and_no_other_is(prompted: Served) -> None:
    answer = prompted.encode({"inputs": [2, 5, 3]}).json()
    assert (used(answer), answer["usage"]) == ({}, {"tokens": 3})
    refused = prompted.encode({"inputs": [2, 5, 3], "prompt_name": "query"}).json()["error"]
    assert refused["param"] == "prompt_name"
    assert refused["message"].startswith("prompt_name: token ids and pairs are used as given")


def test_offsets_count_from_the_start_of_the_prompt(prompted: Served) -> None:
    body = {"inputs": "sat", "prompt_name": "query", "attention": {"layers": [0], "level": "word"}}
    (attention,) = prompted.encode(body).json()["attention"]
    assert attention["words"][1:-1] == ["the", "cat", "sat"]
    assert attention["offsets"][1:-1] == [[0, 3], [4, 7], [8, 11]]


def test_prompt_counts_in_what_is_cut(prompted: Served) -> None:
    text = " ".join(["dog"] * 13)
    assert prompted.encode({"inputs": text, "truncate": False}).status_code == 200
    refused = prompted.encode({"inputs": text, "truncate": False, "prompt_name": "query"})
    assert refused.json()["error"]["message"].startswith("inputs[0]: 17 tokens, the model takes 16")
    (item,) = prompted.encode({"inputs": text, "prompt_name": "query"}).json()["items"]
    assert item == {"tokens": 16, "truncated": True, "tokens_cut": 1}


TEXT = "the cat sat"
SPANS = [[[0, 3]]]


def manifest(artifact: TaskArtifact, **config: Any) -> Manifest:
    found = Artifact.open(artifact.artifact).manifest
    return replace(found, config=replace(found.config, **config))


@pytest.mark.parametrize(
    ("config", "way"),
    [({"pooling": "cls"}, "cls"), ({"projections": (Projection(size=16),)}, "mean and a dense layer")],
)
def test_spans_are_of_models_that_take_the_mean(embedder: TaskArtifact, config: dict[str, Any], way: str) -> None:
    request, inputs = EncodeRequest(inputs=TEXT, spans=SPANS), Inputs(texts=[TEXT])
    with pytest.raises(Invalid, match=f"drawn pools by {way}; leave spans out") as raised:
        plan_encoding(request, inputs, manifest(embedder, **config))
    assert raised.value.param == "spans"
    assert plan_encoding(request, inputs, manifest(embedder)).spans is not None


def test_what_is_asked_of_heads_knows_how_far_each_layer_sees(embedder: TaskArtifact) -> None:
    request = EncodeRequest.model_validate({"inputs": TEXT, "attention": {"layers": [1, 0], "form": "stats"}})
    plan = plan_encoding(request, Inputs(texts=[TEXT]), manifest(embedder, local_layers=(1,), window=2))
    assert plan.selection is not None
    assert plan.selection.reaches == (2, LONGEST)


def test_a_thousand_long_spans_cost_what_short_ones_do(generator: np.random.Generator) -> None:
    size, vectors = 500, generator.standard_normal((500, 4), np.float32)
    special = [place % 100 == 0 for place in range(size)]
    encoding = KeptEncoding(
        ["a"] * size, [(place, place + 1) for place in range(size)], list(range(size)), list(map(int, special))
    )
    item = TokenizedInput(np.arange(size), False, size, encoding, ("a" * size,))
    spans = [[place % 200, size - place // 200] for place in range(2000)]
    tracemalloc.start()
    (tokens,) = SpanPlan([spans]).find_tokens([item], 0)
    found = span_vectors(JobResult(vectors[0], vectors, {}, 0.0, 0.0), tokens)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for (start, end), vector in list(zip(spans, found, strict=True))[::29]:
        inside = [vectors[place] for place in range(start, end) if not special[place]]
        np.testing.assert_allclose(vector, np.mean(inside, axis=0, dtype=np.float64), rtol=0, atol=1e-6)
    assert peak < 8 * sum(end - start for start, end in spans) / 4


def test_white_space_behind_a_cut_text_is_read_once() -> None:
    encoding = KeptEncoding(["a"], [(0, 1)], [0], [0])
    item = TokenizedInput(np.zeros(1, np.int64), True, 2, encoding, ("a" + " " * 200_000 + "z",))

    def seconds(end: int) -> float:
        took = []
        for _ in range(5):  # the least: what else runs on the machine slows one down
            started = time.process_time()
            (tokens,) = SpanPlan([[[0, end]] * 3000]).find_tokens([item], 0)
            took.append(time.process_time() - started)
            assert tokens.ranges.tolist() == [[0] * 3000, [1] * 3000]
        return min(took)

    assert seconds(200_000) < 5 * seconds(1) + 0.05
    with pytest.raises(Invalid, match=r"spans\[0\]\[1\]: reaches into what was cut off"):
        SpanPlan([[[0, 200_001], [0, 200_002]]]).find_tokens([item], 0)
