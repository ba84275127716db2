"""Section `server`: routes that are optional, and what they store."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..section import Section, about
from ..tool_server import TOOL_SERVERS
from ..types import Count, Duration, Flag, Size, Text, Texts


class RouteOptions(Section):
    """Optional routes, and what the server stores for them."""

    responses_store: Text | None = Field(
        None,
        description=(
            "Where /v1/responses keeps responses for `previous_response_id`, `background` and GET: `memory`, or the "
            "path of an SQLite file, which survives a restart. Unset, the server keeps no conversation of any client, "
            "and requests that need one are answered 400. A response belongs to the key that made it."
        ),
        examples=["memory", "./responses.sqlite"],
    )

    max_stored_responses: Count = Field(
        10_000,
        description=(
            "Maximum number of stored responses, of all keys together; then the oldest of the key that has most is "
            "removed. Each has the whole conversation before it."
        ),
        examples=[1000],
    )

    max_stored_bytes: Size = Field(
        256 * 1024**2,
        description=(
            "Maximum total size of stored responses; then the oldest of the key that has most are removed. Limits the "
            "memory, or the file, that clients can fill."
        ),
        examples=["1GiB"],
        json_schema_extra=about(unit="bytes"),
    )

    stored_response_ttl: Duration = Field(
        24 * 3600,
        description=(
            "Time that a response is stored. Conversations that go on later must be sent complete; a long time keeps "
            "more of what clients have written."
        ),
        examples=["30d"],
        json_schema_extra=about(unit="seconds"),
    )

    files_dir: Text | None = Field(
        None,
        description=(
            "Folder for files that clients upload, and for their batches; adds the routes /v1/files and /v1/batches. A "
            "batch runs beside other requests, which come first, and continues after a restart. The files have what "
            "clients sent and what the model answered: restrict who can read them."
        ),
        examples=["./files"],
        json_schema_extra=about(kind="path"),
    )

    files_quota: Size = Field(
        1024**3,
        description=(
            "Maximum total size of the files of one key, results of batches included; further uploads are answered "
            "413. On a server without keys it is that of all clients together."
        ),
        examples=["1GiB"],
        json_schema_extra=about(unit="bytes"),
    )

    files_ttl: Duration = Field(
        30 * 86400.0,
        description=(
            "Time after which a file, and a batch that has ended, is deleted. A file that a batch still reads is kept. "
            "A shorter time keeps less of what clients sent."
        ),
        examples=["7d"],
        json_schema_extra=about(unit="seconds"),
    )

    batch_concurrency: Count = Field(
        8,
        description=(
            "Maximum number of rows of batches that run at a time, over all batches. More fill an idle server better; "
            "other requests then share each step with more sequences. Rows begin only while no request is waiting."
        ),
        examples=[8],
        json_schema_extra=about(unit="requests"),
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
        json_schema_extra=about(json_schema=TOOL_SERVERS),
    )

    enable_server_load_tracking: Flag = Field(
        False,
        description=(
            "Serve GET /load, which reports the number of running completions: for a load balancer that selects the "
            "least busy server. It counts requests, not their size; /metrics contains more."
        ),
    )

    enable_tokenizer_info_endpoint: Flag = Field(
        False,
        description=(
            "Serve GET /tokenizer_info: the tokenizer's settings and the chat template in use. Clients can then "
            "tokenise and render locally; it shows all of them how prompts are built."
        ),
    )

    enable_admin_routes: Flag = Field(
        False,
        description=(
            "Serve POST /reset_prefix_cache, after which requests reuse nothing that was computed before: for "
            "measurements without a cache. With keys it needs one; without, everyone who can reach the server can slow "
            "it down."
        ),
    )

    lora_modules: Texts = Field(
        (),
        description=(
            "Adapters that are loaded at the start, as `lora.modules`, in the form that command lines of other servers "
            "have: each is NAME=PATH, or a JSON object with `name`, `path` and perhaps `base_model_name`; a single "
            "JSON list of such objects is accepted too."
        ),
        examples=[["sql=./adapters/sql"]],
        json_schema_extra=about(notation="objects"),
    )

    enable_lora_routes: Flag = Field(
        False,
        description=(
            "Serve POST /v1/load_lora_adapter and /v1/unload_lora_adapter, which load and forget adapters while the "
            "server runs, from folders of this machine. With keys they need one with the scope `admin`; without, "
            "everyone who can reach the server can change what it computes."
        ),
    )

    disable_docs: Flag = Field(
        False,
        description=(
            "Serve neither the OpenAPI description of the routes (/openapi.json) nor the page that shows it (/docs). "
            "If the server has keys, the description requires one in any case; the page asks for it."
        ),
    )

    disable_web_page: Flag = Field(
        False,
        description=(
            "Serve no web page at /. The page is a chat, plots of what the engine does, and the configuration; it "
            "contains nothing about the deployment itself, so that it needs no key, and asks for one to read the rest."
        ),
    )
