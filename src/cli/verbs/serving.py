"""Verbs that run a model or ask a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from ..defaults import DEFAULT_URL
from ..flags.serving import BatchFlags, ChatFlags, CompleteFlags
from ..flags.types import File, Key, Overlays, Url
from ..stop import unless_stopped
from .arguments import deployment_of, end, expanded, overrides


def up(context: typer.Context, file: File = None, overlays: Overlays = None) -> None:
    """Check a deployment, load its model and serve it."""
    _serve(context, file, overlays)


def serve(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Hub id, directory or builtin:tiny.")] = None,
    overlays: Overlays = None,
) -> None:
    """Serve a model without a file: `engine serve MODEL [flags]`."""
    _serve(context, None, overlays, *(["--model", model] if model is not None else []))


def _serve(context: typer.Context, file: str | None, overlays: list[str] | None, *words: str) -> None:
    def work() -> int:
        from ..up import run

        given = [*words, *overrides(context)]
        return run(deployment_of(file, overlays, given), given)

    end(unless_stopped(work))


@expanded
def chat(flags: ChatFlags) -> None:
    """Chat with a running server."""
    from ..chat import run

    end(run(flags))


def reload(url: Url = DEFAULT_URL, api_key: Key = None) -> None:
    """Let a running server read its keys file again, and report whether it is valid."""
    from ..reload import run

    end(run(url, api_key=api_key))


@expanded
def complete(flags: CompleteFlags) -> None:
    """Complete prompts with a running server."""
    from ..complete import run

    end(run(flags))


@expanded
def run_batch(context: typer.Context, file: File = None, overlays: Overlays = None, *, flags: BatchFlags) -> None:
    """Answer a file of requests in OpenAI's batch format, and exit.

    Results are written in the order in which requests finish. If a run is interrupted, its results are kept, and the
    same command continues from there. Exit code 0 if every line was answered, 1 if one was refused or is not a request.
    """
    from ..run_batch import run

    given = overrides(context)
    end(run(deployment_of(file, overlays, given), given, flags))
