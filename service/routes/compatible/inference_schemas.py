"""The Open Inference Protocol's JSON, as far as a model of texts and embeddings uses it."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from service.requests.schemas import EncodeRequest, PromptText
from service.wire import AnswerModel, RequestModel

Size = Annotated[int, Field(ge=0)]


class InputParameters(RequestModel):
    """What a tensor's bytes need."""

    binary_data_size: Size | None = None
    """bytes of this tensor behind the JSON; absent where its data are in the JSON"""


class InferenceInput(RequestModel):
    """The texts."""

    name: str
    """any: there is one input"""
    datatype: Literal["BYTES"]
    shape: Annotated[list[Size], Field(min_length=1, max_length=2)]
    """[texts], or [texts, 1]"""
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = None
    """texts, nested as `shape` says or not; absent where they are binary"""


class OutputParameters(RequestModel):
    """How a tensor is written."""

    binary_data: bool | None = None
    """behind the JSON, as bytes, rather than in it"""


class WantedOutput(RequestModel):
    """A tensor to answer with."""

    name: Literal["embeddings"]
    parameters: OutputParameters = OutputParameters()


class InferenceParameters(RequestModel):
    """Those of `POST /encode`'s fields that one tensor can answer, and how tensors are written."""

    binary_data_output: bool = False
    """write every tensor behind the JSON, unless `outputs` says otherwise"""
    normalize: bool = True
    """divide each vector by its length, after `dimensions`"""
    truncate: bool = True
    """cut texts that are longer than the model takes, and count them in `X-Truncated-Inputs`; false refuses them"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """keep the first so many dimensions"""
    prompt_name: str | None = None
    """one of the model's prompts, put before every text; null takes the model's default, where it has one"""
    prompt: PromptText | None = None
    """a prompt of your own instead; empty for none"""


class InferenceRequest(RequestModel):
    """What `POST /v2/models/{model}/infer` takes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["The cat sat on the mat."]}]}
            ]
        }
    )

    id: str | None = None
    """comes back in the answer"""
    parameters: InferenceParameters = InferenceParameters()
    inputs: Annotated[list[InferenceInput], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[WantedOutput], Field(max_length=1)] | None = None
    """null or none: all, which is one"""

    @property
    def wants_bytes(self) -> bool:
        """Whether embeddings are written behind the JSON."""
        wanted = self.outputs[0].parameters.binary_data if self.outputs else None
        return self.parameters.binary_data_output if wanted is None else wanted

    def to_encode(self, texts: list[str]) -> EncodeRequest:
        """The same as a request to encode."""
        wanted = self.parameters
        return EncodeRequest(
            inputs=texts,
            normalize=wanted.normalize,
            truncate=wanted.truncate,
            dimensions=wanted.dimensions,
            prompt_name=wanted.prompt_name,
            prompt=wanted.prompt,
        )


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
    """row by row; absent where they are binary"""
    parameters: BinaryParameters | None = None
    """only where they are"""


class InferenceAnswer(AnswerModel):
    """What `POST /v2/models/{model}/infer` answers."""

    model_name: str
    model_version: str
    id: str | None = None
    """the request's, where it had one"""
    outputs: list[InferenceOutput]


class TensorMetadata(AnswerModel):
    """One of the model's tensors."""

    name: str
    datatype: str
    shape: list[int]
    """-1 is any size"""


class ModelMetadata(AnswerModel):
    """What goes in and what comes out."""

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
