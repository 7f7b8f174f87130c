"""The Open Inference Protocol (KServe V2) over REST, for KServe, Knative and Triton's clients.

One input tensor of texts in, one tensor of embeddings out; tensors are JSON, or bytes behind the JSON where the client
uses Triton's binary tensor extension. https://github.com/kserve/open-inference-protocol
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.answers.packing import bytes_of, serialize_in_pieces
from service.context import Share, context_of
from service.errors import Invalid, MalformedBody, ModelNotFound, NotReady, TooLarge, UnsupportedMedia, WrongTask
from service.http.body import check_accept, check_structure, read_body
from service.http.response import JSON, respond
from service.http.route import Route, answer_document
from service.inference.backend import Float32Array
from service.machine import own_version
from service.observability.stages import StageTimer
from service.operations.encode import EncodeResult, hold_written
from service.requests.schemas import EncodeRequest, PromptOptions, example
from service.routes.adapter import CUT_HEADER, check_model, model_in_path, require_task, run_for, truncation_header
from service.services import refuse_early, services_of
from service.settings import Settings
from service.tokenization.inputs import InputNames
from service.wire import INFERENCE_PROTOCOL, AnswerModel, Piece, RequestModel, validate

TAG = "Open Inference Protocol"
MODEL_VERSION = "1"
HEADER_LENGTH = b"inference-header-content-length"
OUTPUT = "embeddings"
DATA = "inputs.0.data"  # the name of the texts, for errors
BINARY = "application/octet-stream"  # JSON followed by binary tensors

BINARY_LAYOUT = """\
JSON, then one tensor's bytes, little-endian: a BYTES tensor is for each text its length in 4 bytes and its UTF-8, an
FP32 tensor its numbers, row by row.
`Inference-Header-Content-Length` is the length of the JSON, `binary_data_size` the length of the bytes."""

Size = Annotated[int, Field(ge=0)]


class InputParameters(RequestModel, extra="ignore"):
    """What a tensor's bytes need. An open map, as the protocol has it."""

    binary_data_size: Size | None = None
    """bytes of this tensor behind the JSON; absent where its data are in the JSON"""


class InferenceInput(RequestModel, extra="ignore"):
    """The texts."""

    name: str
    """any: there is one input"""
    datatype: Literal["BYTES"]
    shape: Annotated[list[Size], Field(min_length=1, max_length=2, fail_fast=True)]
    """[texts], or [texts, 1]"""
    parameters: InputParameters | None = None
    data: list[Any] | None = None
    """texts, nested as `shape` says or not; absent if they are binary"""


class OutputParameters(RequestModel, extra="ignore"):
    """How a tensor is written. An open map, as the protocol has it."""

    binary_data: bool | None = None
    """behind the JSON, as bytes, rather than in it"""


class WantedOutput(RequestModel, extra="ignore"):
    """A tensor to answer with."""

    name: Literal["embeddings"]
    parameters: OutputParameters | None = None


class InferenceParameters(PromptOptions, extra="ignore"):
    """Those of `POST /encode`'s fields that one tensor can answer, and how tensors are written. An open map."""

    binary_data_output: bool | None = False
    """write every tensor behind the JSON, unless `outputs` says otherwise"""
    normalize: bool | None = None
    """divide each vector by its length, after `dimensions`; null does unless the model is made for dot products"""
    truncate: bool | None = True
    """cut texts that are longer than the model takes, and count them in `X-Truncated-Inputs`; false refuses them"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """truncate vectors to N dimensions"""


class InferenceRequest(RequestModel, extra="ignore"):
    """What `POST /v2/models/{model}/infer` takes; other fields are ignored, as KServe's client sends `model_name`."""

    model_config = example(
        inputs=[{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["The cat sat on the mat."]}]
    )

    id: str | None = None
    """comes back in the answer"""
    parameters: InferenceParameters | None = None
    inputs: Annotated[list[InferenceInput], Field(min_length=1, max_length=1, fail_fast=True)]
    outputs: Annotated[list[WantedOutput], Field(max_length=1, fail_fast=True)] | None = None
    """null or none: all, which is one"""

    @property
    def wants_bytes(self) -> bool:
        """Whether embeddings are written behind the JSON."""
        of_output = self.outputs[0].parameters if self.outputs else None
        wanted = None if of_output is None else of_output.binary_data
        return bool(self.parameters and self.parameters.binary_data_output) if wanted is None else wanted

    def to_encode(self, texts: list[str]) -> EncodeRequest:
        """The same as a request to encode."""
        wanted = {} if self.parameters is None else self.parameters.model_dump(exclude={"binary_data_output"})
        return EncodeRequest(**{**wanted, "inputs": texts, "truncate": wanted.get("truncate") is not False})


class BinaryParameters(AnswerModel):
    """Where a tensor's bytes are."""

    binary_data_size: int


