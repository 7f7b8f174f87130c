"""`POST /encode`, and what asks the same model about single texts: `POST /explain` and `POST /tokenize`."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from service.answers.answer import describe_item
from service.answers.packing import SAFETENSORS_LAYOUT, serialize_in_pieces
from service.context import context_of
from service.errors import DeadlineExceeded, NotFound, WrongTask
from service.http.response import JSON, SAFETENSORS, compress, prefers_safetensors, respond
from service.http.route import Route, answer_document
from service.observability.stages import StageTimer
from service.operations.encode import check_tokens, encode
from service.operations.explain import explain
from service.requests.explain import ExplainAnswer, ExplainedScores, ExplainRequest
from service.requests.plan import with_prompt
from service.requests.schemas import EncodeAnswer, EncodeRequest, TokenizeAnswer, TokenizeRequest
from service.services import services_of
from service.tokenization.inputs import read_inputs, refuse_long_texts

ENCODE_EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "embeddings": [[0.0312, -0.0519, 0.0447]],
    "usage": {"tokens": 7},
    "items": [{"tokens": 7, "truncated": False}],
}
GZIP_HEADER = {
    "Content-Encoding": {
        "description": "`gzip` for large attention in JSON numbers, where `Accept-Encoding` allows it",
        "schema": {"type": "string"},
    }
}


async def answer_encode(request: Request, body: EncodeRequest) -> Response:
    """One embedding an input, in their order; attention weights if they are asked for."""
    context = context_of(request.scope)
    wants_tensors = prefers_safetensors(context.headers.get(b"accept"))
    pieces = await encode(services_of(request), context, body, as_safetensors=wants_tensors)
    if wants_tensors:
        return respond(pieces, SAFETENSORS)
    if body.attention is None or body.encoding_format == "base64":
        return respond(pieces, JSON)
    compressed, headers = await compress(pieces, context.headers.get(b"accept-encoding"))
    return respond(compressed, JSON, headers)


ENCODE_ANSWER = answer_document(EncodeAnswer, ENCODE_EXAMPLE, GZIP_HEADER)
ENCODE_ANSWER["content"][SAFETENSORS] = {
    "schema": {"type": "string", "format": "binary", "description": SAFETENSORS_LAYOUT}
}


EXPLAIN_EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "through": "pooling",
    "similarity": 0.80715,
    "contributions": [[0.13314, 0.02730, -0.01989], [0.02936, 0.33333, 0.01706], [-0.01580, 0.02892, 0.27373]],
    "a": {
        "tokens": ["[CLS]", "hello", "[SEP]"],
        "offsets": [[0, 0], [0, 5], [0, 0]],
        "saliency": [0.78302, 0.03669, 0.18029],
        "truncated": False,
    },
    "b": {
        "tokens": ["[CLS]", "hi", "[SEP]"],
        "offsets": [[0, 0], [0, 2], [0, 0]],
        "saliency": [0.78970, 0.02827, 0.18203],
        "truncated": False,
    },
    "usage": {"tokens": 6},
}


async def answer_explain(request: Request, body: ExplainRequest) -> Response:
    """The similarity of two texts as a sum over pairs of tokens, or a classifier's logits as a sum over tokens."""
    return respond(await explain(services_of(request), context_of(request.scope), body), JSON)


FLOATS_OF_TOKEN = 16  # that writing an id, a token and its place costs as much as
TOKENIZE_EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "items": [
        {
            "input_ids": [101, 7592, 102],
            "tokens": ["[CLS]", "hello", "[SEP]"],
            "offsets": [[0, 0], [0, 5], [0, 0]],
            "truncated": False,
        }
    ],
    "usage": {"tokens": 3},
}


async def answer_tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids, tokens and their places in the text, special tokens included."""
    services, context = services_of(request), context_of(request.scope)
    runner = services.runner()
    inputs = read_inputs(body.inputs, max_texts=services.settings.max_texts)
    prompt, inputs = with_prompt(runner.manifest.defaults, inputs, name=body.prompt_name, text=body.prompt)
    refuse_long_texts(inputs, services.settings.max_text_characters)
    deadline = context.deadline(services.settings.request_timeout)
    with StageTimer(services.model.metrics, "tokenize"):
        tokenized = await runner.tokenize(inputs, truncate=body.truncate, deadline=deadline)
    lengths = [len(item.input_ids) for item in tokenized]
    check_tokens(lengths, services.settings.max_request_tokens)
    items = []
    for item in tokenized:
        described = {**describe_item(item), "tokens": runner.tokenizer.tokens(item)}
        items.append({"input_ids": item.input_ids, **described, "offsets": item.offsets})
        await asyncio.sleep(0)  # describing a thousand tokens takes 0.6 ms; lets other requests run in between
    usage = {"tokens": sum(lengths)}
    answer = {"model": runner.name, "items": items, "usage": usage, **prompt.document()}
    pieces = await serialize_in_pieces(answer, floats=FLOATS_OF_TOKEN * usage["tokens"])
    context.hold_answer(services.model.answers, sum(map(len, pieces)))
    context.texts, context.tokens = len(tokenized), usage["tokens"]
    context.truncated = sum(item.truncated for item in tokenized)
    return respond(pieces, JSON)


ROUTES = (
    Route("POST", "/encode", answer_encode, is_queued=True, summary="Encode texts", answer=ENCODE_ANSWER),
    Route(
        "POST",
        "/explain",
        answer_explain,
        is_queued=True,
        summary="Explain the similarity of two texts",
        answer=answer_document(ExplainAnswer | ExplainedScores, EXPLAIN_EXAMPLE),
        raises=(NotFound, WrongTask),
    ),
    Route(
        "POST",
        "/tokenize",
        answer_tokenize,
        summary="Tokenise texts",
        answer=answer_document(TokenizeAnswer, TOKENIZE_EXAMPLE),
        raises=(DeadlineExceeded,),
    ),
)
