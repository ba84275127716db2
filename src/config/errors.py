"""Errors of reading a deployment.

DeploymentError
  ConfigError        the configuration is invalid; has every Diagnostic of the run
  ModelFilesError    the model's files are missing, damaged or not supported
    ModelNotLocal    the model is a hub id that is not on this machine
"""

from __future__ import annotations

from collections.abc import Sequence

from .diagnostics import Diagnostic
from .exit_codes import EXIT_FAILED, EXIT_INVALID_CONFIGURATION, EXIT_MODEL_FILES


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


class ModelFilesError(DeploymentError):
    """`code` is the page of `engine explain`."""

    exit_code = EXIT_MODEL_FILES

    def __init__(self, message: str, *, code: str = "M302") -> None:
        super().__init__(message)
        self.code = code


class ModelNotLocal(ModelFilesError):
    """`repository` has to be downloaded first."""

    def __init__(self, repository: str, place: str) -> None:
        super().__init__(f"{repository}: not on this machine (looked in {place})", code="M301")
        self.repository = repository
