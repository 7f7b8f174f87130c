"""Why an export ends without an artifact.

ExportError
├── SourceError          the weights cannot be found, reached, or trusted
├── UnsupportedModel     found, but not a network this version can build whole
├── OutputExists         the output directory is already there
└── VerificationError    exported, but not what was asked for
    ├── FusionError      attention is not fused where it must be
    ├── ParityError      the graph computes something other than its source
    └── QualityError     a lower precision costs more than is allowed
"""


class ExportError(Exception):
    """Ends an export; the message says what to expect, what was found and what to do next."""


class SourceError(ExportError):
    """The weights cannot be found, reached, or trusted."""


class UnsupportedModel(ExportError):
    """The checkpoint is of a kind that this version cannot build whole."""


class OutputExists(ExportError):
    """The output directory is already there."""


class VerificationError(ExportError):
    """The exported graph is not the requested one."""


class FusionError(VerificationError):
    """Attention is not fused where it must be."""


class ParityError(VerificationError):
    """The graph computes something other than its source."""


class QualityError(VerificationError):
    """A lower precision costs more than is allowed."""


def with_extra(error: ModuleNotFoundError) -> str:
    """A package that is not installed, and the extra that brings it."""
    return f"{error}: pip install 'polyhead[{'cpu' if error.name == 'onnxruntime' else 'export'}]'"


def one_line(error: BaseException) -> str:
    """Why a command failed, in one line; for an unexpected error also how to see its traceback."""
    said = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError):
        return with_extra(error)
    if said and isinstance(error, ExportError | OSError):
        return said
    return f"{type(error).__name__}: {said} (--debug shows where)"
