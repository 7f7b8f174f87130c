"""How bodies are modelled: requests strictly, answers for their description."""

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """A request body: no value is coerced, no field is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class AnswerModel(BaseModel):
    """An answer's body; describes it for OpenAPI, answers are not built through it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class OpenAnswerModel(BaseModel):
    """An answer's body that may gain fields."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
