"""Verbs that run a model or ask a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from ..defaults import DEFAULT_URL, METRICS_HOST, METRICS_PORT
from ..stop import unless_stopped
from .arguments import File, Key, ModelName, Overlays, Url, end, files_of, overrides


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

        return run(files_of(file, overlays), [*words, *overrides(context)])

    end(unless_stopped(work))


def chat(
    url: Url = DEFAULT_URL,
    model_name: ModelName = None,
    api_key: Key = None,
    system_prompt: Annotated[
        str | None, typer.Option("--system-prompt", help="System message at the start of the conversation.")
    ] = None,
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="Send this message, print the answer, and exit.")
    ] = None,
) -> None:
    """Chat with a running server."""
    from ..chat import run

    end(run(url, model_name=model_name, api_key=api_key, system_prompt=system_prompt, quick=quick))


def reload(url: Url = DEFAULT_URL, api_key: Key = None) -> None:
    """Let a running server read its keys file again, and report whether it is valid."""
    from ..reload import run

    end(run(url, api_key=api_key))


def complete(
    url: Url = DEFAULT_URL,
    model_name: ModelName = None,
    api_key: Key = None,
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="Send this prompt, print the completion, and exit.")
    ] = None,
) -> None:
    """Complete prompts with a running server."""
    from ..complete import run

    end(run(url, model_name=model_name, api_key=api_key, quick=quick))


def run_batch(
    context: typer.Context,
    input_file: Annotated[
        str,
        typer.Option("--input-file", "-i", metavar="FILE", help="Requests, one JSON object per line: file, URL or -."),
    ],
    output_file: Annotated[
        str,
        typer.Option("--output-file", "-o", metavar="FILE", help="Results, one per line: a file, or a URL for a PUT."),
    ],
    file: File = None,
    overlays: Overlays = None,
    output_tmp_dir: Annotated[
        str | None,
        typer.Option(
            "--output-tmp-dir",
            metavar="DIR",
            help="Folder of the results before they are sent to a URL; by default TMPDIR.",
        ),
    ] = None,
    response_role: Annotated[
        str | None, typer.Option("--response-role", help="Role of generated messages; by default assistant.")
    ] = None,
    enable_metrics: Annotated[bool, typer.Option("--enable-metrics", help="Serve /metrics during the run.")] = False,
    url: Annotated[
        str | None, typer.Option("--url", help=f"Address of the metrics; by default {METRICS_HOST}.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help=f"Port of the metrics; by default {METRICS_PORT}."),
    ] = None,
    enable_prompt_tokens_details: Annotated[
        bool, typer.Option("--enable-prompt-tokens-details", help="Add the number of cached prompt tokens to results.")
    ] = False,
    max_log_len: Annotated[
        int | None, typer.Option("--max-log-len", min=0, help="Maximum length of a prompt in the log.")
    ] = None,
    disable_log_requests: Annotated[
        bool, typer.Option("--disable-log-requests", help="Do not log each request.")
    ] = False,
    disable_log_stats: Annotated[
        bool, typer.Option("--disable-log-stats", help="Do not log engine statistics every ten seconds.")
    ] = False,
    use_v2_block_manager: Annotated[
        bool | None, typer.Option("--use-v2-block-manager", help="Deprecated: there is one block pool.")
    ] = None,
) -> None:
    """Answer a file of requests in OpenAI's batch format, and exit.

    Results are written in the order in which requests finish. If a run is interrupted, its results are kept, and the
    same command continues from there. Exit code 0 if every line was answered, 1 if one was refused or is not a request.
    """
    from ..run_batch import BatchFlags, run

    flags = BatchFlags(
        input_file=input_file,
        output_file=output_file,
        output_tmp_dir=output_tmp_dir,
        response_role=response_role,
        enable_metrics=enable_metrics,
        url=url,
        port=port,
        enable_prompt_tokens_details=enable_prompt_tokens_details,
        max_log_len=max_log_len,
        disable_log_requests=disable_log_requests,
        disable_log_stats=disable_log_stats,
        use_v2_block_manager=use_v2_block_manager,
    )
    end(run(files_of(file, overlays), overrides(context), flags))
