"""Flags of the verbs that run a model or ask a running server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ..defaults import DEFAULT_URL, METRICS_HOST, METRICS_PORT
from .types import Key, ModelName, Url


@dataclass(frozen=True, slots=True)
class ChatFlags:
    url: Url = DEFAULT_URL
    model_name: ModelName = None
    api_key: Key = None
    system_prompt: Annotated[
        str | None, typer.Option("--system-prompt", help="System message at the start of the conversation.")
    ] = None
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="Send this message, print the answer, and exit.")
    ] = None


@dataclass(frozen=True, slots=True)
class CompleteFlags:
    url: Url = DEFAULT_URL
    model_name: ModelName = None
    api_key: Key = None
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="Send this prompt, print the completion, and exit.")
    ] = None


@dataclass(frozen=True, slots=True)
class BatchFlags:
    input_file: Annotated[
        str,
        typer.Option("--input-file", "-i", metavar="FILE", help="Requests, one JSON object per line: file, URL or -."),
    ]
    output_file: Annotated[
        str,
        typer.Option("--output-file", "-o", metavar="FILE", help="Results, one per line: a file, or a URL for a PUT."),
    ]
    output_tmp_dir: Annotated[
        str | None,
        typer.Option(
            "--output-tmp-dir",
            metavar="DIR",
            help="Folder of the results before they are sent to a URL; by default TMPDIR.",
        ),
    ] = None
    response_role: Annotated[
        str | None, typer.Option("--response-role", help="Role of generated messages; by default assistant.")
    ] = None
    enable_metrics: Annotated[bool, typer.Option("--enable-metrics", help="Serve /metrics during the run.")] = False
    url: Annotated[str | None, typer.Option("--url", help=f"Address of the metrics; by default {METRICS_HOST}.")] = None
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help=f"Port of the metrics; by default {METRICS_PORT}."),
    ] = None
    enable_prompt_tokens_details: Annotated[
        bool, typer.Option("--enable-prompt-tokens-details", help="Add the number of cached prompt tokens to results.")
    ] = False
    max_log_len: Annotated[
        int | None, typer.Option("--max-log-len", min=0, help="Maximum length of a prompt in the log.")
    ] = None
    disable_log_requests: Annotated[
        bool,
        typer.Option("--disable-log-requests", help="Do not log each request; a terminal shows a bar instead."),
    ] = False
    disable_log_stats: Annotated[
        bool, typer.Option("--disable-log-stats", help="Do not log engine statistics every ten seconds.")
    ] = False
    use_v2_block_manager: Annotated[
        bool | None, typer.Option("--use-v2-block-manager", help="Deprecated: there is one block pool.")
    ] = None
