"""The public names, imported from their modules; the package lists them."""

# ruff: noqa: PLC0414 - to a type checker a name is public that is imported as itself

from export.errors import SourceError as SourceError
from model.artifact import ArtifactError as ArtifactError
from polyhead.engine import Engine as Engine
from polyhead.engine import Tokens as Tokens
from service.answers.explained import Explained as Explained
from service.answers.explained import ExplainedScore as ExplainedScore
from service.answers.scores import Ranked as Ranked
from service.errors import InferenceFailed as InferenceFailed
from service.errors import Invalid as Invalid
from service.errors import NotReady as NotReady
from service.errors import ServiceError as ServiceError
from service.errors import TooLarge as TooLarge
from service.errors import WrongTask as WrongTask
from service.local.calls import Encoded as Encoded
