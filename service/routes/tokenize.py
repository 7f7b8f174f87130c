"""`POST /tokenize`: what the model would see of a text, without running it."""

import asyncio
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.answers.answer import describe_item
from service.context import context_of
from service.errors import DeadlineExceeded, Invalid
from service.http.media import JSON
from service.http.pieces import respond
from service.http.route import Route, answer_document
from service.operations.encode import check_tokens, timed
from service.requests.prompts import with_prompt
from service.requests.schemas import TokenizeAnswer, TokenizeRequest
from service.services import services_of
from service.tokenization.inputs import read_inputs, refuse_long_texts
from service.tokenization.tokenized import TokenizedInput

EXAMPLE = {
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
    runner = services.readiness.runner()
    inputs = read_inputs(body.inputs, max_texts=services.settings.max_texts)
    if inputs.texts is None:
        raise Invalid("inputs: expected a text or a list of texts", param="inputs")
    prompt, inputs = with_prompt(runner.manifest.defaults, inputs, name=body.prompt_name, text=body.prompt)
    refuse_long_texts(inputs, services.settings.max_text_characters)
    deadline = context.deadline(services.settings.request_timeout)
    with timed(services.metrics, "tokenize"):
        tokenized = await runner.tokenize(inputs, truncate=body.truncate, deadline=deadline)
    lengths = [len(item.input_ids) for item in tokenized]
    check_tokens(lengths, services.settings.max_request_tokens)
    items = []
    for item in tokenized:
        items.append(_describe(item, runner.tokenizer.tokens(item)))
        await asyncio.sleep(0)  # describing a thousand tokens takes 0.6 ms; lets other requests run in between
    usage = {"tokens": sum(lengths)}
    answer = {"model": runner.manifest.model, "items": items, "usage": usage}
    if prompt is not None:
        answer |= prompt.document()
    written = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    context.hold_answer(services.answer_budget, len(written))
    context.texts, context.tokens = len(tokenized), usage["tokens"]
    context.truncated = sum(item.truncated for item in tokenized)
    return respond([written], JSON)


def _describe(item: TokenizedInput, tokens: list[str]) -> dict[str, Any]:
    rest = {name: value for name, value in describe_item(item).items() if name != "tokens"}
    return {"input_ids": item.input_ids, "tokens": tokens, "offsets": item.offsets, **rest}


ROUTES = (
    Route(
        "POST",
        "/tokenize",
        answer_tokenize,
        summary="Tokenise texts",
        answer=answer_document(TokenizeAnswer, EXAMPLE),
        raises=(DeadlineExceeded,),
    ),
)
