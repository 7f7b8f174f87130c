"""The public names, imported from their modules."""

from model.artifact import ArtifactError
from service.answers.explained import Explained
from service.answers.scores import Ranked
from service.engine import Engine
from service.errors import ServiceError
from service.local.calls import Encoded

__all__ = ["ArtifactError", "Encoded", "Engine", "Explained", "Ranked", "ServiceError"]
