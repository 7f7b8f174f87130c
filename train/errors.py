"""Why a training run does not begin, or ends early.

TrainError
├── DataError     a file of texts, pairs or labels cannot be used; names file and line
├── RunError      the run cannot begin or go on: its folder, its settings
└── Diverged      the loss is no number any more
"""

from export.errors import ExportError


class TrainError(ExportError):
    """Ends a run; the message says what it expected, found, and suggests."""


class DataError(TrainError):
    """A file of texts, pairs or labels cannot be used."""


class RunError(TrainError):
    """The run cannot begin, or go on where an earlier one stopped."""


class Diverged(TrainError):
    """The loss is no number any more."""