class InferenceOutput(AnswerModel):
    """The embeddings."""

    name: Literal["embeddings"]
    datatype: Literal["FP32"]
    shape: list[int]
    """[texts, dimensions]"""
    data: list[float] | None = None
    """row by row; absent if they are binary"""
    parameters: BinaryParameters | None = None
    """only if they are"""


class InferenceAnswer(AnswerModel):
    """What `POST /v2/models/{model}/infer` answers."""

    model_name: str
    model_version: str
    id: str | None = None
    """the request's, if it had one"""
    outputs: list[InferenceOutput]


class TensorMetadata(AnswerModel):
    """One of the model's tensors."""

    name: str
    datatype: str
    shape: list[int]
    """-1 is any size"""


class ModelMetadata(AnswerModel):
    """Inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(AnswerModel):
    """What answers here."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(AnswerModel):
    """The process lives."""

    live: Literal[True]


class ServerReady(AnswerModel):
    """The process takes traffic."""

    ready: Literal[True]


class ModelReady(AnswerModel):
    """The model takes traffic."""

    name: str
    ready: Literal[True]


MODEL_IN_PATH = model_in_path('may hold slashes; "/versions/1" may follow it')

REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        JSON: {"schema": InferenceRequest.model_json_schema(ref_template="#/components/schemas/{model}")},
        BINARY: {"schema": {"type": "string", "format": "binary", "description": BINARY_LAYOUT}},
    },
}

EXAMPLE = {
    "model_name": "sentence-transformers/all-MiniLM-L6-v2",
    "model_version": MODEL_VERSION,
    "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [1, 3], "data": [0.0312, -0.0519, 0.0447]}],
}

HEADERS = {
    **CUT_HEADER,
    HEADER_LENGTH.decode("ascii"): {"description": "bytes of JSON before tensors", "schema": {"type": "integer"}},
}

INFER_ANSWER = answer_document(InferenceAnswer, EXAMPLE, HEADERS)
INFER_ANSWER["content"][BINARY] = REQUEST_BODY["content"][BINARY]


async def answer_server(_request: Request) -> Response:
    """Name, version and extensions."""
    return _json({"name": "polyhead", "version": own_version(), "extensions": ["binary_tensor_data"]})


async def answer_live(request: Request) -> Response:
    """As `GET /healthz`."""
    services_of(request).readiness.check_alive()
    return _json({"live": True})


async def answer_ready(request: Request) -> Response:
    """As `GET /readyz`."""
    services_of(request).readiness.check_ready()
    return _json({"ready": True})


async def answer_model_ready(request: Request) -> Response:
    """As `GET /readyz`, for one model."""
    name = check_model(request, version=MODEL_VERSION)
    services_of(request).readiness.check_ready()
    return _json({"name": name, "ready": True})


async def answer_model(request: Request) -> Response:
    """Inputs and outputs."""
    name = check_model(request, version=MODEL_VERSION)
    require_task(request, "embedding")
    runner = services_of(request).runner()
    return _json(
        {
            "name": name,
            "versions": [MODEL_VERSION],
            "platform": f"{runner.runtime.engine}_onnx",
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, runner.config.embedding_size]}],
        }
    )


async def answer_infer(request: Request) -> Response:
    """One row of `embeddings` a text, in their order. It reads its body itself: binary tensors follow the JSON."""
    name = check_model(request, version=MODEL_VERSION)
    services, context = services_of(request), context_of(request.scope)
    given = context.headers
    require_task(request, "embedding")
    _check_media(given)
    refuse_early(services, context)
    with Share(services.body_budget) as share:
        raw = await read_body(request.receive, given, services.settings.max_body_bytes, share)
        with services.model.hold(share.held):
            inference, texts = await read_request(raw, given.get(HEADER_LENGTH), services.settings)
            encoded = await run_for(request, inference.to_encode(texts), names=InputNames(DATA))
    with StageTimer(services.model.metrics, "serialize"):
        pieces, media_type, headers = await _write_answer(inference, encoded, name)
    hold_written(services, context, encoded, pieces)
    return respond(pieces, media_type, headers | truncation_header(request))


def _check_media(headers: Mapping[bytes, bytes]) -> None:
    """Checks for JSON, with binary tensors behind it or not. Triton's client sends no type, which means JSON."""
    content_type = headers.get(b"content-type", JSON.encode()).partition(b";")[0].strip().lower().decode("latin-1")
    if content_type not in ((JSON, BINARY) if HEADER_LENGTH in headers else (JSON,)):
        raise UnsupportedMedia.at(
            "Content-Type",
            "expected application/json, or application/octet-stream with Inference-Header-Content-Length",
        )
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMedia.at("Content-Encoding", "the body must not be compressed")
    check_accept(headers, (JSON, BINARY))  # the request's `outputs` choose between the two


