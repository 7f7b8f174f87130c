"""The requests whose hold of the event loop is measured: every route, with every field of its body at its limit.

Every field is filled with each of `values`, whatever the field wants.
"""

import functools
import itertools
import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from service.app import ROUTES
from service.requests.scoring import RerankRequest
from service.routes.compatible.inference_protocol import InferenceRequest
from service.routes.compatible.tei import EmbedRequest
from service.routes.predict import PredictRequest
from service.routes.similarity import SimilarityRequest
from tests.service.loop_hold import Case

SENTENCE = "the cat sat on the mat and the dog ran to the old house by the sea where it was cold and wet all day long"
LONG_CHARACTERS = 131_072
BODY_BYTES = 2**21

VALUES = 2048 + 65_536  # what all limits allow of values, and of lists
LISTS, NAMES = 6000, 4000
ITEMS: Mapping[str, tuple[bytes, int]] = MappingProxyType(
    {
        "numbers": (b"1", VALUES),
        "empty texts": (b'""', VALUES),
        "nulls": (b"null", VALUES),
        "lists of one": (b"[1]", LISTS),
        "pairs": (b'["",""]', LISTS),
        "triples": (b"[0,0,1]", LISTS),
        "nested lists": (b"[[[[]]]]", LISTS // 4),
        "objects": (b'{"text":""}', NAMES),
    }
)
CHARACTERS = {"ideographs": "\u4e2d", "marks": "!", "one word": "a", "words": "a ", "accents": "e\u0301"}


def filled(item: bytes, count: int, share: float = 1.0) -> bytes:
    return b"[" + b",".join([item] * max(1, int(share * count))) + b"]"


def values() -> Iterator[tuple[str, Callable[[float], bytes]]]:
    """Raw JSON values by name, of a share of the limit: of the wrong kind for most fields."""
    most = BODY_BYTES - 300
    for name, (item, count) in ITEMS.items():
        yield name, functools.partial(filled, item, count)
        yield f"{name}, 2 MB", functools.partial(filled, item, most // (len(item) + 1))
    for name, character in CHARACTERS.items():
        text = long_text(character, 1.0)
        yield f"a text of {name}", functools.partial(long_text, character)
        yield f"texts of {name}", functools.partial(filled, text, most // len(text))
    numbers = int(BODY_BYTES / 6.5)
    yield "a text of commas", lambda share: b'"' + b",".join(b"%x" % n for n in range(int(share * numbers))) + b'"'
    yield "digits", lambda share: b"1" * int(share * BODY_BYTES * 0.99)
    yield "escapes", lambda share: b'"' + b"\\u0041" * int(share * BODY_BYTES / 6.1) + b'"'
    yield "no end", lambda share: b'"' + b'\\"' * int(share * BODY_BYTES / 2.1)
    yield "depth", lambda share: b"[" * int(share * BODY_BYTES * 0.99)
    yield "names", lambda share: b"{" + b",".join(b'"k%d":1' % n for n in range(int(share * NAMES))) + b"}"


def long_text(character: str, share: float) -> bytes:
    return json.dumps(character * int(share * LONG_CHARACTERS / len(character)), ensure_ascii=False).encode()


@dataclass(frozen=True)
class Body:
    """A route's smallest body, and the model whose fields are filled."""

    route: str
    least: Mapping[str, Any]
    body_model: type[BaseModel] | None = None
    model: str = "embedder"
    name: str = ""


TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
BODIES: Sequence[Body] = (
    Body("POST /encode", {"inputs": "a"}),
    Body("POST /explain", {"a": "a", "b": "b"}),
    Body("POST /tokenize", {"inputs": "a"}),
    Body("POST /similarity", {"source": "a", "targets": ["b"]}),
    Body("POST /rerank", {"query": "a", "documents": ["b"]}, model="reranker"),
    Body("POST /v1/rerank", {"query": "a", "documents": ["b"]}, model="reranker"),
    Body("POST /score", {"queries": "a", "documents": ["b"]}, model="reranker"),
    Body("POST /v1/score", {"queries": "a", "documents": ["b"]}, model="embedder"),
    Body("POST /zero-shot", {"inputs": "a", "candidate_labels": ["b"]}),
    Body("POST /predict", {"inputs": "a"}, model="classifier"),
    Body("POST /classify", {"input": "a"}, model="classifier"),
    Body("POST /v1/embeddings", {"input": "a"}),
    Body("POST /embeddings", {"input": "a"}),
    Body("POST /embed", {"inputs": "a"}),
    Body("POST /embed_all", {"inputs": "a"}),
    Body("POST /embed_sparse", {"inputs": "a"}, model="sparse"),
    Body("POST /v1/multi-vector", {"input": ["a"]}, model="multi_vector"),
    Body("POST /v2/embed", {"texts": ["a"]}),
    Body("POST /v2/rerank", {"query": "a", "documents": ["b"]}, model="multi_vector"),
    Body("POST /v2/models/{model:path}/infer", {"inputs": [TENSOR]}, InferenceRequest),
    Body("POST /admin/models", {"artifact": "a"}),
    Body("POST /", {"inputs": "a"}, EmbedRequest),
    Body("POST /", {"inputs": "a"}, PredictRequest, "classifier", name="predict"),
    Body("POST /", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, SimilarityRequest, name="similarity"),
    Body("POST /", {"query": "a", "texts": ["b"]}, RerankRequest, "reranker", name="rerank"),
)
WITHOUT_BODY = frozenset(f"{route.method} {route.path}" for route in ROUTES if route.method != "POST")
"""Routes that read nothing but headers."""


def field_cases() -> Iterator[Case]:
    """Every field of every body, filled with every value; fields of a nested model once for all routes that have it."""
    routes = {f"{route.method} {route.path}": route for route in ROUTES}
    named = list(values())  # some are long
    seen: set[tuple[type[BaseModel], str]] = set()
    for body in BODIES:
        model = body.body_model or routes[body.route].body_model
        assert model is not None
        for path, owner in _paths(model):
            if (owner is not model or body.name) and (owner, str(path[-1])) in seen:
                continue
            seen.add((owner, str(path[-1])))
            place = ".".join(map(str, (body.name, *path) if body.name else path))
            for name, value in named:
                filled_body = functools.partial(_filled_body, dict(body.least), path, value)
                yield Case(body.route, f"{place}: {name}", filled_body, body.model)


def _paths(model: type[BaseModel]) -> Iterator[tuple[tuple[str | int, ...], type[BaseModel]]]:
    """Places of a body's fields, each with the model that it is of."""
    for name, info in model.model_fields.items():
        yield (name,), model
        for nested, index in _models_in(info.annotation):
            for path, owner in _paths(nested):
                yield (name, *index, *path), owner


def _models_in(annotation: Any, index: tuple[int, ...] = ()) -> Iterator[tuple[type[BaseModel], tuple[int, ...]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, index
    inner = (0,) if typing.get_origin(annotation) is list else ()
    for part in typing.get_args(annotation):
        yield from _models_in(part, (*index, *inner))


def _filled_body(
    least: Mapping[str, Any], path: tuple[str | int, ...], value: Callable[[float], bytes], share: float
) -> bytes:
    body = json.loads(json.dumps(least))
    at = body
    for here, following in itertools.pairwise(path):
        empty: Any = [{}] if isinstance(following, int) else {}
        if isinstance(here, int) or here in at:
            at[here] = at[here] if isinstance(at[here], type(empty)) else empty
        else:
            at[here] = empty
        at = at[here]
    at[path[-1]] = "@here@"
    return json.dumps(body).encode().replace(b'"@here@"', value(share))


def header_cases() -> Iterator[Case]:
    """Headers of 30 KB: every header that the service reads, at a route with a body and at one without."""
    read = "accept accept-encoding authorization x-api-key x-request-id x-request-timeout traceparent content-type"
    names = f"{read} content-encoding if-none-match origin host forwarded x-forwarded-for cookie expect"
    fills = (b",", b"a,", b";q=", b"q=0.5,", b" ", b"0", b'"', b'"a",', b"\xff", b"a/b;q=0.1,")
    for route, body in (("POST /encode", b'{"inputs":"a"}'), ("GET /static/{path:path}", b""), ("GET /metrics", b"")):
        for name in names.split():
            for fill in fills:
                yield Case(
                    route,
                    f"header {name}: {fill.decode('latin-1')}...",
                    lambda _, body=body: body,  # type: ignore[misc]
                    headers=lambda share, name=name, fill=fill: {  # type: ignore[misc]
                        name.encode(): fill * int(share * 30_000 / len(fill))
                    },
                )


# The largest requests that are answered. A function in a body is called with the share of the whole size.

Sized = Callable[[float], Any]
LONG = " ".join([SENTENCE] * 12)
WORDS = " ".join(SENTENCE.split()[:24])


def times(count: int, item: Any) -> Sized:
    return lambda share: [item] * max(1, int(share * count))


def texts(count: int = 2048) -> Sized:
    return times(count, WORDS)


def numbered(word: str, count: int) -> Sized:
    return lambda share: [f"{word} {n}" for n in range(int(share * count))]


def repeated(text: str, count: int) -> Sized:
    return lambda share: " ".join([text] * int(share * count))


def start_of_long(share: float) -> str:
    return LONG[: int(len(LONG) * share)]


def tensor(share: float) -> dict[str, Any]:
    data = texts()(share)
    return {**TENSOR, "shape": [len(data)], "data": data}


def at_share(value: Any, share: float) -> Any:
    if callable(value):
        return value(share)
    if isinstance(value, dict):
        return {name: at_share(part, share) for name, part in value.items()}
    return [at_share(part, share) for part in value] if isinstance(value, list) else value


def _answered(route: str, name: str, body: Mapping[str, Any], model: str = "embedder", **headers: str) -> Case:
    def write(share: float) -> bytes:
        return json.dumps(at_share(dict(body), share)).encode()

    sent = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Case(f"POST {route}", name, write, model, lambda _: sent, is_answered=True)


def _attention_cases() -> Iterator[Case]:
    """Attention of `POST /encode`, in every form and on every wire."""
    attention: Mapping[str, tuple[Mapping[str, Any], int]] = {
        "all layers": ({"layers": "all"}, 170),
        "one row": ({"layers": "all", "queries": "cls"}, 1350),
        "words": ({"layers": "all", "level": "word"}, 170),
        "without special tokens": ({"layers": "all", "exclude_special": True, "renormalise": True}, 190),
        "mean": ({"layers": "all", "reduce": "mean"}, 1300),
        "rollout": ({"reduce": "rollout"}, 1300),
        "largest": ({"layers": "all", "top_k": 3}, 600),
        "statistics": ({"layers": "all", "form": "stats"}, 1300),
        "norms": ({"layers": "all", "form": "norms"}, 170),
    }
    for name, (options, count) in attention.items():
        body = {"inputs": texts(count), "attention": options}
        yield _answered("/encode", f"attention, {name}, float", body)
        yield _answered("/encode", f"attention, {name}, base64", {**body, "encoding_format": "base64"})
        yield _answered("/encode", f"attention, {name}, safetensors", body, accept="application/vnd.safetensors")
    body = {"inputs": times(12, SENTENCE), "attention": {"layers": "all"}}
    yield _answered("/encode", "attention of long texts, gzip", body, accept_encoding="gzip")
    for name, level in (("decomposition", {}), ("decomposition, words", {"level": "word"})):
        body = {"inputs": texts(150), "attention": {"form": "decomposition", **level}}
        yield _answered("/encode", name, body)


def _encode_cases() -> Iterator[Case]:
    """The largest answers of `POST /encode` besides attention."""
    for wire in ("float", "base64", "int8", "uint8", "binary", "ubinary"):
        yield _answered("/encode", f"vectors, {wire}", {"inputs": texts(), "encoding_format": wire})
    for wire in ("float", "base64", "binary"):
        body = {"inputs": texts(1500), "output": "tokens", "encoding_format": wire}
        yield _answered("/encode", f"token vectors, {wire}", body)
    spans = {"inputs": times(90, SENTENCE), "spans": times(90, [[0, 7]] * 64), "dimensions": 8}
    yield _answered("/encode", "short texts", {"inputs": times(2048, "a")})
    yield _answered("/encode", "token ids", {"inputs": times(2000, [5] * 30)})
    yield _answered("/encode", "spans", spans)
    yield _answered("/encode", "windows", {"inputs": [repeated(SENTENCE, 1200)], "long_texts": "mean"})
    yield _answered("/encode", "head mask", {"inputs": texts(), "head_mask": [[0, 0, 0.5]]})
    yield _answered("/encode", "sparse", {"inputs": texts()}, "sparse")
    yield _answered("/encode", "sparse, base64", {"inputs": texts(), "encoding_format": "base64"}, "sparse")
    yield _answered("/encode", "token vectors, multi", {"inputs": texts()}, "multi_vector")
    yield _answered("/encode", "labels", {"inputs": texts()}, "classifier")
    yield _answered("/encode", "labels of tokens", {"inputs": texts()}, "token_classifier")
    yield _answered("/encode", "pairs", {"pairs": times(2048, ["the cat", "a dog"])}, "classifier")
    yield _answered("/encode", "pairs of ids", {"pairs": times(2048, [[5] * 9, [6] * 9])}, "classifier")
    for wire in ("float", "base64"):
        body = {
            "inputs": texts(1500),
            "outputs": ["dense", "sparse", "multi_vector"],
            "return_tokens": True,
            "encoding_format": wire,
        }
        yield _answered("/encode", f"three outputs, {wire}", body, "several_outputs")
    body = {"inputs": texts(1500), "role": "document", "return_tokens": True}
    yield _answered("/encode", "documents with their tokens", body, "multi_vector")
    yield _answered("/encode", "documents with their tokens, pooled", {**body, "pool_factor": 2}, "multi_vector")


def _label_cases() -> Iterator[Case]:
    """The largest answers that name labels."""
    for aggregation in ("none", "simple", "average"):
        body: dict[str, Any] = {"inputs": times(1500, [WORDS]), "aggregation": aggregation}
        yield _answered("/predict", f"entities, {aggregation}", {**body, "ignore_labels": []}, "token_classifier")
    body = {"inputs": repeated(WORDS, 1100), "ignore_labels": []}
    yield _answered("/predict", "entities of a long text", body, "token_classifier")
    yield _answered("/predict", "texts", {"inputs": times(2048, [WORDS])}, "classifier")
    yield _answered("/predict", "pairs", {"inputs": times(2048, ["a cat", "a dog"])}, "classifier")
    yield _answered("/classify", "texts", {"input": texts()}, "classifier")
    labels = {"inputs": times(1000, "a cat"), "candidate_labels": [f"label {n}" for n in range(1000)]}
    yield _answered("/zero-shot", "as many texts as labels", labels)
    body = {"inputs": "a cat", "candidate_labels": numbered("label", 2000)}
    yield _answered("/zero-shot", "labels of one text", body, "inference")


def _score_cases() -> Iterator[Case]:
    """The largest answers about pairs of texts."""
    weights = {"dense": 1, "sparse": 0.3, "multi_vector": 1}
    for route, query, documents in (("/rerank", "query", "texts"), ("/score", "queries", "documents")):
        body = {query: "a", documents: times(280, " ".join([SENTENCE] * 8)), "matches": True}
        yield _answered(route, "matches of a short query", body, "multi_vector")
        body = {query: WORDS, documents: texts(2000), "matches": True}
        yield _answered(route, "matches of a long query", body, "multi_vector")
        body = {query: WORDS, documents: texts(1500), "weights": weights}
        yield _answered(route, "weights of three outputs", body, "several_outputs")
    for model in ("reranker", "embedder", "multi_vector"):
        for route in ("/rerank", "/v1/rerank", "/v2/rerank"):
            yield _answered(route, f"documents, {model}", {"query": "a cat", "documents": texts(2000)}, model)
        for route in ("/score", "/v1/score"):
            body = {"queries": numbered("a", 1000), "documents": texts(1000)}
            yield _answered(route, f"queries and documents, {model}", body, model)
    body = {"query": "a", "documents": times(2000, {"text": "a dog"}), "return_documents": True}
    yield _answered("/rerank", "documents as objects", body, "reranker")
    body = {"query": "a", "texts": texts(1900), "return_text": True}
    yield _answered("/rerank", "texts, returned", body, "reranker")
    body = {"query": SENTENCE, "texts": texts(28), "attention": {"layers": "all"}}
    for encoding in ("identity", "gzip"):
        yield _answered("/rerank", f"attention, {encoding}", body, "reranker", accept_encoding=encoding)
    yield _answered("/similarity", "targets", {"source": "a", "targets": texts(2047)})
    pair: Mapping[str, Any] = {"a": start_of_long, "b": LONG}
    yield _answered("/explain", "long texts", pair)
    yield _answered("/explain", "long texts through the network", {**pair, "through": "network"})
    yield _answered("/explain", "largest pairs", {**pair, "top_pairs": 65_536, "level": "word"})
    yield _answered("/explain", "a classifier", {"a": start_of_long, "through": "network"}, "classifier")
    body = {"a": start_of_long, "at": 0, "through": "network"}
    yield _answered("/explain", "a token's label", body, "token_classifier")


def _compatible_cases() -> Iterator[Case]:
    """The largest answers of the routes that other servers have too, and of the tokenizer's."""
    yield _answered("/tokenize", "texts", {"inputs": texts()})
    yield _answered("/tokenize", "short texts", {"inputs": times(2048, "a")})
    yield _answered("/v1/multi-vector", "texts", {"input": texts(500)}, "multi_vector")
    for route in ("/v1/embeddings", "/embeddings"):
        for wire in ("float", "base64", "int8", "ubinary"):
            yield _answered(route, f"vectors, {wire}", {"input": texts(), "encoding_format": wire})
        yield _answered(route, "token ids", {"input": times(2000, [101, *[5] * 28, 102])})
    yield _answered("/embed", "texts", {"inputs": texts()})
    yield _answered("/embed_all", "texts", {"inputs": texts(1500)})
    yield _answered("/embed_sparse", "texts", {"inputs": texts()}, "sparse")
    yield _answered("/embed_sparse", "one of three", {"inputs": texts()}, "several_outputs")
    yield _answered("/", "texts", {"inputs": texts()})
    yield _answered("/", "texts, sparse", {"inputs": texts()}, "sparse")
    forms = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    yield _answered("/v2/embed", "every form", {"texts": texts(), "embedding_types": forms})
    infer, binary = "/v2/models/{model:path}/infer", {"parameters": {"binary_data_output": True}}
    yield _answered(infer, "texts", {"inputs": [tensor]})
    yield _answered(infer, "texts, binary answer", {"inputs": [tensor], **binary})


def answer_cases() -> Iterator[Case]:
    """The largest requests that are answered, by route and by what the answer holds."""
    for cases in (_attention_cases, _encode_cases, _label_cases, _score_cases, _compatible_cases):
        yield from cases()


def all_cases() -> Iterator[Case]:
    yield from answer_cases()
    yield from header_cases()
    yield from (Case(route, "no body") for route in sorted(WITHOUT_BODY))
    yield from field_cases()
