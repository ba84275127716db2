"""Section `server`: the HTTP side, its keys, limits, time-outs, logs, and what happens when the engine dies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section, about
from .types import Auto, Count, Duration, Flag, Secrets, Size, Texts, Whole

_TOOL_CALLS = (
    "tool calls stay in the text of the answer, in the model's own form: tools reach the prompt, and the client reads "
    "the calls out of `content`"
)


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
            "Role name on generated messages; one that goes on with the client's last message keeps that one's role. "
            "Clients expect `assistant`; another name suits a model that was trained with it."
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
            "Log one record for each request that arrives: its id, its sampling parameters and, up to max_log_len, "
            "its prompt. Off, only finished requests are logged, without a word of what was said."
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
    # what chats and answers hold
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto",
        description=(
            "How the chat template gets the content of messages: `string` as one text, parts joined by line breaks; "
            "`openai` as a list of typed parts. `auto` reads from the template which of them it handles, and is wrong "
            "where a template gives the content another name before it loops over its parts."
        ),
        examples=["openai"],
        json_schema_extra=about(reload="process"),
    )
    trust_request_chat_template: Flag = Field(
        False,
        description=(
            "Let a request bring its own `chat_template`; off, that is a 400. Such a template runs in the same sandbox "
            "and within the same two seconds as the server's, but it is a program of the client's, and one made for "
            "harm can take memory and time from all: for clients you trust."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    exclude_tools_when_tool_choice_none: Flag = Field(
        False,
        description=(
            "Leave tool definitions out of the prompt of requests with `tool_choice: none`. Saves their tokens; the "
            "prompt then begins differently from those of the same chat with tools, and shares no prefix with them."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    return_tokens_as_token_ids: Flag = Field(
        False,
        description=(
            "Name tokens in log-probabilities by number, as `token_id:N`, and not by their text. Tokens that are no "
            "text of their own stay apart; people read less in it. A request may ask for either."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    # routes that are there on demand
    enable_server_load_tracking: Flag = Field(
        False,
        description=(
            "Serve GET /load, which tells how many completions are under way: for a balancer that sends the next one "
            "to the least busy server. It counts requests, not their size; /metrics has the whole picture."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    enable_tokenizer_info_endpoint: Flag = Field(
        False,
        description=(
            "Serve GET /tokenizer_info: the tokenizer's settings and the chat template in use. Clients can then "
            "tokenise and render by themselves; it shows all of them how prompts are built."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    disable_fastapi_docs: Flag = Field(
        False,
        description=(
            "Serve neither the OpenAPI description of the routes (/openapi.json) nor the page made from it (/docs). "
            "Where the server has keys, both ask for one in any case."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    # what is logged of requests
    max_log_len: Whole | None = Field(
        None,
        ge=0,
        description=(
            "Longest part of a prompt, and of an answer, that is logged: characters of a text, ids of a prompt that "
            "came as token ids. 0 logs neither; unset, they are logged whole, and a long chat is a long line."
        ),
        examples=[200],
        json_schema_extra=about(reload="hot", unit="characters or token ids"),
    )
    enable_log_outputs: Flag = Field(
        False,
        description=(
            "Log what was generated, too, up to max_log_len, one record for each answer; needs enable_log_requests. "
            "The log then holds whole conversations: mind who reads it."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    log_error_stack: Flag = Field(
        False,
        description=(
            "Log a stack trace for each error answer, the client's mistakes included. Shows where a request was "
            "refused; a faulty client can fill the log. Failures of the server itself are traced in any case."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    # known, and not in this build
    enable_auto_tool_choice: Flag = Field(
        False,
        description="Let the model decide to call tools, and turn its calls into structured ones.",
        examples=[False],
        json_schema_extra=about(reload="process", refused=_TOOL_CALLS),
    )
    tool_call_parser: str | None = Field(
        None,
        min_length=1,
        description="Name of the parser that finds tool calls in generated text.",
        examples=["hermes"],
        json_schema_extra=about(reload="process", refused=_TOOL_CALLS),
    )
    tool_parser_plugin: str = Field(
        "",
        description="Python file that brings further tool call parsers.",
        examples=["./parsers.py"],
        json_schema_extra=about(reload="process", refused=_TOOL_CALLS),
    )
    tool_server: str | None = Field(
        None,
        min_length=1,
        description="Servers whose tools are run on behalf of the model, as host:port, separated by commas.",
        examples=["demo"],
        json_schema_extra=about(
            reload="process", refused="the server runs no tools: the client runs those that the model asks for"
        ),
    )
    lora_modules: Texts = Field(
        (),
        description="Adapters to load at start, each as name=path and served under its name.",
        examples=[["sql=./adapters/sql"]],
        json_schema_extra=about(
            reload="process", refused="this build serves no adapters: merge one into its model, and serve that"
        ),
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

    # The socket, TLS, browsers, middleware, the HTTP parser and its logs.
    uds: str | None = Field(
        None,
        min_length=1,
        description=(
            "Unix socket to listen on instead of a TCP port, relative to the file that names it. Only processes of "
            "this machine that may write the socket file get in; host and port then have no effect."
        ),
        examples=["/run/stoker/api.sock"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_keyfile: str | None = Field(
        None,
        min_length=1,
        description=(
            "PEM file with the private key of `ssl_certfile`, without a passphrase. With both the server speaks HTTPS "
            "only, so keys and prompts cannot be read on the way; each new connection then costs a handshake."
        ),
        examples=["./tls/key.pem"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_certfile: str | None = Field(
        None,
        min_length=1,
        description=(
            "PEM file with the certificate to show to clients, followed by those that lead to its authority. "
            "A client refuses a certificate that has expired or is for another host name."
        ),
        examples=["./tls/cert.pem"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_ca_certs: str | None = Field(
        None,
        min_length=1,
        description=(
            "PEM file with the authorities that client certificates are checked against; `ssl_cert_reqs` says whether "
            "clients must have one. The machine's own authorities do not count here."
        ),
        examples=["./tls/clients.pem"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_cert_reqs: Literal[0, 1, 2] = Field(
        0,
        description=(
            "Client certificates: 0 asks for none, 1 checks one that is sent, 2 ends the handshake without one. "
            "They come on top of an api_key, not in its place."
        ),
        examples=[2],
        json_schema_extra=about(reload="process"),
    )
    enable_ssl_refresh: Flag = Field(
        False,
        description=(
            "Look every second whether the TLS files have changed, and use the new ones for new connections. Open "
            "connections go on; files that do not fit together leave the old ones in force and an error in the log."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    allowed_origins: Texts = Field(
        (),
        description=(
            "Web sites whose scripts may call the server from a browser, such as https://chat.example; `*` is any "
            "site. Empty, browsers keep every site out; programs that are no browsers are not affected."
        ),
        examples=[["https://chat.example"]],
        json_schema_extra=about(reload="process"),
    )
    allowed_methods: Texts = Field(
        ("*",),
        description=(
            "HTTP methods that scripts of `allowed_origins` may use; `*` is all. Fewer, such as POST alone, leave less "
            "to a site that turns bad."
        ),
        examples=[["GET", "POST"]],
        json_schema_extra=about(reload="process"),
    )
    allowed_headers: Texts = Field(
        ("*",),
        description=(
            "Request headers that scripts of `allowed_origins` may set; `*` is all. Clients need Content-Type and, "
            "with keys, Authorization; official client libraries add some of their own."
        ),
        examples=[["Authorization", "Content-Type"]],
        json_schema_extra=about(reload="process"),
    )
    allow_credentials: Flag = Field(
        False,
        description=(
            "Let browsers attach cookies and stored logins to calls of `allowed_origins`. Needed where a proxy in "
            "front signs users in; an API key in a header needs none of it."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    middleware: Texts = Field(
        (),
        description=(
            "Code of yours around every request, each named by its import path: an async function (request, call_next) "
            "or an ASGI class. The first one sees a request first, before keys are checked. It runs in the API "
            "process, so what is slow in it delays every request."
        ),
        examples=[["company.gateway.Audit"]],
        json_schema_extra=about(repeats=True, reload="process"),
    )
    h11_max_incomplete_event_size: Size | Auto = Field(
        "auto",
        description=(
            "Bytes that the HTTP parser holds of a request head or chunk line that is not complete; beyond, 431 "
            "without a body. It bounds memory per connection, while `max_header_bytes` judges heads that are complete. "
            "`auto` is twice that."
        ),
        examples=["64KiB"],
        json_schema_extra=about(reload="process", unit="bytes"),
    )
    h11_max_header_count: Count = Field(
        256,
        description="Most headers that a request may have; more is answered 431. Hardly any proxy comes near it.",
        examples=[256],
        json_schema_extra=about(reload="process", unit="headers"),
    )
    uvicorn_log_level: Literal["auto", "critical", "error", "warning", "info", "debug", "trace"] = Field(
        "auto",
        description=(
            "Least severity that the HTTP side logs: connections, TLS, and the line of each request. `debug` tells of "
            "every connection, `trace` also how many bytes pass. `auto` is the log_level. The name is older than the "
            "HTTP server that is used here."
        ),
        examples=["debug"],
        json_schema_extra=about(reload="process"),
    )
    disable_uvicorn_access_log: Flag = Field(
        False,
        description=(
            "Leave out the line of each finished HTTP request and nothing else. Busy servers save log volume; what a "
            "single request did is then only in the metrics' sums."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    log_config_file: str | None = Field(
        None,
        min_length=1,
        description=(
            "JSON file for Python's `logging.config.dictConfig`, used by the server and by the engine process in place "
            "of the built-in set-up. Loggers begin with `stoker`; `stoker.server.http` is the HTTP side."
        ),
        examples=["./logging.json"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    headless: Flag = Field(
        False,
        description="Start engine processes without an HTTP listener, for a head node elsewhere.",
        examples=[False],
        json_schema_extra=about(
            reload="process",
            refused="every deployment of this build has its own API; run one per machine behind a load balancer",
        ),
    )
    api_server_count: Whole = Field(
        1,
        ge=0,
        description="Number of HTTP processes in front of one engine.",
        examples=[1],
        json_schema_extra=about(
            reload="process",
            aliases=("-asc",),
            refused="this build runs one API process per engine; run several deployments behind a load balancer",
        ),
    )
