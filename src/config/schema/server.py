"""Section `server`: the HTTP side, its keys, limits, time-outs, logs, and what happens when the engine dies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section, about
from .types import Duration, Flag, Secrets, Size, Whole


class ServerConfig(Section):
    """The OpenAI-compatible API in front of the engine."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description=(
            "Address to listen on. The default serves this machine only; `0.0.0.0` serves the network and then needs "
            "an api_key, or `auth: none` in writing."
        ),
        examples=["0.0.0.0"],
        json_schema_extra=about(reload="process"),
    )
    port: Whole = Field(
        8000,
        ge=0,
        le=65535,
        description=(
            "TCP port to listen on. 0 takes a free one and prints it, which suits tests and not clients that have to "
            "find the server again."
        ),
        examples=[8080],
        json_schema_extra=about(reload="process"),
    )
    api_key: Secrets = Field(
        (),
        description=(
            "Keys that clients may send as `Authorization: Bearer KEY`; any one of them opens every route but health. "
            "Several make it possible to change one without a gap. Empty leaves the server open to whoever reaches it."
        ),
        examples=[[{"env": "API_KEY"}], [{"file": "./keys/team-a"}]],
        json_schema_extra=about(reload="process"),
    )
    auth: Literal["key", "none"] = Field(
        "key",
        description=(
            "Who may call. `key`: an address that other machines reach needs an api_key. `none`: serve without keys, "
            "for a private network or behind a proxy that checks them."
        ),
        examples=["none"],
        json_schema_extra=about(reload="process"),
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description=(
            "Jinja template that turns chat messages into a prompt: a file, or the template itself. Unset, the "
            "tokenizer's own is used. A wrong one works and answers badly."
        ),
        examples=["./templates/chat.jinja"],
        json_schema_extra=about(reload="process", kind="template"),
    )
    response_role: str = Field(
        "assistant",
        min_length=1,
        description=(
            "Role name on generated messages. Clients expect `assistant`; another name suits a model that was trained "
            "with it."
        ),
        examples=["assistant"],
        json_schema_extra=about(reload="hot"),
    )
    disable_frontend_multiprocessing: Flag = Field(
        False,
        description=(
            "Run the engine inside the API process. Saves one process and its start; the API then stalls during each "
            "step, and a crash of the engine is a crash of the server."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    drain_timeout: Duration = Field(
        30,
        description=(
            "After SIGTERM, time for running requests to finish before they are cut with an error event. "
            "A supervisor's own grace period must be longer."
        ),
        examples=["30s", "2m"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    strict_requests: Flag = Field(
        False,
        description=(
            "Answer 400 to request fields that nobody knows. Off, they are accepted, counted in a metric and warned "
            "about once, because clients send vendor extras."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    max_request_bytes: Size = Field(
        32 * 1024**2,
        description=(
            "Largest request body; a larger one is answered 413 before it is read whole. Bounds the memory that one "
            "client can take; very long prompts and inline files need more."
        ),
        examples=["32MiB"],
        json_schema_extra=about(reload="hot", unit="bytes"),
    )
    max_header_bytes: Size = Field(
        32 * 1024,
        description=(
            "Largest sum of request headers; more is answered 431. "
            "Proxies that add long cookies or tokens may need more."
        ),
        examples=["32KiB"],
        json_schema_extra=about(reload="hot", unit="bytes"),
    )
    body_idle_timeout: Duration = Field(
        30,
        description=(
            "Longest gap between two pieces of a request body; then 408 and the connection is closed. Frees what a "
            "stalled client holds; too short, slow mobile clients are cut."
        ),
        examples=["30s"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    body_timeout: Duration = Field(
        120,
        description=(
            "Longest time for a whole request body; then 408 and the connection is closed. Bounds clients that send a "
            "byte now and then; large bodies over slow links need more."
        ),
        examples=["2m"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    send_stall_timeout: Duration = Field(
        60,
        description=(
            "How long a client may stop reading a response before its request is aborted. Until then its KV cache and "
            "its place in the batch are held for nobody."
        ),
        examples=["60s"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    enable_request_id_headers: Flag = Field(
        False,
        description=(
            "Answer with an X-Request-Id header: the client's own if it sent one, else a new one. "
            "Ties client logs to server logs at a small cost per request."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    enable_prompt_tokens_details: Flag = Field(
        False,
        description=(
            "Add `prompt_tokens_details.cached_tokens` to usage: prompt tokens found in the prefix cache. It tells "
            "clients whether somebody has sent the same prefix before."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    enable_force_include_usage: Flag = Field(
        False,
        description=(
            "Put usage into every stream, also where the client did not ask with `stream_options`. Accounting in a "
            "proxy then works for all clients; strict clients may not expect the extra chunk."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    enable_log_requests: Flag = Field(
        False,
        description=(
            "Log one record for each request that arrives, with its id and sampling parameters. "
            "Off, only finished requests are logged."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    disable_log_stats: Flag = Field(
        False,
        description=(
            "Do not log the periodic line of engine statistics. The metrics endpoint is not affected and tells more."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    log_format: Literal["auto", "human", "json"] = Field(
        "auto",
        description=(
            "Shape of log lines: `human` for a reader, `json` one object per line for a collector. "
            "`auto` is human on a terminal and json elsewhere."
        ),
        examples=["json"],
        json_schema_extra=about(reload="process"),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description=(
            "Least severity that is logged. `warning` leaves out the line of each finished request; `debug` adds what "
            "the libraries underneath have to say."
        ),
        examples=["debug"],
        json_schema_extra=about(reload="hot"),
    )
    on_engine_death: Literal["restart", "exit"] = Field(
        "restart",
        description=(
            "When the engine process dies: `restart` loads it again while the API answers 503, `exit` ends the server "
            "with code 1 so that a supervisor starts it anew."
        ),
        examples=["exit"],
        json_schema_extra=about(reload="hot"),
    )
    max_engine_restarts: Whole = Field(
        3,
        ge=0,
        description=(
            "Restarts of a dead engine within 10 minutes; one more death ends the server with code 1. More hides a "
            "fault that comes back; 0 is the same as `on_engine_death: exit`."
        ),
        examples=[3],
        json_schema_extra=about(reload="hot", unit="restarts per 10 minutes"),
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[^\s?#]*[^\s?#/])?$",
        description=(
            "Path prefix under which a reverse proxy publishes the server, such as /llm. A request that still carries "
            "it is served as if it did not; for a proxy that strips the prefix nothing needs to be set."
        ),
        examples=["/llm"],
        json_schema_extra=about(reload="process"),
    )
