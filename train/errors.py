"""Why a training run does not begin, or ends early."""

from export.errors import ExportError


class DataError(ExportError):
    """A file of texts, pairs or labels cannot be used; the message names file and line."""


class RunError(ExportError):
    """The run cannot begin or go on: its folder, its settings."""


class Diverged(ExportError):
    """The loss is no number any more."""
