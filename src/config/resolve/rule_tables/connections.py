"""Rules about connections: sockets, TLS, CORS, and the limits of requests. The format of a rule: ../rule.py."""

from __future__ import annotations

import re

from ...auto_values import RESERVED_FILES
from ..rule import Rule

_HOST = re.compile(r"\*|[A-Za-z0-9_.-]+|[0-9a-fA-F:.]+")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#]+")


def knows_ciphers(names: str) -> bool:
    """Whether OpenSSL has at least one of the cipher suites for TLS 1.2."""
    import ssl  # here: takes milliseconds to load, and hardly any deployment names cipher suites

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(names)
    except (ssl.SSLError, ValueError):  # a null character
        return False
    return True


RULES: tuple[Rule, ...] = (
    Rule(
        id="R213",
        title="body_idle_timeout is at most body_timeout",
        fields=("server.body_idle_timeout", "server.body_timeout"),
        severity="warning",
        is_broken=lambda v: v.server.body_idle_timeout > v.server.body_timeout,
        message="`server.body_idle_timeout` is longer than `server.body_timeout`, so it has no effect",
        why="The limit for the whole body is reached first.",
        fixes=("make `server.body_idle_timeout` the shorter one",),
    ),
    Rule(
        id="R016",
        title="a Unix socket has no host and port",
        fields=("server.uds", "server.host", "server.port"),
        severity="warning",
        is_broken=lambda v: v.server.uds is not None and (v.is_written("server.host") or v.is_written("server.port")),
        message="`server.host` and `server.port` have no effect together with `server.uds`",
        why="The server listens on the Unix socket and opens no TCP port.",
        fixes=("remove `uds` to listen on {host}:{port}, or remove `host` and `port`",),
    ),
    Rule(
        id="R026",
        title="a key needs its certificate",
        fields=("server.ssl_keyfile", "server.ssl_certfile"),
        is_broken=lambda v: (v.server.ssl_keyfile is None) != (v.server.ssl_certfile is None),
        message="only one of `server.ssl_keyfile` and `server.ssl_certfile` is given",
        why="HTTPS needs both; without them the server speaks plain HTTP.",
        fixes=("give both, or neither for plain HTTP",),
    ),
    Rule(
        id="R027",
        title="refreshing TLS files needs TLS files",
        fields=("server.enable_ssl_refresh", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: (
            v.server.enable_ssl_refresh and v.server.ssl_certfile is None and v.server.ssl_keyfile is None
        ),
        message="`server.enable_ssl_refresh` has no effect: there are no TLS files",
        why="Without a key and a certificate the server speaks plain HTTP.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `enable_ssl_refresh`"),
    ),
    Rule(
        id="R028",
        title="verifying client certificates needs authorities",
        fields=("server.ssl_cert_reqs", "server.ssl_ca_certs"),
        is_broken=lambda v: v.server.ssl_cert_reqs != 0 and v.server.ssl_ca_certs is None,
        message="`server.ssl_cert_reqs` is {ssl_cert_reqs}, but there is no `server.ssl_ca_certs` to verify "
        "certificates against",
        why="0 asks clients for no certificate, 1 verifies one if it is sent, 2 requires one.",
        fixes=("give a file of authorities in `server.ssl_ca_certs`", "or write `ssl_cert_reqs: 0`"),
    ),
    Rule(
        id="R268",
        title="cipher suites need TLS",
        fields=("server.ssl_ciphers", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: (
            v.server.ssl_ciphers is not None and v.server.ssl_certfile is None and v.server.ssl_keyfile is None
        ),
        message="`server.ssl_ciphers` is given, but the server speaks plain HTTP",
        why="Cipher suites are part of the TLS handshake; with plain HTTP nothing would be encrypted.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `ssl_ciphers`"),
    ),
    Rule(
        id="R269",
        title="OpenSSL knows the cipher suites",
        fields=("server.ssl_ciphers",),
        is_broken=lambda v: v.server.ssl_ciphers is not None and not knows_ciphers(v.server.ssl_ciphers),
        message="`server.ssl_ciphers` is {ssl_ciphers}, which names no cipher suite that OpenSSL has for TLS 1.2",
        why="With an empty list every handshake of TLS 1.2 would fail.",
        fixes=("write names as `openssl ciphers` lists them, separated by colons", "or remove `ssl_ciphers`"),
    ),
    Rule(
        id="R029",
        title="credentials are not allowed for every site",
        fields=("server.allow_credentials", "server.allowed_origins"),
        severity="warning",
        is_broken=lambda v: v.server.allow_credentials and "*" in v.server.allowed_origins,
        message="with `server.allow_credentials` and the origin `*` every web site can send requests as its visitors",
        why="Browsers then send cookies and stored logins with the requests of any site.",
        fixes=("list the sites in `server.allowed_origins`, or remove `allow_credentials`",),
    ),
    Rule(
        id="R267",
        title="origins have the form that browsers send",
        fields=("server.allowed_origins",),
        is_broken=lambda v: not all(map(_ORIGIN.fullmatch, v.server.allowed_origins)),
        message="`server.allowed_origins` is {allowed_origins}, which contains an invalid origin",
        why="A browser sends scheme, host and port only; an origin of another form would never match.",
        fixes=("write scheme://host or scheme://host:port without a slash at the end, or `*` for any site",),
    ),
    Rule(
        id="R497",
        title="names of the server have neither scheme nor port",
        fields=("server.allowed_hosts",),
        is_broken=lambda v: not all(map(_HOST.fullmatch, v.server.allowed_hosts)),
        message="`server.allowed_hosts` is {allowed_hosts}, which contains an invalid name",
        why="It is compared with the name that a client asked for, without its port.",
        fixes=("write names such as llm.example, addresses without brackets, or `*` for any name",),
    ),
    Rule(
        id="R260",
        title="CORS options need allowed_origins",
        fields=(
            "server.allowed_origins",
            "server.allow_credentials",
            "server.allowed_methods",
            "server.allowed_headers",
        ),
        severity="warning",
        is_broken=lambda v: (
            not v.server.allowed_origins
            and any(
                v.is_written(f"server.{name}") for name in ("allow_credentials", "allowed_methods", "allowed_headers")
            )
        ),
        message="`server.allowed_origins` is empty, so the other CORS options have no effect",
        why="Without allowed origins browsers block scripts of all other sites.",
        fixes=("list the sites in `server.allowed_origins`",),
    ),
    Rule(
        id="R261",
        title="the parser can buffer a whole request head",
        fields=("server.max_incomplete_header_bytes", "server.max_header_bytes"),
        severity="warning",
        is_broken=lambda v: v.server.max_incomplete_header_bytes < v.server.max_header_bytes,
        message=(
            "`server.max_incomplete_header_bytes` is {max_incomplete_header_bytes}, less than "
            "`server.max_header_bytes` ({max_header_bytes})"
        ),
        why="A head of a size between the two that arrives in several packets is refused by the parser, without a "
        "message.",
        fixes=("leave it on auto",),
    ),
    Rule(
        id="R263",
        title="authorities need client certificates",
        fields=("server.ssl_ca_certs", "server.ssl_cert_reqs"),
        severity="warning",
        is_broken=lambda v: v.server.ssl_ca_certs is not None and v.server.ssl_cert_reqs == 0,
        message="`server.ssl_ca_certs` has no effect: clients are not asked for a certificate",
        why="With `ssl_cert_reqs: 0` no certificate is verified.",
        fixes=("write `ssl_cert_reqs: 2` to require client certificates, or 1 to accept them",),
    ),
    Rule(
        id="R264",
        title="client certificates need TLS",
        fields=("server.ssl_cert_reqs", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: (
            v.server.ssl_cert_reqs != 0 and v.server.ssl_certfile is None and v.server.ssl_keyfile is None
        ),
        message="`server.ssl_cert_reqs` is {ssl_cert_reqs}, but the server speaks plain HTTP",
        why="Client certificates are part of the TLS handshake; with plain HTTP nothing would be verified.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `ssl_cert_reqs`"),
    ),
    Rule(
        id="R294",
        title="the largest request body is within the limit of all bodies",
        fields=("server.max_total_request_bytes", "server.max_request_bytes"),
        is_broken=lambda v: v.server.max_total_request_bytes < v.server.max_request_bytes,
        message="`server.max_total_request_bytes` is {max_total_request_bytes}, less than `server.max_request_bytes` "
        "({max_request_bytes})",
        why="A body of a size between the two could never be received.",
        fixes=("raise `server.max_total_request_bytes`, or lower `max_request_bytes`",),
    ),
    Rule(
        id="R295",
        title="the process may open a file for each connection",
        fields=("server.max_connections",),
        about_machine=True,
        is_broken=lambda v: (
            v.machine.max_connections is not None and v.server.max_connections > v.machine.max_connections
        ),
        message="`server.max_connections` is {max_connections}; this process may open {max_open_files} files",
        why=f"Each connection is an open file, and {RESERVED_FILES} are kept for other uses. Without a free one no "
        "connection can be accepted.",
        fixes=(
            "raise the hard limit of open files (`ulimit -Hn`, LimitNOFILE of systemd)",
            "or lower `server.max_connections`, or leave it on auto",
        ),
    ),
    Rule(
        id="R296",
        title="one client has at most all connections",
        fields=("server.max_connections_per_client", "server.max_connections"),
        severity="warning",
        is_broken=lambda v: v.server.max_connections_per_client > v.server.max_connections,
        message="`server.max_connections_per_client` ({max_connections_per_client}) has no effect: "
        "`server.max_connections` is {max_connections}",
        why="The limit of all connections is reached first.",
        fixes=("lower `server.max_connections_per_client`, or leave it on auto",),
    ),
)
