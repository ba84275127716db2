"""Classes that the deployment names by import path: imported in the engine's process, before anything is loaded.

Found as Python finds any module: installed, on PYTHONPATH, or in the folder that the engine was started in.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterator
from typing import Any

from ..config import DeploymentError
from ..config.errors import EXIT_INVALID_CONFIGURATION
from ..config.resolve.import_path import split_import_path


class PluginError(DeploymentError):
    """Code that an option names cannot be used."""

    exit_code = EXIT_INVALID_CONFIGURATION


@contextlib.contextmanager
def named_by(option: str) -> Iterator[None]:
    """Put the option before what is said of the code that it names."""
    try:
        yield
    except PluginError as error:
        raise PluginError(f"`{option}`: {error}") from error


def import_named(path: str) -> Any:
    """What `package.module:Name` names. Raises PluginError that says what is missing."""
    parts = split_import_path(path)
    if parts is None:
        raise PluginError(f"{path}: no import path; write package.module:Class")
    module_name, name = parts
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is read
        raise PluginError(f"{path}: {module_name} cannot be imported: {said(error)}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise PluginError(f"{path}: {module_name} has no {name}") from None


def import_class(path: str, members: Collection[str]) -> Any:
    """The class that `path` names. Raises PluginError if it is none or lacks one of its `members`."""
    found = import_named(path)
    if not isinstance(found, type):
        raise PluginError(f"{path}: not a class")
    if missing := [member for member in members if not hasattr(found, member)]:
        raise PluginError(f"{path}: the class has no {', '.join(missing)}")
    return found


def make(path: str, found: Any, *args: Any, **kwargs: Any) -> Any:
    """An instance of a class that was imported. Raises PluginError if it cannot be made."""
    try:
        return found(*args, **kwargs)
    except Exception as error:
        raise PluginError(f"{path}: cannot be made: {said(error)}") from error


def said(error: Exception) -> str:
    """What a failure of such code is, in words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
