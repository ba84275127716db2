"""Section `server`: addresses, TLS, limits and timeouts of connections."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...auto_values import (
    CLIENT_SHARE,
    INCOMPLETE_HEADER_FACTOR,
    MAX_CONNECTIONS,
    RESERVED_FILES,
    TOTAL_REQUEST_FACTOR,
)
from ..section import Section, about
from ..types import Auto, Count, Duration, DurationFromZero, Flag, Size, Text, Texts, Whole


class ConnectionOptions(Section):
    """The addresses of the server, and what it takes from a connection."""

    host: Text = Field(
        "127.0.0.1",
        description=(
            "Address to listen on. The default is reachable from this machine only; `0.0.0.0` is reachable from the "
            "network and then needs an api_key, or an explicit `auth: none`."
        ),
        examples=["0.0.0.0"],
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
    )

    uds: Text | None = Field(
        None,
        description=(
            "Unix socket to listen on instead of a TCP port, relative to the file that contains this option. Only "
            "processes of this machine with write permission on the socket file can connect; host and port then have "
            "no effect."
        ),
        examples=["/run/stoker/api.sock"],
        json_schema_extra=about(kind="path"),
    )

    root_path: str = Field(
        "",
        pattern=r"^(/[^\s?#]*[^\s?#/])?$",
        description=(
            "Path prefix under which a reverse proxy publishes the server, such as /llm. Requests with and without the "
            "prefix are served alike; with a proxy that removes the prefix this option is not needed."
        ),
        examples=["/llm"],
    )

    ssl_keyfile: Text | None = Field(
        None,
        description=(
            "PEM file with the private key of `ssl_certfile`, without a passphrase. With both the server speaks HTTPS "
            "only, so that keys and prompts are encrypted in transit; each new connection then costs a handshake."
        ),
        examples=["./tls/key.pem"],
        json_schema_extra=about(kind="path"),
    )

    ssl_certfile: Text | None = Field(
        None,
        description=(
            "PEM file with the server's certificate, followed by its chain up to the authority. A client refuses a "
            "certificate that has expired or is for another host name."
        ),
        examples=["./tls/cert.pem"],
        json_schema_extra=about(kind="path"),
    )

    ssl_ca_certs: Text | None = Field(
        None,
        description=(
            "PEM file with the certificate authorities that client certificates are verified against; `ssl_cert_reqs` "
            "says whether clients must have one. The machine's own list of authorities is not used."
        ),
        examples=["./tls/clients.pem"],
        json_schema_extra=about(kind="path"),
    )

    ssl_cert_reqs: Literal[0, 1, 2] = Field(
        0,
        description=(
            "Client certificates: 0 asks for none, 1 verifies one if it is sent, 2 fails the handshake without one. "
            "They are required in addition to an api_key, not instead of it."
        ),
        examples=[2],
    )

    ssl_ciphers: Text | None = Field(
        None,
        description=(
            "Cipher suites that connections with TLS 1.2 may use, as a list for OpenSSL. TLS 1.3 has its own suites, "
            "which remain in use. Unset, Python's selection applies; a short list excludes old clients."
        ),
        examples=["ECDHE+AESGCM:ECDHE+CHACHA20"],
    )

    enable_ssl_refresh: Flag = Field(
        False,
        description=(
            "Check every second whether the TLS files have changed, and use the new ones for new connections. Open "
            "connections continue; if the new files do not match each other, the old ones remain in use and an error "
            "is logged."
        ),
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
        json_schema_extra=about(unit="bytes"),
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
        json_schema_extra=about(unit="connections"),
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
        json_schema_extra=about(unit="connections"),
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

    max_incomplete_header_bytes: Size | Auto = Field(
        "auto",
        description=(
            "Maximum number of bytes that the HTTP parser buffers of an incomplete request head or chunk line; more is "
            "answered 431 without a body. It limits the memory per connection, while `max_header_bytes` limits "
            f"complete heads. `auto` is {INCOMPLETE_HEADER_FACTOR} times `max_header_bytes`."
        ),
        examples=["64KiB"],
        json_schema_extra=about(unit="bytes"),
    )

    max_header_count: Count = Field(
        256,
        description="Maximum number of headers of a request; more is answered 431. Hardly any proxy sends that many.",
        examples=[256],
        json_schema_extra=about(unit="headers"),
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

    middleware: Texts = Field(
        (),
        description=(
            "Your own code around every request, given by import path: an async function (request, call_next) or an "
            "ASGI class. The first one sees a request first, before keys are checked. It runs in the API process, so "
            "slow code delays every request."
        ),
        examples=[["company.gateway.Audit"]],
        json_schema_extra=about(repeats=True),
    )
