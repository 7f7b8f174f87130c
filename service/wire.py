"""How bodies are modelled: requests strictly, answers for their description; and what they are sent as."""

from pydantic import BaseModel, ConfigDict

Piece = bytes | memoryview
"""Of an answer's body; a memoryview is of single bytes, and shares an array's memory."""


class RequestModel(BaseModel):
    """A request body: no value is coerced, no field is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class AnswerModel(BaseModel):
    """An answer's body; describes it for OpenAPI, answers are not built through it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class OpenAnswerModel(BaseModel):
    """An answer's body that may gain fields."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
