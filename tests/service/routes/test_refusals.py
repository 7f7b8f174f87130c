"""What each route refuses on a model of each kind, with the status and the words: a row a mistake."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.app import ROUTES
from service.http.openapi import make_document
from tests.service.conftest import Serve, Served, bodies
from tests.service.fake_engine import CLS, HIDDEN_SIZE, SEP, write_fake_artifact
from tests.service.routes.compatible.test_inference_protocol import tensor
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import LONGEST

DOCUMENT = make_document(ROUTES)
OF_VECTORS = ("/v1/embeddings", "/embed", "/embeddings", "/similarity", "/v2/embed")
WRONG_TASK = "drawn is served here for classification"
LONG = "dog " * 40
NO_TOKENS = "no tokens, and this model's tokenizer adds none; give a text with at least one"
ENDLESS = "cat " * 40_000
FOREIGN_IDS = (
    f"these token ids are not this model's: its own begin with {CLS} and end with {SEP} (POST /tokenize makes them). "
    "Send texts; in LangChain set check_embedding_ctx_length=False"
)
UNCUT = {"parameters": {"truncate": False}}
PAIR = {"source_sentence": "cat", "sentences": ["cat"]}
Row = tuple[Any, str] | tuple[Any, str, int]  # the change of the body, words of the message, the status if not 422
# By model and path: a body that is answered, then its changes that are refused, each with its message.
REFUSED: Mapping[str, Sequence[Any]] = {
    "default_artifact /encode": [
        {"inputs": "a cat"},
        ({"encoding_format": "int8", "dimensions": 64}, "encoding_format: int8 is for vectors of length 1"),
        ({"encoding_format": "uint8", "normalize": False}, "encoding_format: uint8 is for vectors of length 1"),
        ({"encoding_format": "binary", "dimensions": 60}, "encoding_format: binary packs eight dimensions"),
        ({"encoding_format": "int8", "output": "tokens"}, "encoding_format: the ranges of int8 are those of whole"),
    ],
    "reranker /encode": [
        {"inputs": "a cat"},
        ({"encoding_format": "binary"}, "encoding_format: binary is for vectors, and drawn gives none (its task is"),
        ({"spans": [[[0, 5]]]}, "spans: drawn returns no vector of a text (its task is classification)"),
        ({"long_texts": "mean"}, "long_texts: drawn returns no vector of a text to average"),
    ],
    "multi_vector_encoder /encode": [
        {"inputs": "a cat"},
        ({"output": "tokens", "encoding_format": "uint8"}, "encoding_format: the ranges of uint8 are those of"),
        ({"inputs": "a", "role": "passage"}, "role: "),
        ({"inputs": [[1, 2]], "role": "query"}, "role: token ids and pairs are read as they"),
    ],
    "embedder /encode": [
        {"inputs": ["a cat"], "long_texts": "mean"},
        ({"inputs": [[2, 3]]}, "long_texts: only texts are read in windows, not token ids or pairs"),
        ({"output": "tokens"}, "output: does not go with long_texts; leave one of the two out"),
        ({"attention": {}}, "attention: does not go with long_texts"),
        ({"spans": [[[0, 3]]]}, "spans: does not go with long_texts"),
    ],
    "embedder /encode 2": [
        {"inputs": ["the cat sat on the mat."]},
        ({"spans": [[[0, 24]]]}, "spans[0][0]: expected [start, end] with start < end <= 23, the text's end"),
        ({"spans": [[[0, 3], [4, 4]]]}, "spans[0][1]: expected [start, end] with start < end <= 23"),
        ({"spans": [[[3, 4]]]}, "spans[0][0]: no token ends in it"),
        ({"spans": [[[0, 3]], [[0, 3]]]}, "spans: expected a list of spans for each of 1 inputs, got 2"),
        ({"spans": []}, "spans: expected a list of spans for each of 1 inputs, got 0"),
        ({"spans": [[]]}, "spans.0: List should have at least 1 item"),
        ({"spans": [[[0]]]}, "spans.0.0: List should have at least 2 items"),
        ({"spans": [[[-1, 3]]]}, "spans.0.0.0: Input should be greater than or equal to 0"),
        ({"inputs": "cat " * 100, "spans": [[[0, 32 * 4]]]}, "spans[0][0]: reaches into what was cut off"),
        ({"inputs": "cat " * 100, "spans": [[[400 - 32 * 4, 400]]], "truncate": "start"}, "spans[0][0]: reaches into"),
        ({"inputs": [[2, 5, 3]], "spans": [[[0, 3]]]}, "spans: only texts have spans of characters"),
        ({"spans": [[[0, 3]]], "output": "tokens"}, "output: does not go with spans"),
        ({"inputs": "a", "role": "query"}, "reads queries and documents alike"),
        ({"inputs": "a", "outputs": ["dense", "sparse"]}, "outputs: drawn gives no sparse; it has"),
        ({"inputs": "a", "return_tokens": True}, "return_tokens: the answer has no vectors of tokens"),
        ({"inputs": "a", "pool_factor": 2}, "pool_factor: it is for the token vectors"),
    ],
    "reranker /encode 2": [
        {},
        ({}, "inputs: Field required"),
        ({"inputs": "a", "pairs": [["a", "b"]]}, "pairs: give either inputs or pairs"),
        ({"pairs": [["a"]]}, "pairs[0]: expected two texts, or two lists of token ids"),
        ({"pairs": [["a", "b"], [[1], [2]]]}, "pairs: expected a list of pairs, each of two texts"),
        ({"pairs": [[[1], [10**6]]]}, "pairs[0]: a token id is out of range"),
        ({"pairs": []}, "pairs: expected a list of pairs"),
        ({"pairs": [["a", "b"]] * 3000}, "pairs: 3000 pairs, at most 2048 a request are taken", 413),
        ({"pairs": [["a", "b"]], "dimensions": 2}, "dimensions: drawn returns no vectors to cut"),
        ({"pairs": [["a", "b"]], "spans": [[[0, 1]]]}, "spans: only texts have spans of characters, not token ids or"),
        ({"pairs": [[[5], [6]]], "long_texts": "mean"}, "long_texts: only texts are read in windows, not token ids or"),
        ({"pairs": [["a cat " * 60, "a dog"]], "truncate": False}, "pairs[0]: ", 413),
        ({"pairs": [["a", "b"], ["cat " * 90, "b"]], "pair_truncation": "only_second"}, "pairs[1]: the first", 413),
    ],
    "sparse_encoder /encode": [
        {},
        ({"pairs": [["a", "b"]]}, "pairs: drawn reads one text at a time"),
        ({"inputs": "a", "outputs": ["sparse"]}, "it has none to choose from (its task is"),
    ],
    "fake /encode": [
        {"inputs": "cat"},
        ({"encoding_format": "int8"}, "encoding_format: the artifact has no ranges for int8 vectors; export it again"),
        ({"prompt": "a ", "prompt_name": "query"}, "prompt: give either prompt or prompt_name"),
        ({"prompt_name": "query"}, "prompt_name: this model has no named prompts; give its text as prompt"),
        ({"inputs": [2, 5, 3], "prompt": "a "}, "prompt: token ids and pairs are used as given"),
        ({"prompt": "a" * 1025}, "prompt: String should have at most 1024 characters"),
        ({"attention": {"form": "decomposition", "layers": "all"}}, "attention.layers: "),
        ({"attention": {"form": "decomposition", "heads": [0]}}, "attention.heads: "),
        ({"attention": {"form": "decomposition", "queries": "cls"}}, "attention.queries: "),
        ({"attention": {"form": "decomposition", "reduce": "mean"}}, "attention.reduce: "),
        ({"attention": {"form": "decomposition", "top_k": 3}}, "attention.top_k: "),
        ({"attention": {"form": "decomposition", "exclude_special": True}}, "attention.exclude_special: "),
        ({"inputs": [2, 5, 3], "attention": {"form": "decomposition", "level": "word"}}, "attention.level: "),
        ({"attention": {"form": "norms", "reduce": "rollout"}}, "attention.reduce: "),
        ({"attention": {"form": "norms", "exclude_special": True, "renormalise": True}}, "attention.renormalise: "),
        ({"inputs": ["cat", LONG], "truncate": False}, "inputs[1]: 42 tokens, the model takes 16; shorten the", 413),
        ({"inputs": 7}, "inputs: expected a text, a list of texts, a list of token ids or a list of lists of token"),
        ({"inputs": [2, 14]}, "inputs[0]: a token id is out of range, expected 0 to 13"),
        ({"inputs": [[2], [-1]]}, "inputs[1]: a token id is out of range"),  # which counts from the vocabulary's end
        ({"dimensions": 9}, "dimensions: expected 1 to 8, the size of the vectors"),
        ({"attention": {"layers": [3]}}, "attention.layers: the model has 3 layers, valid indices are -3 to 2"),
        ({"attention": {"layers": [1, 0], "heads": [2]}}, "attention.heads: layer 0 has 2 heads, valid indices are 0"),
        ({"attention": {"heads": [0]}}, "attention.heads: layer 2 has no heads"),
        ({"attention": {"renormalise": True}}, "attention.renormalise: whole rows sum to 1 as they are; it needs"),
        ({"output": "x", "normalize": 3}, "normalize: Input should be a valid boolean; output: Input should be '"),
        ({"dimension": 3}, "dimension: no such field (did you mean dimensions?)"),
        ({"input": "cat"}, "input: no such field (did you mean inputs?)"),
        ({"texts": ["cat"]}, "texts: no such field (did you mean inputs?)"),
        ({"attention": {"renormalize": True}}, "attention.renormalize: no such field (did you mean renormalise?)"),
        ({"head_mask": "0.1"}, "head_mask: Input should be a valid array"),
        ({"head_mask": [[0, 0, 0], [0, 1]]}, "head_mask.1.2: Field required"),
        ({"head_mask": [[True, 0, 0]]}, "head_mask.0.0: Input should be a valid integer"),
        ({"head_mask": [[0, 0, 1.5]]}, "head_mask.0.2: Input should be less than or equal to 1"),
        ({"head_mask": [[0, 0, -0.5]]}, "head_mask.0.2: Input should be greater than or equal to 0"),
        ({"head_mask": [[0, 0, True]]}, "head_mask.0.2: Input should be a valid number"),
        ({"head_mask": [[3, 0, 0]]}, "head_mask[0]: the model has 3 layers, valid indices are -3 to 2"),
        ({"head_mask": [[-4, 0, 0]]}, "head_mask[0]: the model has 3 layers"),
        ({"head_mask": [[0, 2, 0]]}, "head_mask[0]: layer 0 has 2 heads, valid indices are -2 to 1"),
        ({"head_mask": [[-1, 0, 0]]}, "head_mask[0]: layer 2 has no heads"),
        ({"head_mask": [[0, 1, 0], [-3, -1, 0.5]]}, "head_mask[1]: layer 0, head 1 is named twice"),
    ],
    "bare /encode": [
        {"inputs": "the cat"},
        ({"inputs": ""}, f"inputs[0]: {NO_TOKENS}"),
        ({"inputs": ["the cat", " \n"], "attention": {"level": "word"}}, f"inputs[1]: {NO_TOKENS}"),
        ({"inputs": ["the cat", "\u200b"], "output": "tokens"}, f"inputs[1]: {NO_TOKENS}"),
    ],
    "bare /explain": [{"a": "the cat"}, ({"b": ""}, f"b: {NO_TOKENS}")],
    "bare /similarity": [
        {"source": "a dog"},
        ({"source": "", "targets": ["a dog"]}, f"source: {NO_TOKENS}"),
        ({"targets": ["a mat", ""]}, f"targets[1]: {NO_TOKENS}"),
    ],
    "bare /v1/embeddings": [{}, ({"input": ["", "the cat"]}, f"input[0]: {NO_TOKENS}")],
    "fake /encode 2": [
        {"inputs": "cat", "attention": {"form": "decomposition"}},
        ({"head_mask": [[0, 0, 0.0]]}, "head_mask: "),
        ({"output": "tokens"}, "output: "),
        ({"spans": [[[0, 3]]]}, "spans: "),
        ({"long_texts": "mean"}, "attention: does not go with long_texts"),
    ],
    "fake /explain": [
        {"a": "the cat", "b": "a dog"},
        ({"a": 3}, "a: "),
        ({"b": None}, "b: "),
        ({"dimensions": HIDDEN_SIZE + 1}, "dimensions: "),
        ({"dimensions": 0}, "dimensions: "),
        ({"similarity": "euclidean"}, "similarity: "),
        ({"zzz": 1}, "zzz: no such field"),
        ({"through": "network", "b": None}, "b: Field required"),
        ({"through": "network", "head_mask": [[0, 0, 0.0]]}, "head_mask: heads cannot be switched off through the"),
        ({"through": "network", "dimensions": 999}, "dimensions: expected 1 to 8"),
        ({"through": "network", "at": 0}, "at: tests/fake labels no tokens"),
    ],
    "embedder /rerank": [
        {"query": "a", "documents": ["b"]},
        ({"matches": True}, "matches: "),
        ({"weights": {"dense": 1}}, "weights: drawn has one output"),
        ({"weights": {"dense": 0}}, "expected a weight above 0"),
    ],
    "fake /tokenize": [
        {"inputs": "a"},
        ({"inputs": [1, 2]}, ""),
        ({"inputs": []}, ""),
        ({"attention": None}, ""),
        ({"inputs": "cat " * 40, "truncate": False}, "inputs[0]: 42 tokens", 413),
    ],
    "reranker /rerank": [
        {},
        ({"query": "", "texts": ["a"]}, "query: "),
        ({"query": "a", "texts": []}, "texts: "),
        ({"query": "a"}, "expected either texts (TEI's form) or documents (Infinity's)"),
        ({"query": "a", "documents": ["a"] * 3000}, "documents: 3000 documents, at most 2048", 413),
        ({"query": "a", "documents": ["a"], "top_n": -1}, "top_n: "),
        ({"query": "a", "documents": ["a", 1]}, "documents.1"),
        ({"query": ENDLESS, "documents": ["a"]}, "query: 160000 characters", 413),
    ],
    "reranker /score": [
        {},
        ({"queries": "a", "documents": "b", "matches": True}, "matches: "),
        ({"queries": ["a", "b"], "documents": ["a", "b", "c"]}, "documents: 2 queries and 3 documents"),
        ({"queries": "a"}, "expected queries and documents"),
        ({"queries": ["a", "a", ENDLESS], "documents": ["a", "b", "c"]}, "queries[2]: 160000 characters", 413),
    ],
    "expanding_encoder /encode": [
        {},
        ({"inputs": "a", "role": "query", "attention": {}}, "attention: does not go with queries that end in tokens"),
        ({"inputs": "a", "role": "query", "prompt": "x"}, "prompt: does not go with role, which chooses"),
        ({"inputs": "a", "role": "query", "truncate": "start"}, "truncate: does not go with queries that end"),
        ({"inputs": "a", "pool_factor": 0.5}, "pool_factor: "),
        ({"inputs": "a", "pool_factor": 2, "role": "query"}, "pool_factor: it is for documents"),
        ({"inputs": "a", "pool_factor": 2, "normalize": False}, "pool_factor: it is for vectors"),
    ],
    "token_classifier /explain": [
        {"a": "the cats sat on the mats.", "at": 0, "through": "network"},
        ({"at": None}, "at: Field required, since this model labels tokens"),
        ({"at": 3}, "at: no token of the text is at character 3: a space, or behind the text's end"),
        ({"a": "the cat " * LONGEST, "at": 6 * LONGEST}, "at: no token of the text is at character 384: the text"),
        ({"b": "a cat"}, "reads one text at a time"),
    ],
    "token_classifier /predict": [
        {},
        ({"inputs": "a", "level": "text"}, "for token-classification: this route is for classif", 404),
        ({"inputs": [["a", "b"]]}, "expected a text, or a list of texts"),
        ({"inputs": []}, "inputs: List should have at least 1 item"),
        ({"inputs": "a", "aggregation": "last"}, "aggregation"),
        ({"inputs": "a", "parameters": {"stride": -1}}, "stride"),
    ],
    "token_classifier /encode": [
        {},
        ({"inputs": [[5, 6]], "entities": {}}, "entities: only texts have places"),
        ({"inputs": "a", "prompt": "b", "entities": {}}, "prompt: does not go with entities"),
        ({"inputs": "a", "output": "tokens", "entities": {}}, "output: does not go with entities"),
    ],
    "token_classifier /rerank": [{}, ({"query": "a", "texts": ["b"]}, "labels tokens: it scores no pairs", 404)],
    "classifier /predict": [
        {"inputs": "a"},
        ({"level": "tokens"}, "", 404),
        ({"aggregation": "first"}, "aggregation: does not go with a model that labels whole texts"),
        ({"ignore_labels": ["O"]}, "ignore_labels: does not go with a model"),
        ({"overlap": 4}, "overlap: does not go with a model"),
        ({"inputs": [["a", "b"], ["a", "cat " * 100]], "truncate": False}, "inputs[1]: ", 413),
        ({"inputs": [["a", "b"]] * 3000}, "inputs: 3000 pairs, at most 2048 a request are taken", 413),
    ],
    "classifier /encode": [{}, ({"inputs": "a", "entities": {}}, ""), ({"inputs": "a", "long_texts": "windows"}, "")],
    "reranker /v1/rerank": [
        {"query": "a"},
        ({}, "documents: "),
        (
            {"documents": [{"txt": "b"}]},
            "documents.0: Input should be a valid string; documents.0.text: Field required",
        ),
    ],
    "reranker /predict": [
        {},
        ({"inputs": ["a", "b", "c"]}, "inputs: expected a text, a pair"),
        ({"inputs": [["a"], ["b", "c"]]}, "inputs: expected a text, a pair"),
    ],
    "reranker /explain": [{}, ({"a": "a", "b": "b"}, 'by pairs of tokens; ask for through "network"', 404)],
    "reranker /explain 2": [{"a": "a", "through": "network"}, ({"b": "a" * 140_000}, "b: 140000 characters", 413)],
    "reranker /zero-shot": [{}, ({"inputs": "a", "candidate_labels": ["b"]}, "zero-shot labels need", 404)],
    "multi_vector_encoder /": [{}, ({"inputs": "the cat"}, "served here for multi-vector", 404)],
    "expanding_encoder /v1/embeddings": [  # it has no vector of a text, whatever the kind
        {"input": "a"},
        ({"input_type": "query"}, "served here for multi-vector", 404),
        ({"task": "retrieval.query"}, "served here for multi-vector", 404),
        ({"task": "retrieval.query", "prompt_name": "query"}, "task: it chooses the prompt"),
        ({"input_type": "qeury"}, "input_type: Input should be"),
    ],
    "reranker /classify": [{}, ({"input": []}, "input")],
    "reranker /embed_sparse": [{}, ({"inputs": "a"}, WRONG_TASK, 404)],
    "reranker /v2/models/drawn/infer": [{}, (tensor(["a"]), WRONG_TASK, 404)],
    **{f"reranker {path}": [bodies("a")[path], ({}, WRONG_TASK, 404)] for path in OF_VECTORS},
    "classifier /rerank": [{}, ({"query": "a", "texts": ["b"]}, "is a classifier with 3 labels", 404)],
    "default_artifact /rerank": [
        {},
        ({"query": "a", "texts": ["b"], "attention": {}}, "reads query and document apart"),
        ({"query": "a", "texts": [ENDLESS]}, "160000 characters, at most 131072 a text are taken", 413),
        ({"query": "cat " * 900, "texts": ["a"], "truncate": False}, "query: 902 tokens, the model takes 256", 413),
    ],
    "fake /similarity": [
        {},
        ({"source": "cat"}, ""),
        ({"source": "cat", "targets": []}, ""),
        ({"source": "cat", "targets": ["cat"], "inputs": PAIR}, ""),
        ({"source": "cat", "targets": ["cat"], "parameters": {}}, ""),
        ({"source": "cat", "targets": [1]}, ""),
        ({"inputs": {"source_sentence": "cat", "sentences": []}}, ""),
        ({"inputs": PAIR, "truncate": False}, ""),
        ({"inputs": PAIR, "source_prompt_name": "none"}, ""),
        ({"inputs": PAIR, "parameters": {"truncation_direction": "Up"}}, ""),
        ({"source": LONG, "targets": ["cat"], "truncate": False}, "source: ", 413),
        ({"source": "cat", "targets": ["cat", LONG], "truncate": False}, "targets[1]: ", 413),
        ({"source": "cat", "targets": ["cat"] * 3000}, "source and targets: ", 413),
        ({"inputs": {**PAIR, "sentences": [LONG]}, **UNCUT}, "inputs.sentences[0]: ", 413),
        ({"inputs": {**PAIR, "source_sentence": LONG}, **UNCUT}, "inputs.source_sentence: ", 413),
    ],
    "classifier /zero-shot": [
        {"inputs": "the cat", "candidate_labels": ["a", "b"]},
        ({"candidate_labels": []}, "candidate_labels: List should have at least 1 item"),
        ({"candidate_labels": ["a", None]}, "candidate_labels.1: Input should be a valid string"),
        ({"candidate_labels": " , "}, "give at least one label"),
        ({"candidate_labels": None}, "candidate_labels: Field required"),
        ({"parameters": {"candidate_labels": ["a"], "hypothesis_template": "{}" + "a" * 1024}}, "parameters.hypoth"),
        ({"candidate_labels": "," * 3000}, "candidate_labels: 3001, at most 2048", 413),
        ({"inputs": ["a"] * 3000}, "candidate_labels: 2 labels of 3000 texts are 6000 inputs to read", 413),
        ({"candidate_labels": ["the cats " * 100]}, "inputs[0]: the second text has", 413),
        ({"inputs": []}, "inputs"),
        ({"hypothesis_template": "It is."}, "hypothesis_template: expected {} once, where the label goes"),
        ({"hypothesis_template": "{} or {}"}, "hypothesis_template: expected {} once"),
        ({"hypothesis_template": "{}" + "a" * 1024}, "hypothesis_template"),
    ],
    "embedder /zero-shot": [{"candidate_labels": "a"}, ({"inputs": ["a", "a" * 140_000]}, "inputs[1]: 140000 ", 413)],
    "default_artifact /v2/embed": [
        {"texts": ["a cat"]},
        ({"embedding_types": ["int8"], "output_dimension": 64}, "embedding_types: int8 is for vectors of length 1"),
        ({"embedding_types": ["binary"], "output_dimension": 60}, "embedding_types: binary packs eight dimensions"),
        ({"output_dimension": 1000}, "output_dimension: expected 1 to 384"),
        ({"truncate": "NONE", "texts": ["cat " * 600]}, "texts[0]: 602 tokens", 413),
    ],
    "fake /v1/embeddings": [
        {},
        ({"input": []}, "input: "),
        ({"input": ["cat", 1]}, "input: "),
        ({"input": None}, "input: "),
        ({}, "input: "),
        ({"input": [CLS, 5]}, f"input[0]: {FOREIGN_IDS}"),
        ({"input": [5, SEP]}, f"input[0]: {FOREIGN_IDS}"),
        ({"input": [[CLS, 5, SEP], [4, 5]]}, f"input[1]: {FOREIGN_IDS}"),
        ({"input": "cat", "encoding_format": "float16"}, "encoding_format: "),
        ({"input": "cat", "dimensions": 1000}, "dimensions: "),
        ({"input": "cat", "dimenions": 1}, "dimenions: no such field (did you mean dimensions?)"),
    ],
    "fake /embed": [
        {},
        ({"inputs": []}, "inputs: the list is empty"),
        ({"inputs": ["cat", [1]]}, "inputs: expected a text, a list of texts"),
        ({}, "inputs: Field required"),
        ({"inputs": "cat", "truncation_direction": "Up"}, "truncation_direction: Input should be 'Right', "),
        ({"inputs": LONG, "truncate": False, "truncation_direction": "Left"}, "inputs[0]: ", 413),
    ],
    "fake /v2/models/tests/fake/infer": [
        tensor(["cat"]),
        (tensor(["cat"], shape=[2]), "inputs.0.shape: expected [1]"),
        (tensor(["cat", "dog"], shape=[1, 2]), "inputs.0.shape: expected [2]"),
        (tensor(["cat"], datatype="FP32"), "inputs.0.datatype: Input should be 'BYTES'"),
        (tensor([7]), "inputs.0.data: expected texts"),
        (tensor([[["cat"]]], shape=[1, 1]), "inputs.0.data: expected texts"),
        (tensor(["cat"], data=None), "inputs.0.data: expected texts, here or behind the JSON"),
        (tensor([], shape=[0]), "inputs.0.data: the list is empty"),
        ({"inputs": []}, "inputs: List should have at least 1 item"),
        ({"outputs": [{"name": "other"}]}, "outputs.0.name: Input should be 'embeddings'"),
        ({**tensor([LONG]), "parameters": {"truncate": False}}, "inputs.0.data[0]: 42 tokens", 413),
    ],
    "classifier /": [
        {},
        ({"inputs": {"source_sentence": "the cat", "sentences": ["a dog"]}}, WRONG_TASK, 404),
        ({"inputs": []}, "inputs: List should have at least 1 item"),
        ({"query": "", "texts": ["a"]}, "query: String should have at least 1 character"),
        ({}, "inputs: Field required"),
        ([1], "Input should be a valid dictionary"),
    ],
}
CASES = [(*key.split()[:2], body, row) for key, (body, *rows) in REFUSED.items() for row in rows]


@pytest.fixture
def bare(serve: Serve, tmp_path: Path) -> Served:
    """A model whose tokenizer adds no tokens."""
    made: Served = serve("--model", str(write_fake_artifact(tmp_path / "bare", special_tokens=False)))
    return made


@pytest.mark.parametrize(
    ("model", "path", "body", "row"), CASES, ids=[f"{model} {path} {row[1]}" for model, path, _, row in CASES]
)
def test_a_mistake_is_refused_by_name(
    request: pytest.FixtureRequest, client: Client, model: str, path: str, body: dict[str, Any], row: Row
) -> None:
    made: Any = request.getfixturevalue("served" if model == "fake" else model)
    asked = made.client if isinstance(made, Served) else client(getattr(made, "artifact", made))
    change, words, *status = row
    response = asked.post(path, json=change if isinstance(change, list) else {**body, **change})
    assert not isinstance(made, Served) or not made.backend.batches, "nothing runs"
    assert response.status_code == (status[0] if status else 422), response.text
    answer = response.json()
    error = answer.get("error", answer.get("message"))
    message = error if isinstance(error, str) else error["message"]
    documented = DOCUMENT["paths"][re.sub("models/.+(?=/)", "models/{model}", path)]["post"]["responses"]
    code = "wrong_task" if "is served here for" in message else isinstance(error, dict) and error["code"]
    assert not code or code in documented[str(response.status_code)]["content"]["application/json"]["examples"]
    assert words in message
    assert len(said := message.split("; ")) == len({*said}), "each problem once"
    assert "/v2/models" not in path or answer.keys() == {"error"}
    if field := re.match(r"([\w.\[\]]+): ", words):
        assert message.startswith(words)
        assert isinstance(error, str) or error["param"] == re.sub(r"\[(\d+)\]", r".\1", field[1])


def test_a_prompt_is_text_enough_and_tokenize_shows_that_there_is_none(bare: Served) -> None:
    assert bare.encode({"inputs": "", "prompt": "the "}).json()["usage"] == {"tokens": 1}
    assert post(bare.client, "/tokenize", inputs="")["items"][0]["tokens"] == []