async def read_request(raw: bytes, length: bytes | None, settings: Settings) -> tuple[InferenceRequest, list[str]]:
    """The request and its texts; raises a ServiceError where a tensor is not what it says it is."""
    size = _json_size(raw, length)
    await check_structure(raw[:size], max_texts=settings.max_texts, max_tokens=settings.max_request_tokens)
    request = validate(InferenceRequest, raw[:size])
    (tensor,) = request.inputs
    texts = _texts_behind(raw[size:], tensor, settings.max_texts) if size < len(raw) else _texts_in(tensor)
    if len(texts) > settings.max_texts:
        raise TooLarge.at("inputs.0", f"more than {settings.max_texts} texts; send fewer a request")
    if math.prod(tensor.shape) != len(texts) or tensor.shape[1:] not in ([], [1]):
        raise Invalid.at("inputs.0.shape", f"expected [{len(texts)}], the number of texts")
    return request, texts


def _json_size(raw: bytes, header_length: bytes | None) -> int:
    if header_length is None:
        return len(raw)
    if not header_length.isdigit() or len(header_length) > 9 or int(header_length) > len(raw):
        raise MalformedBody("Inference-Header-Content-Length: expected the length of the JSON, within the body")
    return int(header_length)


def _texts_in(tensor: InferenceInput) -> list[str]:
    """The texts of a tensor in JSON, one level of nesting removed."""
    if tensor.data is None:
        raise Invalid.at(DATA, "expected texts, here or behind the JSON")
    texts = [text for item in tensor.data for text in (item if isinstance(item, list) else [item])]
    if not all(isinstance(text, str) for text in texts):
        raise Invalid.at(DATA, "expected texts")
    return texts


def _texts_behind(data: bytes, tensor: InferenceInput, most: int) -> list[str]:
    """The texts of a tensor's bytes; one more than a request may have is enough to refuse it."""
    size = None if tensor.parameters is None else tensor.parameters.binary_data_size
    if tensor.data is not None or size != len(data):
        raise Invalid.at("inputs.0", f"{len(data)} bytes follow the JSON, binary_data_size differs")
    texts: list[str] = []
    at = 0
    while at < len(data) and len(texts) <= most:
        start = at + 4  # the length's own bytes
        end = at = start + int.from_bytes(data[at:start], "little")
        if end > len(data):
            raise Invalid.at("inputs.0", "a text's length points behind the tensor's end")
        try:
            texts.append(data[start:end].decode())
        except UnicodeDecodeError:
            raise Invalid.at("inputs.0", "a text is not UTF-8") from None
    return texts


async def _write_answer(
    request: InferenceRequest, encoded: EncodeResult, model: str
) -> tuple[list[Piece], str, dict[str, str]]:
    """The answer's body in pieces, its media type, and its own headers."""
    embeddings: Float32Array = encoded.answer["embeddings"]
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": embeddings.shape}
    answer: dict[str, Any] = {"model_name": model, "model_version": MODEL_VERSION, "outputs": [output]}
    if request.id is not None:
        answer["id"] = request.id
    if request.wants_bytes:
        output["parameters"] = {"binary_data_size": embeddings.nbytes}
        header = orjson.dumps(answer)
        return [header, bytes_of(embeddings)], BINARY, {HEADER_LENGTH.decode("ascii"): str(len(header))}
    output["data"] = embeddings.reshape(-1)
    return await serialize_in_pieces(answer, floats=encoded.sizes.floats), JSON, {}


def _json(answer: dict[str, Any]) -> Response:
    return Response(orjson.dumps(answer), media_type=JSON)


_route = partial(Route, tag=TAG, error_shape=INFERENCE_PROTOCOL)
_get = partial(_route, "GET")
_probe = partial(_get, access="everyone", is_probe=True, raises=(NotReady,))
_of_model = partial(_get, raises=(NotReady, ModelNotFound), parameters=(MODEL_IN_PATH,))

ROUTES = (
    _get("/v2", answer_server, summary="The server and its extensions", answer=answer_document(ServerMetadata)),
    _probe("/v2/health/live", answer_live, summary="Does the process live?", answer=answer_document(ServerLive)),
    _probe("/v2/health/ready", answer_ready, summary="May traffic come?", answer=answer_document(ServerReady)),
    _route(
        "POST",
        "/v2/models/{model:path}/infer",
        answer_infer,
        is_queued=True,
        summary="Embeddings, as tensors",
        answer=INFER_ANSWER,
        raises=(WrongTask,),
        parameters=(MODEL_IN_PATH,),
        request_body=REQUEST_BODY,
    ),
    _of_model(
        "/v2/models/{model:path}/ready",
        answer_model_ready,
        summary="May requests to it come?",
        answer=answer_document(ModelReady),
    ),
    _of_model(
        "/v2/models/{model:path}",
        answer_model,
        summary="The model's tensors",
        answer=answer_document(ModelMetadata),
        raises=(NotReady, ModelNotFound, WrongTask),
    ),
)
