"""Classes that the deployment refers to by import path: imported in the engine's process, before weights are loaded.

Python searches them as any module: installed packages, PYTHONPATH, and the folder that the engine was started in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..config import DeploymentError
from ..config.exit_codes import EXIT_INVALID_CONFIGURATION
from ..config.json_schema import Violation, violations
from ..config.resolve.import_path import ImportPathError, error_text, import_object

PlaceOf = Callable[[str], str]


class PluginError(DeploymentError):
    """Code that an option names cannot be used."""

    exit_code = EXIT_INVALID_CONFIGURATION


@contextlib.contextmanager
def named_by(option: str, place: str = "") -> Iterator[None]:
    """Put the option, and the place where it was written, at the start of PluginError messages."""
    try:
        yield
    except PluginError as error:
        raise PluginError(f"`{option}`{f' ({place})' if place else ''}: {error}") from error


def import_named(path: str) -> Any:
    """The object that `package.module:Name` refers to. Raises PluginError."""
    try:
        return import_object(path)
    except ImportPathError as error:
        raise PluginError(str(error)) from error


def import_class(path: str, members: Collection[str]) -> Any:
    """The class that `path` refers to. Raises PluginError if it is not a class or lacks one of `members`."""
    found = import_named(path)
    if not isinstance(found, type):
        raise PluginError(f"{path}: not a class")
    check_members(path, found, members)
    return found


def check_members(path: str, found: type, members: Collection[str]) -> None:
    """Raises PluginError if a class lacks one of `members`."""
    if missing := [member for member in members if not hasattr(found, member)]:
        raise PluginError(f"{path}: the class has no {', '.join(missing)}")


def no_place(path: str) -> str:
    """Place of settings that no file contains."""
    return ""


def check_settings(path: str, found: Any, settings: Mapping[str, Any], place_of: PlaceOf) -> None:
    """Raises PluginError with every violation of the class's `settings_schema`, a JSON Schema; without one, any do.

    place_of: a dotted path below the settings of all classes -> where its value was written.
    """
    schema = getattr(found, "settings_schema", None)
    if schema is None:
        return
    try:
        violated = violations(schema, settings)
    except Exception as error:  # of jsonschema, for what is not a schema
        raise PluginError(f"{path}: `settings_schema` is not a JSON Schema: {error_text(error)}") from error
    if violated:
        raise PluginError("\n".join(_violation_text(path, violation, place_of) for violation in violated))


def _violation_text(path: str, violation: Violation, place_of: PlaceOf) -> str:
    where = violation.path(path)
    said = {"unknown key": "no such key", "missing key": "missing"}.get(violation.kind, "not allowed")
    allowed = violation.allowed if violation.kind == "unknown key" else f"allowed: {violation.allowed}"
    place = place_of(where)
    return f"{where}: {said}; {allowed}" + (f" ({place})" if place else "")


def make(path: str, found: Any, /, *args: Any, **kwargs: Any) -> Any:
    """An instance of an imported class, whose settings may have any name. Raises PluginError if it cannot be made."""
    try:
        return found(*args, **kwargs)
    except Exception as error:
        raise PluginError(f"{path}: cannot be made: {error_text(error)}") from error
