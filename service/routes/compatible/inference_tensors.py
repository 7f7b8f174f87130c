"""Tensors of the Open Inference Protocol: in the JSON, or behind it as Triton's binary tensor extension has them.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import math
from functools import partial
from typing import Any

import orjson

from service.answers.serialize import serialize
from service.errors import Invalid, MalformedBody, TooLarge
from service.http.body import validate
from service.http.body_structure import check_structure
from service.inference.backend import Float32Array
from service.operations.encode import EncodeResult, offload
from service.routes.compatible.inference_schemas import InferenceInput, InferenceRequest
from service.settings import Settings

HEADER_LENGTH = b"inference-header-content-length"
OUTPUT = "embeddings"
DATA = "inputs.0.data"  # the name of the texts, for errors
BINARY_LAYOUT = """\
JSON, then one tensor's bytes: a BYTES tensor is for each text its length in 4 bytes, little-endian, and its UTF-8.
`Inference-Header-Content-Length` is the length of the JSON, `binary_data_size` that of the bytes."""

_LENGTH_BYTES = 4


async def read_request(
    raw: bytes, header_length: bytes | None, settings: Settings
) -> tuple[InferenceRequest, list[str]]:
    """The request and its texts.

    Raises:
        ServiceError: no such request, or its tensor is not what it says it is.
    """
    size = _json_size(raw, header_length)
    await check_structure(raw[:size], max_texts=settings.max_texts, max_tokens=settings.max_request_tokens)
    request = validate(InferenceRequest, raw[:size])
    (tensor,) = request.inputs
    texts = _texts_behind(raw[size:], tensor, settings.max_texts) if size < len(raw) else _texts_in(tensor)
    if len(texts) > settings.max_texts:
        raise TooLarge(f"inputs.0: more than {settings.max_texts} texts; send fewer a request", param="inputs.0")
    if math.prod(tensor.shape) != len(texts) or tensor.shape[1:] not in ([], [1]):
        raise Invalid(f"inputs.0.shape: expected [{len(texts)}], the number of texts", param="inputs.0.shape")
    return request, texts


async def write_answer(
    request: InferenceRequest, encoded: EncodeResult, model: str, version: str
) -> tuple[bytes, int | None]:
    """The answer's body, and the length of its JSON where bytes stand behind it."""
    embeddings: Float32Array = encoded.answer["embeddings"]
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": embeddings.shape}
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": [output]}
    if request.id is not None:
        answer["id"] = request.id
    if request.wants_bytes:
        output["parameters"] = {"binary_data_size": embeddings.nbytes}
        header = orjson.dumps(answer)
        return await offload(partial(_joined, header, embeddings), embeddings.size), len(header)
    output["data"] = embeddings.reshape(-1)
    return await serialize(answer, floats=encoded.sizes.floats), None


def _joined(header: bytes, embeddings: Float32Array) -> bytes:
    return header + embeddings.astype("<f4", copy=False).tobytes()


def _json_size(raw: bytes, header_length: bytes | None) -> int:
    if header_length is None:
        return len(raw)
    if not header_length.isdigit() or len(header_length) > 9 or int(header_length) > len(raw):
        raise MalformedBody("Inference-Header-Content-Length: expected the length of the JSON, within the body")
    return int(header_length)


def _texts_in(tensor: InferenceInput) -> list[str]:
    """The texts of a tensor in JSON, one level of nesting removed."""
    if tensor.data is None:
        raise Invalid("inputs.0.data: expected texts, here or behind the JSON", param=DATA)
    nested = [item if isinstance(item, list) else [item] for item in tensor.data]
    texts = [text for row in nested for text in row]
    if not all(isinstance(text, str) for text in texts):
        raise Invalid("inputs.0.data: expected texts", param=DATA)
    return texts


def _texts_behind(data: bytes, tensor: InferenceInput, most: int) -> list[str]:
    """The texts of a tensor's bytes; one more than a request may have is enough to refuse it."""
    if tensor.data is not None or tensor.parameters.binary_data_size != len(data):
        raise Invalid(f"inputs.0: {len(data)} bytes stand behind the JSON, binary_data_size differs", param="inputs.0")
    texts: list[str] = []
    at = 0
    while at < len(data) and len(texts) <= most:
        start = at + _LENGTH_BYTES
        end = at = start + int.from_bytes(data[at:start], "little")
        if end > len(data):
            raise Invalid("inputs.0: a text's length points behind the tensor's end", param="inputs.0")
        texts.append(_text(data[start:end]))
    return texts


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid("inputs.0: a text is not UTF-8", param="inputs.0") from None
