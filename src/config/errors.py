"""Errors of reading a deployment.

DeploymentError
  ConfigError        the configuration is invalid; has every Diagnostic of the run
  ModelFilesError    the model's files are missing, damaged or not supported
    ModelNotLocal    the model is a hub id that is not on this machine
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .diagnostics import Diagnostic
from .exit_codes import EXIT_FAILED, EXIT_INVALID_CONFIGURATION, EXIT_MODEL_FILES

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MAX_MESSAGE = 2000


class DeploymentError(Exception):
    """`exit_code` is the exit code of the command."""

    exit_code = EXIT_FAILED


class ConfigError(DeploymentError):
    """All findings about a deployment, warnings included, ordered by place."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(diagnostic.as_text() for diagnostic in self.diagnostics))

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """78; 2 or 4 if all errors are of the command line, or all of this machine."""
        codes = {diagnostic.exit_code for diagnostic in self.diagnostics if diagnostic.is_error}
        return codes.pop() if len(codes) == 1 else EXIT_INVALID_CONFIGURATION


def printable(message: str) -> str:
    """A message that quotes what somebody else wrote: control characters escaped, and not endless."""
    clean = _UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], message)
    return clean if len(clean) <= _MAX_MESSAGE else f"{clean[:_MAX_MESSAGE]}..."


class ModelFilesError(DeploymentError):
    """`code` is the page of `engine explain`; `option` names the files that it is about."""

    exit_code = EXIT_MODEL_FILES
    option = "model.model"

    def __init__(self, message: str, *, code: str = "M302") -> None:
        super().__init__(printable(message))
        self.code = code

    @classmethod
    def unreadable(cls, path: object, error: OSError) -> ModelFilesError:
        """M302 for a file that is missing, M309 for what is there and cannot be read as a file."""
        code = "M302" if isinstance(error, FileNotFoundError) else "M309"
        return cls(f"{path}: cannot be read: {error.strerror or error}", code=code)


class ModelNotLocal(ModelFilesError):
    """`repository` has to be downloaded first."""

    def __init__(self, repository: str, place: str) -> None:
        super().__init__(f"{repository}: not on this machine (looked in {place})", code="M301")
        self.repository = repository
