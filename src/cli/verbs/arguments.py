"""What the declarations of verbs share: common arguments, and what main() passes to a verb besides its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

import typer

File = Annotated[str | None, typer.Argument(metavar="FILE", help="The deployment; - reads standard input.")]
Overlays = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", metavar="FILE", help="A file that overrides FILE; may be repeated, later ones win."),
]
TextOrJson = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")]
YamlOrJson = Annotated[Literal["yaml", "json"], typer.Option("--output", "-o", help="Output format.")]
TextJsonOrMarkdown = Annotated[Literal["text", "json", "md"], typer.Option("--output", "-o", help="Output format.")]
Url = Annotated[str, typer.Option("--url", help="Base URL of the server.")]
ModelName = Annotated[
    str | None, typer.Option("--model-name", help="Model to ask; by default the first one that the server lists.")
]
Key = Annotated[str | None, typer.Option("--api-key", help="Key for the server; by default OPENAI_API_KEY.")]


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


def end(code: int) -> NoReturn:
    raise typer.Exit(code)
