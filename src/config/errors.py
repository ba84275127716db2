"""Errors of reading a deployment.

DeploymentError
  ConfigError        what was written is wrong; holds every Diagnostic of the run
  ModelFilesError    the model's files are missing, damaged or of a kind that this build does not run
    ModelNotLocal    the model is a hub id that is not on this machine yet
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .diagnostics import Diagnostic

EXIT_FAILED = 1
EXIT_WRONG_COMMAND_LINE = 2
EXIT_MODEL_FILES = 3
EXIT_ENVIRONMENT = 4
EXIT_INVALID_CONFIGURATION = 78


class DeploymentError(Exception):
    """`exit_code` is what the command ends with."""

    exit_code = EXIT_FAILED


class ConfigError(DeploymentError):
    """Everything that is wrong with a deployment, warnings included, in the order of its places."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(diagnostic.as_text() for diagnostic in self.diagnostics))

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """78; 2 or 4 if nothing but the command line or nothing but this machine is at fault."""
        codes = {diagnostic.exit_code for diagnostic in self.diagnostics if diagnostic.is_error}
        return codes.pop() if len(codes) == 1 else EXIT_INVALID_CONFIGURATION


class ModelFilesError(DeploymentError):
    """`code` names the page of `engine explain`."""

    exit_code = EXIT_MODEL_FILES

    def __init__(self, message: str, *, code: str = "M302") -> None:
        super().__init__(message)
        self.code = code


class ModelNotLocal(ModelFilesError):
    """`repository` has to be downloaded first."""

    def __init__(self, repository: str, place: str) -> None:
        super().__init__(f"{repository}: not on this machine (looked in {place})", code="M301")
        self.repository = repository
