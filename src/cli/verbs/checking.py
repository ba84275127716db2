"""Verbs that check, show, plan, compare and explain deployments."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..flags.checking import ConfigFlags, PlanFlags
from ..flags.types import File, Overlays, TextJsonOrMarkdown, TextOrJson
from .arguments import Invocation, deployment_of, end, expanded, overrides


def validate(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Deployments, each checked separately; by default ./deploy.yaml."),
    ] = None,
    overlays: Overlays = None,
    output: Annotated[
        Literal["text", "json", "github", "sarif"], typer.Option("--output", "-o", help="Output format.")
    ] = "text",
    deny_warnings: Annotated[bool, typer.Option("--deny-warnings", help="Treat warnings as errors.")] = False,
) -> None:
    """Find all errors in deployments, without a model, a network or a GPU."""
    from ..validate import run

    given = overrides(context)
    if not files and not overlays:
        files = deployment_of(None, None, given)
    end(run(files or [], overlays or [], given, output=output, deny_warnings=deny_warnings))


@expanded
def config(context: typer.Context, file: File = None, overlays: Overlays = None, *, flags: ConfigFlags) -> None:
    """Show the effective configuration of a deployment."""
    from ..config import run

    given = overrides(context)
    end(run(deployment_of(file, overlays, given), given, flags))


@expanded
def plan(context: typer.Context, file: File = None, overlays: Overlays = None, *, flags: PlanFlags) -> None:
    """Compute whether a deployment fits, on which device, and what would make it fit."""
    from ..plan import run

    given = overrides(context)
    end(run(deployment_of(file, overlays, given), given, flags))


def run_tests(
    context: typer.Context,
    what: Annotated[Literal["tools"], typer.Argument(metavar="tools", help="What is tested: `tools`.")],
    file: File = None,
    overlays: Overlays = None,
    output: TextOrJson = "text",
) -> None:
    """Test without a model whether tool calls and reasoning are read as the chat template writes them."""
    from ..tool_tests import run

    given = overrides(context)
    end(run(deployment_of(file, overlays, given), given, output=output))


def explain(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT", help="A flag, option, section, variable, rule, error code, preset, metric or any word."
        ),
    ] = None,
    output: TextJsonOrMarkdown = "text",
    recursive: Annotated[bool, typer.Option("--recursive", help="A section with a page for each option.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every option, one record each.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Effective, deprecated and refused options.")] = False,
) -> None:
    """Explain an option, a rule or an error code."""
    from ..explain import run, run_all, run_status

    invocation: Invocation = context.obj
    if every:
        end(run_all(invocation.commands(), output=output))
    if status:
        end(run_status(output=output))
    end(run(" ".join(what or []), invocation.commands(), output=output, recursive=recursive))


def schema(
    check: Annotated[bool, typer.Option("--check", help="Fail if the files in schemas/ are stale.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the files in schemas/.")] = False,
    draft_07: Annotated[bool, typer.Option("--draft-07", help="Print draft-07, for editors without 2020-12.")] = False,
) -> None:
    """Print the JSON Schema of deployment files."""
    from ..schema import run

    end(run(check=check, write=write, draft_07=draft_07))


def diff(
    context: typer.Context,
    old: Annotated[str, typer.Argument(metavar="FILE", help="A deployment, or the URL of a running server.")],
    new: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="What to compare with; by default FILE with the options given here."),
    ] = None,
    server_key: Annotated[
        str | None, typer.Option("--server-key", help="Key for the server; by default OPENAI_API_KEY.")
    ] = None,
    output: TextOrJson = "text",
) -> None:
    """Show what differs between two deployments, or between a deployment and a running server.

    A running server is always the old side; options given here apply to the new side. Exit code 0 if both are the same,
    1 if they differ, 2 if one of them cannot be read.
    """
    from ..diff import run

    end(run(old, new, overrides(context), api_key=server_key, output=output))
