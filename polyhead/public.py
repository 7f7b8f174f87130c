"""The public names, imported from their modules."""

from export.errors import SourceError
from model.artifact import ArtifactError
from polyhead.engine import Engine, Tokens
from service.answers.explained import Explained
from service.answers.scores import Ranked
from service.errors import Invalid, ServiceError
from service.local.calls import Encoded

__all__ = [
    "ArtifactError",
    "Encoded",
    "Engine",
    "Explained",
    "Invalid",
    "Ranked",
    "ServiceError",
    "SourceError",
    "Tokens",
]
