"""Section `server`: the HTTP API, its keys, limits, timeouts and logs, and what happens when the engine dies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..auto_values import (
    CLIENT_SHARE,
    INCOMPLETE_HEADER_FACTOR,
    MAX_CONNECTIONS,
    RESERVED_FILES,
    TOTAL_REQUEST_FACTOR,
)
from .refused import with_refused
from .section import Section, about
from .tool_server import TOOL_SERVERS
from .types import Auto, Count, Duration, DurationFromZero, Flag, Secrets, Size, Texts, Whole, parse_one_or_more

OPEN_ROUTES = ("/metrics", "/version", "/load", "/v1/models")  # that `routes_without_key` can open
NormaliseRules = Annotated[
    tuple[Literal["anthropic-billing", "total-tokens", "cache-control"], ...], BeforeValidator(parse_one_or_more)
]


@with_refused("server")
class ServerConfig(Section):
    """The OpenAI-compatible API in front of the engine."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description=(
            "Address to listen on. The default is reachable from this machine only; `0.0.0.0` is reachable from the "
            "network and then needs an api_key, or an explicit `auth: none`."
        ),
        examples=["0.0.0.0"],
        json_schema_extra=about(reload="process"),
    )
    port: Whole = Field(
        8000,
        ge=0,
        le=65535,
        description=(
            "TCP port to listen on. 0 selects a free port and prints it, which suits tests and not clients that have "
            "to find the server again."
        ),
        examples=[8080],
        json_schema_extra=about(reload="process"),
    )
    headless: Flag = Field(
        False,
        description=(
            "Whether this process computes without an API, for the server of another machine. Follows from "
            "`parallel.node_rank`, or `data_parallel_start_rank` with `data_parallel_address`, and need not be "
            "written."
        ),
        examples=[True],
        json_schema_extra=about(reload="process", devices=("cpu",)),
    )
    api_key: Secrets = Field(
        (),
        description=(
            "Keys that clients send as `Authorization: Bearer KEY` or `x-api-key: KEY`; each key gives access to every "
            "route, and only the probes and `routes_without_key` need none. For keys with names and limits see "
            "api_keys_file. Without either the server is open to everyone who can reach it."
        ),
        examples=[[{"env": "API_KEY"}], [{"file": "./keys/team-a"}]],
        json_schema_extra=about(reload="process"),
    )
    api_keys_file: str | None = Field(
        None,
        min_length=1,
        description=(
            "YAML file with keys that have a name, scopes, limits per minute and an end date, beside those of api_key. "
            "It is read again when it changes and at `engine reload`, so that keys are replaced without a restart; an "
            "invalid change is logged and the previous keys remain valid. Names appear in the log and the metrics."
        ),
        examples=["./keys.yaml"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    auth: Literal["key", "none"] = Field(
        "key",
        description=(
            "Who may call the server. `key`: an address that other machines can reach needs an api_key or an "
            "api_keys_file. `none`: serve without keys, for a private network or with a proxy that checks keys."
        ),
        examples=["none"],
        json_schema_extra=about(reload="process"),
    )
    routes_without_key: Texts = Field(
        (),
        description=(
            "Routes that need no api_key, for scrapers and balancers that send none. They show the load, the model's "
            "name and the version to everyone who can reach the server. The probes never need a key."
        ),
        examples=[["/metrics", "/version"]],
        json_schema_extra=about(reload="process", notation="commas"),
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description=(
            "Jinja template that converts chat messages to a prompt: a file, or the template text. Unset, the "
            "tokenizer's template is used; for a few known models without one, a template of this package (model "
            "facts). With a wrong template the model answers badly, without an error."
        ),
        examples=["./templates/chat.jinja"],
        json_schema_extra=about(reload="process", kind="template"),
    )
    default_chat_template_kwargs: dict[str, Any] = Field(
        {},
        description=(
            "Variables for the chat template of every request, such as `enable_thinking: false`. A request's "
            "`chat_template_kwargs` and `reasoning_effort` replace those of the same name. A name that the template "
            "does not use is reported at the start."
        ),
        examples=[{"enable_thinking": False}],
        json_schema_extra=about(reload="process"),
    )
    response_role: str = Field(
        "assistant",
        min_length=1,
        description=(
            "Role name of generated messages; a message that continues the client's last message keeps its role. "
            "Clients expect `assistant`; use another name for a model that was trained with it."
        ),
        examples=["assistant"],
        json_schema_extra=about(reload="hot"),
    )
    reasoning_field: Literal["both", "reasoning", "reasoning_content", "inline", "none"] = Field(
        "both",
        description=(
            "Where chat answers have the model's reasoning: in the field `reasoning`, as newer clients read it, in "
            "`reasoning_content`, as older ones do, or in both; `inline` leaves it in the content, between the model's "
            "own markers, `none` removes it. A request's `include_reasoning` and `separate_reasoning` have precedence."
        ),
        examples=["reasoning_content"],
        json_schema_extra=about(reload="hot"),
    )
    model_aliases: dict[str, str] = Field(
        {},
        description=(
            "Further model names that requests may use, each with the served name that it means. A name may be a "
            "pattern: `claude-*` serves the names that a coding agent has built in. /v1/models does not list them."
        ),
        examples=[{"claude-*": "my-model"}],
        json_schema_extra=about(reload="process"),
    )
    responses_store: str | None = Field(
        None,
        min_length=1,
        description=(
            "Where /v1/responses keeps responses for `previous_response_id`, `background` and GET: `memory`, or the "
            "path of an SQLite file, which survives a restart. Unset, the server keeps no conversation of any client, "
            "and requests that need one are answered 400. A response belongs to the key that made it."
        ),
        examples=["memory", "./responses.sqlite"],
        json_schema_extra=about(reload="process"),
    )
    max_stored_responses: Count = Field(
        10_000,
        description=(
            "Maximum number of stored responses, of all keys together; then the oldest of the key that has most is "
            "removed. Each has the whole conversation before it."
        ),
        examples=[1000],
        json_schema_extra=about(reload="process"),
    )
    max_stored_bytes: Size = Field(
        256 * 1024**2,
        description=(
            "Maximum total size of stored responses; then the oldest of the key that has most are removed. Limits the "
            "memory, or the file, that clients can fill."
        ),
        examples=["1GiB"],
        json_schema_extra=about(reload="process", unit="bytes"),
    )
    stored_response_ttl: Duration = Field(
        24 * 3600,
        description=(
            "Time that a response is stored. Conversations that go on later must be sent complete; a long time keeps "
            "more of what clients have written."
        ),
        examples=["30d"],
        json_schema_extra=about(reload="process", unit="seconds"),
    )
    disable_frontend_multiprocessing: Flag = Field(
        False,
        description=(
            "Run the engine inside the API process. Saves one process and its start; the API then pauses during each "
            "step, and a crash of the engine is a crash of the server."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    api_server_count: Count = Field(
        1,
        description=(
            "Number of HTTP processes that accept connections of the same address and send their requests to one "
            "engine. More of them help if one uses a whole core, as with many fast streams, and if cores are free; "
            "each needs the memory of a tokenizer. Limits of connections and bodies are divided among them."
        ),
        examples=[4],
        json_schema_extra=about(reload="process", unit="processes", aliases=("-asc",)),
    )
    drain_timeout: DurationFromZero = Field(
        30,
        description=(
            "Time that running requests have to finish after SIGTERM; then they end with an error event. 0 ends them "
            "at once. A supervisor's own grace period must be longer."
        ),
        examples=["30s", "2m"],
        json_schema_extra=about(reload="hot", unit="seconds", aliases=("--shutdown-timeout",)),
    )
    strict_requests: Flag = Field(
        False,
        description=(
            "Answer 400 to unknown request fields. Off, they are accepted, counted in a metric and logged once as a "
            "warning, because clients send vendor-specific fields."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    max_request_bytes: Size = Field(
        32 * 1024**2,
        description=(
            "Maximum size of a request body; a larger one is answered 413 before it is read completely. Limits the "
            "memory that one client can use; very long prompts and inline files need more."
        ),
        examples=["32MiB"],
        json_schema_extra=about(reload="hot", unit="bytes"),
    )
    max_total_request_bytes: Size | Auto = Field(
        "auto",
        description=(
            "Maximum total size of the request bodies that are being received and parsed, over all connections; a body "
            "that exceeds it is answered 503 with Retry-After. The beginning of each body is not counted, so that "
            "ordinary requests are still served. Limits the memory that all clients together can use. `auto` is "
            f"{TOTAL_REQUEST_FACTOR} times `max_request_bytes`."
        ),
        examples=["256MiB"],
        json_schema_extra=about(reload="process", unit="bytes"),
    )
    max_connections: Count | Auto = Field(
        "auto",
        description=(
            "Maximum number of open connections; further clients are answered 503 with Retry-After. Each needs a file "
            "descriptor and some memory, also while it is idle. `auto` is "
            f"{MAX_CONNECTIONS}, or less if the process may open fewer than {MAX_CONNECTIONS + RESERVED_FILES} files "
            "(`ulimit -Hn`)."
        ),
        examples=[2000],
        json_schema_extra=about(reload="process", unit="connections"),
    )
    max_connections_per_client: Count | Auto = Field(
        "auto",
        description=(
            "Maximum number of open connections from one address, or from one /64 network of IPv6; further ones are "
            "answered 503 with Retry-After. With a small number one client cannot take the connections of all others; "
            "a reverse proxy is one client. It has no effect on a Unix socket. `auto` is "
            f"{CLIENT_SHARE:.0%} of `max_connections`."
        ),
        examples=[100],
        json_schema_extra=about(reload="process", unit="connections"),
    )
    max_header_bytes: Size = Field(
        32 * 1024,
        description=(
            "Maximum total size of the request headers; more is answered 431. Proxies that add long cookies or tokens "
            "may need more."
        ),
        examples=["32KiB"],
        json_schema_extra=about(reload="hot", unit="bytes"),
    )
    body_idle_timeout: Duration = Field(
        30,
        description=(
            "Maximum time between two parts of a request body; then the answer is 408 and the connection is closed. "
            "Frees what a stalled client holds; if it is too short, slow mobile clients are disconnected."
        ),
        examples=["30s"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    body_timeout: Duration = Field(
        120,
        description=(
            "Maximum time for a whole request body; then the answer is 408 and the connection is closed. Limits "
            "clients that send one byte at a time; large bodies over slow links need more."
        ),
        examples=["2m"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    request_timeout: DurationFromZero = Field(
        0,
        description=(
            "Maximum time of a request, from its arrival to its last token, unless it sets its own with the header "
            "X-Request-Timeout or the field `timeout`, in seconds. Over it the request is aborted and answered 504, or "
            "with an error event in a stream. 0 is no limit. Frees the engine of requests whose client gave up."
        ),
        examples=["10m"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    send_stall_timeout: Duration = Field(
        60,
        description=(
            "Time that a client may stop reading a response before its request is aborted. Until then the request "
            "keeps its KV cache and its place in the batch."
        ),
        examples=["60s"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    sse_keep_alive_interval: DurationFromZero = Field(
        0,
        description=(
            "Time without an event after which a stream gets a comment line, so that proxies with a read timeout keep "
            "the connection open; 0 sends none. Clients skip comments. A stream then starts before its first token, "
            "so that an error of a request that waited longer is an event of the stream, not a status."
        ),
        examples=["15s"],
        json_schema_extra=about(reload="hot", unit="seconds"),
    )
    enable_request_id_headers: Flag = Field(
        False,
        description=(
            "Add an X-Request-Id header to every answer, not only to errors: the client's own if it sent one, else "
            "a new one. Connects client logs with server logs at a small cost per request."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    enable_prompt_tokens_details: Flag = Field(
        False,
        description=(
            "Add `prompt_tokens_details.cached_tokens` to usage: the number of prompt tokens found in the prefix "
            "cache. It reveals to clients whether the same prefix was sent before."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    enable_force_include_usage: Flag = Field(
        False,
        description=(
            "Add usage so far to every chunk of every stream, and a last chunk with usage, even if the client did not "
            "ask for it with `stream_options`. Accounting in a proxy then works for all clients; strict clients may "
            "not expect the additional chunk."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    enable_log_requests: Flag = Field(
        False,
        description=(
            "Log one record for each request that arrives: its id, its sampling parameters and, up to max_log_len, its "
            "prompt. Off, only finished requests are logged, without any of their text."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    disable_log_stats: Flag = Field(
        False,
        description=(
            "Do not log the periodic line of engine statistics. The metrics endpoint is not affected and contains more."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    # chats and answers
    tool_call_parser: str = Field(
        "auto",
        min_length=1,
        description=(
            "Format in which the model writes tool calls, which answers then contain as objects. `auto` finds it by "
            "the chat template, and accepts a format only if it reads the calls that the template itself writes; "
            "`none` leaves calls in the text. Other values are the names of tool call parsers in vLLM and SGLang, or "
            "of a plugin, and are used even if the template writes otherwise, with a warning."
        ),
        examples=["none", "hermes", "qwen3_coder"],
        json_schema_extra=about(reload="process"),
    )
    tool_parser_plugin: Annotated[str | None, BeforeValidator(lambda value: None if value == "" else value)] = Field(
        None,
        description=(
            "File with a further format: a declaration in YAML, or Python with one class that has the methods `feed` "
            "and `finish`. It is used unless `tool_call_parser` names another one. A Python file runs with the rights "
            "of the server, and with it no grammar constrains calls."
        ),
        examples=["./formats/mine.yaml"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto",
        description=(
            "How the content of messages is passed to the chat template: `string` as one text, parts joined by line "
            "breaks; `openai` as a list of typed parts. `auto` finds out from the template which of the two it "
            "handles, and is wrong if a template assigns the content to another variable before it loops over the "
            "parts."
        ),
        examples=["openai"],
        json_schema_extra=about(reload="process"),
    )
    agents_normalise: NormaliseRules = Field(
        ("anthropic-billing", "total-tokens", "cache-control"),
        description=(
            "What is removed from messages because coding agents change it with every request, so that no prompt "
            "begins as the one before: `anthropic-billing` the line x-anthropic-billing-header of system messages, "
            "`total-tokens` their counter <total_tokens>, `cache-control` the markers of that name. The model does not "
            "see what is removed; a metric counts it. `[]` removes nothing."
        ),
        examples=[["anthropic-billing"], ["cache-control"]],
        json_schema_extra=about(reload="process", notation="commas"),
    )
    second_system_message: Literal["auto", "keep", "first", "error"] = Field(
        "auto",
        description=(
            "What happens to a system message after the first message: `keep` passes it to the chat template where it "
            "is, `first` appends its text to the first system message, `error` answers 400. `auto` is `first` with a "
            "chat template that raises an error at such messages, otherwise `keep`. Moving the text changes the "
            "beginning of the prompt, which is then computed again."
        ),
        examples=["first"],
        json_schema_extra=about(reload="process"),
    )
    trust_request_chat_template: Flag = Field(
        False,
        description=(
            "Let a request contain its own `chat_template`; off, such a request is answered 400. The template runs in "
            "a sandbox, in a process of its own that is ended after two seconds of processor time or at 1 GiB of "
            "memory. It is a program of the client, and two at a time can use the processor: only for trusted clients."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    exclude_tools_when_tool_choice_none: Flag = Field(
        False,
        description=(
            "Leave tool definitions out of the prompt of requests with `tool_choice: none`. Saves their tokens; the "
            "prompt then begins differently from that of the same chat with tools, and shares no prefix with it."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    return_tokens_as_token_ids: Flag = Field(
        False,
        description=(
            "Show tokens in log-probabilities as `token_id:N` instead of their text. Distinguishes tokens that are not "
            "valid text on their own; it is harder to read. A request may ask for either."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    # optional routes
    enable_server_load_tracking: Flag = Field(
        False,
        description=(
            "Serve GET /load, which reports the number of running completions: for a load balancer that selects the "
            "least busy server. It counts requests, not their size; /metrics contains more."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    enable_tokenizer_info_endpoint: Flag = Field(
        False,
        description=(
            "Serve GET /tokenizer_info: the tokenizer's settings and the chat template in use. Clients can then "
            "tokenise and render locally; it shows all of them how prompts are built."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    enable_admin_routes: Flag = Field(
        False,
        description=(
            "Serve POST /reset_prefix_cache, after which requests reuse nothing that was computed before: for "
            "measurements without a cache. With keys it needs one; without, everyone who can reach the server can slow "
            "it down."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    files_dir: str | None = Field(
        None,
        min_length=1,
        description=(
            "Folder for files that clients upload, and for their batches; adds the routes /v1/files and /v1/batches. A "
            "batch runs beside other requests, which come first, and continues after a restart. The files have what "
            "clients sent and what the model answered: restrict who can read them."
        ),
        examples=["./files"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    files_quota: Size = Field(
        1024**3,
        description=(
            "Maximum total size of the files of one key, results of batches included; further uploads are answered "
            "413. On a server without keys it is that of all clients together."
        ),
        examples=["1GiB"],
        json_schema_extra=about(reload="process", unit="bytes"),
    )
    files_ttl: Duration = Field(
        30 * 86400.0,
        description=(
            "Time after which a file, and a batch that has ended, is deleted. A file that a batch still reads is kept. "
            "A shorter time keeps less of what clients sent."
        ),
        examples=["7d"],
        json_schema_extra=about(reload="process", unit="seconds"),
    )
    batch_concurrency: Count = Field(
        8,
        description=(
            "Maximum number of rows of batches that run at a time, over all batches. More fill an idle server better; "
            "other requests then share each step with more sequences. Rows begin only while no request is waiting."
        ),
        examples=[8],
        json_schema_extra=about(reload="process", unit="requests"),
    )
    disable_docs: Flag = Field(
        False,
        description=(
            "Serve neither the OpenAPI description of the routes (/openapi.json) nor the page that shows it (/docs). "
            "If the server has keys, the description requires one in any case; the page asks for it."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    disable_web_page: Flag = Field(
        False,
        description=(
            "Serve no web page at /. The page is a chat, plots of what the engine does, and the configuration; it "
            "contains nothing about the deployment itself, so that it needs no key, and asks for one to read the rest."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    tool_server: dict[str, Any] = Field(
        {},
        description=(
            "MCP servers whose tools /v1/responses runs, by label: each has a `url` (streamable HTTP) or a `command` "
            "(standard input and output), `allowed_tools`, and the `timeout` of a call in seconds. `headers_from_env` "
            "has headers for a URL, each with the environment variable that has its value. A request names a server as "
            "`{type: mcp, server_label: LABEL, require_approval: never}`. A tool runs with the rights of this "
            "server, for everyone with access to it: allow only what any client may do. GET /config shows the "
            "arguments of a command and the query of a `url`: no place for secrets. Needs the extra `mcp`."
        ),
        examples=[{"docs": {"url": "http://localhost:9000/mcp", "allowed_tools": ["search"]}}],
        json_schema_extra=about(reload="process", json_schema=TOOL_SERVERS),
    )
    # what is logged about requests
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
    enable_log_outputs: Flag = Field(
        False,
        description=(
            "Log generated text too, up to max_log_len, one record for each answer; needs enable_log_requests. The log "
            "then contains whole conversations: restrict who can read it."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    log_error_stack: Flag = Field(
        False,
        description=(
            "Log a stack trace for each error answer, client errors included. Shows where a request was refused; a "
            "faulty client can fill the log. Failures of the server itself are always logged with a trace."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    # logs and the engine process
    log_format: Literal["auto", "human", "json"] = Field(
        "auto",
        description=(
            "Format of log lines: `human` for people, `json` one object per line for a log collector. `auto` is human "
            "on a terminal and json elsewhere."
        ),
        examples=["json"],
        json_schema_extra=about(reload="process"),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description=(
            "Minimum severity that is logged. `warning` omits the line of each finished request; `debug` adds the "
            "messages of libraries."
        ),
        examples=["debug"],
        json_schema_extra=about(reload="hot"),
    )
    on_engine_death: Literal["restart", "exit"] = Field(
        "restart",
        description=(
            "What happens when the engine process dies: `restart` loads it again while the API answers 503, `exit` "
            "ends the server with code 1 so that a supervisor starts it again."
        ),
        examples=["exit"],
        json_schema_extra=about(reload="hot"),
    )
    max_engine_restarts: Whole = Field(
        3,
        ge=0,
        description=(
            "Maximum number of engine restarts within 10 minutes; the next failure ends the server with code 1. A "
            "higher number hides a recurring fault; 0 is the same as `on_engine_death: exit`."
        ),
        examples=[3],
        json_schema_extra=about(reload="hot", unit="restarts per 10 minutes"),
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[^\s?#]*[^\s?#/])?$",
        description=(
            "Path prefix under which a reverse proxy publishes the server, such as /llm. Requests with and without the "
            "prefix are served alike; with a proxy that removes the prefix this option is not needed."
        ),
        examples=["/llm"],
        json_schema_extra=about(reload="process"),
    )

    # socket, TLS, CORS, middleware, HTTP parser and its logs
    uds: str | None = Field(
        None,
        min_length=1,
        description=(
            "Unix socket to listen on instead of a TCP port, relative to the file that contains this option. Only "
            "processes of this machine with write permission on the socket file can connect; host and port then have "
            "no effect."
        ),
        examples=["/run/stoker/api.sock"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_keyfile: str | None = Field(
        None,
        min_length=1,
        description=(
            "PEM file with the private key of `ssl_certfile`, without a passphrase. With both the server speaks HTTPS "
            "only, so that keys and prompts are encrypted in transit; each new connection then costs a handshake."
        ),
        examples=["./tls/key.pem"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_certfile: str | None = Field(
        None,
        min_length=1,
        description=(
            "PEM file with the server's certificate, followed by its chain up to the authority. A client refuses a "
            "certificate that has expired or is for another host name."
        ),
        examples=["./tls/cert.pem"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_ca_certs: str | None = Field(
        None,
        min_length=1,
        description=(
            "PEM file with the certificate authorities that client certificates are verified against; `ssl_cert_reqs` "
            "says whether clients must have one. The machine's own list of authorities is not used."
        ),
        examples=["./tls/clients.pem"],
        json_schema_extra=about(reload="process", kind="path"),
    )
    ssl_cert_reqs: Literal[0, 1, 2] = Field(
        0,
        description=(
            "Client certificates: 0 asks for none, 1 verifies one if it is sent, 2 fails the handshake without one. "
            "They are required in addition to an api_key, not instead of it."
        ),
        examples=[2],
        json_schema_extra=about(reload="process"),
    )
    ssl_ciphers: str | None = Field(
        None,
        min_length=1,
        description=(
            "Cipher suites that connections with TLS 1.2 may use, as a list for OpenSSL. TLS 1.3 has its own suites, "
            "which remain in use. Unset, Python's selection applies; a short list excludes old clients."
        ),
        examples=["ECDHE+AESGCM:ECDHE+CHACHA20"],
        json_schema_extra=about(reload="process"),
    )
    enable_ssl_refresh: Flag = Field(
        False,
        description=(
            "Check every second whether the TLS files have changed, and use the new ones for new connections. Open "
            "connections continue; if the new files do not match each other, the old ones remain in use and an error "
            "is logged."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    allowed_origins: Texts = Field(
        (),
        description=(
            "Web sites whose scripts may call the server from a browser (CORS), such as https://chat.example; `*` is "
            "any site. Empty, browsers block all other sites; programs other than browsers are not affected."
        ),
        examples=[["https://chat.example"]],
        json_schema_extra=about(reload="process"),
    )
    allowed_methods: Texts = Field(
        ("*",),
        description=(
            "HTTP methods that scripts of `allowed_origins` may use (CORS); `*` is all. Fewer methods, such as POST "
            "alone, limit what a compromised site can do."
        ),
        examples=[["GET", "POST"]],
        json_schema_extra=about(reload="process"),
    )
    allowed_headers: Texts = Field(
        ("*",),
        description=(
            "Request headers that scripts of `allowed_origins` may set (CORS); `*` is all. Clients need Content-Type "
            "and, with keys, Authorization; official client libraries add others."
        ),
        examples=[["Authorization", "Content-Type"]],
        json_schema_extra=about(reload="process"),
    )
    allow_credentials: Flag = Field(
        False,
        description=(
            "Let browsers send cookies and stored logins with calls of `allowed_origins` (CORS). Needed with a proxy "
            "that signs users in; not needed for an API key in a header."
        ),
        examples=[True],
        json_schema_extra=about(reload="process"),
    )
    middleware: Texts = Field(
        (),
        description=(
            "Your own code around every request, given by import path: an async function (request, call_next) or an "
            "ASGI class. The first one sees a request first, before keys are checked. It runs in the API process, so "
            "slow code delays every request."
        ),
        examples=[["company.gateway.Audit"]],
        json_schema_extra=about(repeats=True, reload="process"),
    )
    max_incomplete_header_bytes: Size | Auto = Field(
        "auto",
        description=(
            "Maximum number of bytes that the HTTP parser buffers of an incomplete request head or chunk line; more is "
            "answered 431 without a body. It limits the memory per connection, while `max_header_bytes` limits "
            f"complete heads. `auto` is {INCOMPLETE_HEADER_FACTOR} times `max_header_bytes`."
        ),
        examples=["64KiB"],
        json_schema_extra=about(reload="process", unit="bytes"),
    )
    max_header_count: Count = Field(
        256,
        description="Maximum number of headers of a request; more is answered 431. Hardly any proxy sends that many.",
        examples=[256],
        json_schema_extra=about(reload="process", unit="headers"),
    )
    http_log_level: Literal["auto", "critical", "error", "warning", "info", "debug", "trace"] = Field(
        "auto",
        description=(
            "Minimum severity that the HTTP side logs: connections, TLS, and the line of each request. `debug` logs "
            "every connection, `trace` also the number of bytes sent and received. `auto` is the value of log_level."
        ),
        examples=["debug"],
        json_schema_extra=about(reload="process"),
    )
    disable_access_log: Flag = Field(
        False,
        description=(
            "Do not log the line of each finished HTTP request. Reduces the log volume of busy servers; a single "
            "request then appears only in the sums of the metrics."
        ),
        examples=[True],
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
    log_config_file: str | None = Field(
        None,
        min_length=1,
        description=(
            "JSON file for Python's `logging.config.dictConfig`, used by the server and by the engine process instead "
            "of the built-in configuration. Logger names begin with `stoker`; `stoker.server.http` is the HTTP side."
        ),
        examples=["./logging.json"],
        json_schema_extra=about(reload="process", kind="path"),
    )

    @property
    def engine_restarts(self) -> int:
        """How often an engine may be started again within 10 minutes."""
        return self.max_engine_restarts if self.on_engine_death == "restart" else 0
