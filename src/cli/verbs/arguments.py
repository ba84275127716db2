"""What the declarations of verbs share: how their flags are read, and what main() passes in addition to arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature, signature
from typing import Any, NoReturn, get_type_hints

import typer


@dataclass(frozen=True)
class Invocation:
    """The object of Typer's context.

    Attributes:
        overrides: words of the command line that set options of the deployment.
        commands: reads the declarations of all verbs, by name; for verbs that describe the others.
    """

    overrides: Sequence[str]
    commands: Callable[[], Mapping[str, Any]]


def overrides(context: typer.Context) -> Sequence[str]:
    invocation: Invocation = context.obj
    return invocation.overrides


def files_of(file: str | None, overlays: Sequence[str] | None) -> list[str]:
    return [*([file] if file is not None else []), *(overlays or [])]


def deployment_of(file: str | None, overlays: Sequence[str] | None, overrides: Sequence[str]) -> list[str]:
    """The files of a deployment, weakest first: deploy.yaml in the current folder if the command line names none."""
    from ..default_file import default_files

    return files_of(file, overlays) or default_files(overrides)


def expanded(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb as Typer reads it: the fields of its parameter `flags` take the place of this parameter."""
    hints = get_type_hints(verb, include_extras=True)
    record = hints["flags"]
    types, parameters = get_type_hints(record, include_extras=True), []
    for parameter in signature(verb).parameters.values():
        found = [(parameter.name, hints[parameter.name], parameter.default)]
        if parameter.name == "flags":
            found = [(each.name, types[each.name], each.default) for each in fields(record)]
        for name, annotation, default in found:
            default = Parameter.empty if default is MISSING else default
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

    def call(**given: Any) -> None:
        flags = record(**{each.name: given.pop(each.name) for each in fields(record)})
        verb(**given, flags=flags)

    parameters.sort(key=lambda each: each.default is not Parameter.empty)  # required ones first
    call.__doc__ = verb.__doc__
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def end(code: int) -> NoReturn:
    raise typer.Exit(code)
