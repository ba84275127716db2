"""Types of arguments and flags that several verbs have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

File = Annotated[
    str | None, typer.Argument(metavar="FILE", help="The deployment, by default ./deploy.yaml; - reads standard input.")
]
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
