"""Section `server`: what the server logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..section import Section, about
from ..types import Flag, Text, Texts, Whole


class LogOptions(Section):
    """What is logged, where, and in which format."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description=(
            "Minimum severity that is logged. `warning` omits the line of each finished request; `debug` adds the "
            "messages of libraries."
        ),
        examples=["debug"],
        json_schema_extra=about(reload="hot"),
    )

    log_format: Literal["auto", "human", "json"] = Field(
        "auto",
        description=(
            "Format of log lines: `human` for people, `json` one object per line for a log collector. `auto` is human "
            "on a terminal and json elsewhere."
        ),
        examples=["json"],
    )

    log_config_file: Text | None = Field(
        None,
        description=(
            "JSON file for Python's `logging.config.dictConfig`, used by the server and by the engine process instead "
            "of the built-in configuration. Logger names begin with `stoker`; `stoker.server.http` is the HTTP side."
        ),
        examples=["./logging.json"],
        json_schema_extra=about(kind="path"),
    )

    http_log_level: Literal["auto", "critical", "error", "warning", "info", "debug", "trace"] = Field(
        "auto",
        description=(
            "Minimum severity that the HTTP side logs: connections, TLS, and the line of each request. `debug` logs "
            "every connection, `trace` also the number of bytes sent and received. `auto` is the value of log_level."
        ),
        examples=["debug"],
    )

    disable_log_stats: Flag = Field(
        False,
        description=(
            "Do not log the periodic line of engine statistics. The metrics endpoint is not affected and contains more."
        ),
        json_schema_extra=about(reload="hot"),
    )

    enable_log_requests: Flag = Field(
        False,
        description=(
            "Log one record for each request that arrives: its id, its sampling parameters and, up to max_log_len, its "
            "prompt. Off, only finished requests are logged, without any of their text."
        ),
        json_schema_extra=about(reload="hot"),
    )

    enable_log_outputs: Flag = Field(
        False,
        description=(
            "Log generated text too, up to max_log_len, one record for each answer; needs enable_log_requests. The log "
            "then contains whole conversations: restrict who can read it."
        ),
        json_schema_extra=about(reload="hot"),
    )

    max_log_len: Whole | None = Field(
        None,
        ge=0,
        description=(
            "Maximum length of a prompt, and of an answer, in the log: characters of a text, or ids of a prompt that "
            "was sent as token ids. 0 logs neither; unset, they are logged completely, and a long chat is a long line."
        ),
        examples=[200],
        json_schema_extra=about(reload="hot", unit="characters or token ids"),
    )

    log_error_stack: Flag = Field(
        False,
        description=(
            "Log a stack trace for each error answer, client errors included. Shows where a request was refused; a "
            "faulty client can fill the log. Failures of the server itself are always logged with a trace."
        ),
        json_schema_extra=about(reload="hot"),
    )

    disable_access_log: Flag = Field(
        False,
        description=(
            "Do not log the line of each finished HTTP request. Reduces the log volume of busy servers; a single "
            "request then appears only in the sums of the metrics."
        ),
        json_schema_extra=about(reload="hot"),
    )

    disable_access_log_for_endpoints: Texts = Field(
        (),
        description=(
            "Paths whose requests get no line in the log, such as /v1/models that a balancer asks for every second. "
            "The probes, /metrics and /load never get one; all of them are counted in the metrics."
        ),
        examples=[["/v1/models", "/version"]],
        json_schema_extra=about(reload="hot", notation="commas"),
    )
