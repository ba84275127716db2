"""Rules about the HTTP side. The format of a rule: ../rule.py."""

from __future__ import annotations

import ipaddress
import re

from ....formats.registry import is_tool_format
from ...auto_values import (
    CLIENT_SHARE,
    INCOMPLETE_HEADER_FACTOR,
    MAX_CONNECTIONS,
    RESERVED_FILES,
    TOTAL_REQUEST_FACTOR,
)
from ...schema.server import OPEN_ROUTES
from ..rule import Rule, StatedRule
from ..values import Values

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#]+")


def is_loopback(host: str) -> bool:
    """Whether the address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def has_keys(v: Values) -> bool:
    return bool(v.api_key) or v.api_keys_file is not None


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
        id="R019",
        title="logging answers needs logging requests",
        fields=("server.enable_log_outputs", "server.enable_log_requests"),
        is_broken=lambda v: v.enable_log_outputs and not v.enable_log_requests,
        message="`server.enable_log_outputs` needs `server.enable_log_requests`",
        why="An answer in the log is of no use without its request.",
        fixes=("set `server.enable_log_requests: true`, or remove `enable_log_outputs`",),
    ),
    Rule(
        id="R021",
        title="max_log_len needs enable_log_requests",
        fields=("server.max_log_len", "server.enable_log_requests"),
        severity="warning",
        is_broken=lambda v: v.max_log_len is not None and not v.enable_log_requests,
        message="`server.max_log_len` has no effect while `server.enable_log_requests` is off",
        why="Without enable_log_requests no prompt is logged; with it and without max_log_len prompts are logged "
        "completely.",
        fixes=("set `server.enable_log_requests: true`, or remove `max_log_len`",),
    ),
    Rule(
        id="R022",
        title="token ids appear in log-probabilities only",
        fields=("server.return_tokens_as_token_ids", "model.max_logprobs"),
        severity="warning",
        is_broken=lambda v: v.return_tokens_as_token_ids and v.max_logprobs == 0,
        message="`server.return_tokens_as_token_ids` has hardly any effect: `model.max_logprobs` is 0",
        why="It changes how tokens of log-probabilities are shown; with 0 a request gets that of the sampled token at "
        "most.",
        fixes=("raise `model.max_logprobs`, or remove `return_tokens_as_token_ids`",),
    ),
    Rule(
        id="R024",
        title="chat_template is a file or a template",
        fields=("server.chat_template",),
        is_broken=lambda v: bool(v.template_problem),
        message="`server.chat_template` is neither a template nor a file that can be read: {template_problem}",
        why="The value is the name of an existing file, or a text with `{{` or `{%`, which is the template itself.",
        fixes=("check the file name, which is relative to the file that contains it",),
    ),
    Rule(
        id="R201",
        title="an address that other machines can reach needs a key",
        fields=("server.host", "server.api_key", "server.api_keys_file", "server.auth"),
        is_broken=lambda v: v.auth == "key" and not has_keys(v) and v.uds is None and not is_loopback(v.host),
        message="`server.host` is {host}, which other machines can reach, and there is no `server.api_key`",
        why="Everyone who can reach the port could use the model and read its metrics.",
        fixes=(
            "set `server.api_key`, for example `api_key: {{env: API_KEY}}`",
            "or write `auth: none` to serve without keys",
            "or listen on 127.0.0.1",
        ),
    ),
    Rule(
        id="R297",
        title="a route without a key shows no request and changes nothing",
        fields=("server.routes_without_key",),
        is_broken=lambda v: not set(v.routes_without_key) <= set(OPEN_ROUTES),
        message="`server.routes_without_key` is {routes_without_key}",
        why="Other routes use the engine or change it, so they need a key; the probes need none anyway.",
        fixes=(f"name only {', '.join(OPEN_ROUTES)}",),
    ),
    Rule(
        id="R271",
        title="routes without a key need a key on the others",
        fields=("server.routes_without_key", "server.api_key", "server.api_keys_file"),
        severity="warning",
        is_broken=lambda v: bool(v.routes_without_key) and not has_keys(v),
        message="`server.routes_without_key` has no effect: there is no `server.api_key`, so no route needs one",
        why="It opens single routes of a server that has keys.",
        fixes=("set `server.api_key`, or remove `routes_without_key`",),
    ),
    Rule(
        id="R345",
        title="several API processes need the engine in a process of its own",
        fields=("server.api_server_count", "server.disable_frontend_multiprocessing"),
        is_broken=lambda v: v.api_server_count > 1 and v.disable_frontend_multiprocessing,
        message="`server.api_server_count` is {api_server_count}, and the engine runs inside the API process "
        "(`server.disable_frontend_multiprocessing`)",
        why="One engine serves all API processes, so it cannot be part of one of them.",
        fixes=("remove `disable_frontend_multiprocessing`, or set `api_server_count` to 1",),
    ),
    Rule(
        id="R346",
        title="stored responses need one API process",
        fields=("server.api_server_count", "server.responses_store"),
        is_broken=lambda v: v.api_server_count > 1 and v.responses_store is not None,
        message="`server.api_server_count` is {api_server_count}, and `server.responses_store` keeps responses",
        why="A response in the background runs in one API process; the others could neither cancel it nor say whether "
        "it still runs.",
        fixes=("remove `responses_store`, or set `api_server_count` to 1",),
    ),
    Rule(
        id="R347",
        title="an alias means a served name",
        fields=("server.model_aliases", "model.served_model_name"),
        is_broken=lambda v: not set(v.model_aliases.values()) <= set(v.served_model_name or (v.model,)),
        message="`server.model_aliases` has a name on its right side that is not served",
        why="A request that uses the alias would be answered 404.",
        fixes=("write a name of `model.served_model_name`, or without it `model.model`",),
    ),
    Rule(
        id="R208",
        title="auth none and keys contradict each other",
        fields=("server.auth", "server.api_key", "server.api_keys_file"),
        is_broken=lambda v: v.auth == "none" and has_keys(v),
        message="`server.auth` is none, but there is a `server.api_key` or a `server.api_keys_file`",
        why="It is not clear which one is intended, and a wrong guess opens the server to everyone.",
        fixes=("remove `auth: none` to check keys, or the keys to serve without them",),
    ),
    Rule(
        id="R226",
        title="options of chats and of the tokenizer need a tokenizer",
        fields=(
            "model.skip_tokenizer_init",
            "server.chat_template_content_format",
            "server.trust_request_chat_template",
            "server.exclude_tools_when_tool_choice_none",
            "server.enable_tokenizer_info_endpoint",
        ),
        is_broken=lambda v: (
            v.skip_tokenizer_init
            and (
                v.chat_template_content_format != "auto"
                or v.trust_request_chat_template
                or v.exclude_tools_when_tool_choice_none
                or v.enable_tokenizer_info_endpoint
            )
        ),
        message="without a tokenizer there are no chats and no tokenizer information, so these options have no effect",
        why="With skip_tokenizer_init requests contain token ids; /v1/chat/completions and /tokenizer_info are not "
        "available.",
        fixes=("remove these options of `server`, or `model.skip_tokenizer_init`",),
    ),
    Rule(
        id="R213",
        title="body_idle_timeout is at most body_timeout",
        fields=("server.body_idle_timeout", "server.body_timeout"),
        severity="warning",
        is_broken=lambda v: v.body_idle_timeout > v.body_timeout,
        message="`server.body_idle_timeout` is longer than `server.body_timeout`, so it has no effect",
        why="The limit for the whole body is reached first.",
        fixes=("make `server.body_idle_timeout` the shorter one",),
    ),
    Rule(
        id="R214",
        title="a limit of restarts needs restarts",
        fields=("server.max_engine_restarts", "server.on_engine_death"),
        severity="warning",
        is_broken=lambda v: v.on_engine_death == "exit" and v.is_written("server.max_engine_restarts"),
        message="`server.max_engine_restarts` has no effect with `on_engine_death: exit`",
        why="The server ends when the engine dies for the first time.",
        fixes=("remove one of the two",),
    ),
    Rule(
        id="R215",
        title="an engine in the API process cannot be restarted",
        fields=("server.on_engine_death", "server.disable_frontend_multiprocessing"),
        is_broken=lambda v: (
            v.disable_frontend_multiprocessing
            and v.on_engine_death == "restart"
            and v.is_written("server.on_engine_death")
        ),
        message="with `server.disable_frontend_multiprocessing` there is no engine process that could be restarted",
        why="A crash of the engine is then a crash of the server; a supervisor restarts both.",
        fixes=("write `on_engine_death: exit`, or run the engine in a separate process",),
    ),
    Rule(
        id="R016",
        title="a Unix socket has no host and port",
        fields=("server.uds", "server.host", "server.port"),
        severity="warning",
        is_broken=lambda v: v.uds is not None and (v.is_written("server.host") or v.is_written("server.port")),
        message="`server.host` and `server.port` have no effect together with `server.uds`",
        why="The server listens on the Unix socket and opens no TCP port.",
        fixes=("remove `uds` to listen on {host}:{port}, or remove `host` and `port`",),
    ),
    Rule(
        id="R026",
        title="a key needs its certificate",
        fields=("server.ssl_keyfile", "server.ssl_certfile"),
        is_broken=lambda v: (v.ssl_keyfile is None) != (v.ssl_certfile is None),
        message="only one of `server.ssl_keyfile` and `server.ssl_certfile` is given",
        why="HTTPS needs both; without them the server speaks plain HTTP.",
        fixes=("give both, or neither for plain HTTP",),
    ),
    Rule(
        id="R027",
        title="refreshing TLS files needs TLS files",
        fields=("server.enable_ssl_refresh", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: v.enable_ssl_refresh and v.ssl_certfile is None and v.ssl_keyfile is None,
        message="`server.enable_ssl_refresh` has no effect: there are no TLS files",
        why="Without a key and a certificate the server speaks plain HTTP.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `enable_ssl_refresh`"),
    ),
    Rule(
        id="R028",
        title="verifying client certificates needs authorities",
        fields=("server.ssl_cert_reqs", "server.ssl_ca_certs"),
        is_broken=lambda v: v.ssl_cert_reqs != 0 and v.ssl_ca_certs is None,
        message="`server.ssl_cert_reqs` is {ssl_cert_reqs}, but there is no `server.ssl_ca_certs` to verify "
        "certificates against",
        why="0 asks clients for no certificate, 1 verifies one if it is sent, 2 requires one.",
        fixes=("give a file of authorities in `server.ssl_ca_certs`", "or write `ssl_cert_reqs: 0`"),
    ),
    Rule(
        id="R268",
        title="cipher suites need TLS",
        fields=("server.ssl_ciphers", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: v.ssl_ciphers is not None and v.ssl_certfile is None and v.ssl_keyfile is None,
        message="`server.ssl_ciphers` is given, but the server speaks plain HTTP",
        why="Cipher suites are part of the TLS handshake; with plain HTTP nothing would be encrypted.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `ssl_ciphers`"),
    ),
    Rule(
        id="R269",
        title="OpenSSL knows the cipher suites",
        fields=("server.ssl_ciphers",),
        is_broken=lambda v: v.ssl_ciphers is not None and not knows_ciphers(v.ssl_ciphers),
        message="`server.ssl_ciphers` is {ssl_ciphers}, which names no cipher suite that OpenSSL has for TLS 1.2",
        why="With an empty list every handshake of TLS 1.2 would fail.",
        fixes=("write names as `openssl ciphers` lists them, separated by colons", "or remove `ssl_ciphers`"),
    ),
    Rule(
        id="R270",
        title="paths without a log line begin with a slash",
        fields=("server.disable_access_log_for_endpoints",),
        is_broken=lambda v: not all(path.startswith("/") for path in v.disable_access_log_for_endpoints),
        message="`server.disable_access_log_for_endpoints` contains a path that does not begin with a slash",
        why="It is compared with the path of the request, so it would never match.",
        fixes=("write paths such as /v1/models",),
    ),
    Rule(
        id="R029",
        title="credentials are not allowed for every site",
        fields=("server.allow_credentials", "server.allowed_origins"),
        severity="warning",
        is_broken=lambda v: v.allow_credentials and "*" in v.allowed_origins,
        message="with `server.allow_credentials` and the origin `*` every web site can send requests as its visitors",
        why="Browsers then send cookies and stored logins with the requests of any site.",
        fixes=("list the sites in `server.allowed_origins`, or remove `allow_credentials`",),
    ),
    Rule(
        id="R035",
        title="one file configures all loggers",
        fields=("server.log_config_file",),
        is_broken=lambda v: bool(v.log_config_problem),
        message="`server.log_config_file`: {log_config_problem}",
        why="Server and engine process both use it instead of the built-in configuration.",
        fixes=("write a JSON object for Python's logging.config.dictConfig",),
    ),
    Rule(
        id="R267",
        title="origins have the form that browsers send",
        fields=("server.allowed_origins",),
        is_broken=lambda v: not all(map(_ORIGIN.fullmatch, v.allowed_origins)),
        message="`server.allowed_origins` is {allowed_origins}, which contains an invalid origin",
        why="A browser sends scheme, host and port only; an origin of another form would never match.",
        fixes=("write scheme://host or scheme://host:port without a slash at the end, or `*` for any site",),
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
            not v.allowed_origins
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
        is_broken=lambda v: v.max_incomplete_header_bytes < v.max_header_bytes,
        message=(
            "`server.max_incomplete_header_bytes` is {max_incomplete_header_bytes}, less than "
            "`server.max_header_bytes` ({max_header_bytes})"
        ),
        why="A head of a size between the two that arrives in several packets is refused by the parser, without a "
        "message.",
        fixes=("leave it on auto",),
    ),
    Rule(
        id="R262",
        title="log_config_file replaces the other logging options",
        fields=("server.log_config_file", "server.log_level", "server.log_format", "server.http_log_level"),
        severity="warning",
        is_broken=lambda v: (
            v.log_config_file is not None
            and any(v.is_written(f"server.{name}") for name in ("log_level", "log_format", "http_log_level"))
        ),
        message="log levels and formats have no effect together with `server.log_config_file`",
        why="The file replaces the built-in configuration completely.",
        fixes=("write them in that file, or remove `log_config_file`",),
    ),
    Rule(
        id="R263",
        title="authorities need client certificates",
        fields=("server.ssl_ca_certs", "server.ssl_cert_reqs"),
        severity="warning",
        is_broken=lambda v: v.ssl_ca_certs is not None and v.ssl_cert_reqs == 0,
        message="`server.ssl_ca_certs` has no effect: clients are not asked for a certificate",
        why="With `ssl_cert_reqs: 0` no certificate is verified.",
        fixes=("write `ssl_cert_reqs: 2` to require client certificates, or 1 to accept them",),
    ),
    Rule(
        id="R264",
        title="client certificates need TLS",
        fields=("server.ssl_cert_reqs", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: v.ssl_cert_reqs != 0 and v.ssl_certfile is None and v.ssl_keyfile is None,
        message="`server.ssl_cert_reqs` is {ssl_cert_reqs}, but the server speaks plain HTTP",
        why="Client certificates are part of the TLS handshake; with plain HTTP nothing would be verified.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `ssl_cert_reqs`"),
    ),
    Rule(
        id="R294",
        title="the largest request body is within the limit of all bodies",
        fields=("server.max_total_request_bytes", "server.max_request_bytes"),
        is_broken=lambda v: v.max_total_request_bytes < v.max_request_bytes,
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
        is_broken=lambda v: v.machine.max_connections is not None and v.max_connections > v.machine.max_connections,
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
        is_broken=lambda v: v.max_connections_per_client > v.max_connections,
        message="`server.max_connections_per_client` ({max_connections_per_client}) has no effect: "
        "`server.max_connections` is {max_connections}",
        why="The limit of all connections is reached first.",
        fixes=("lower `server.max_connections_per_client`, or leave it on auto",),
    ),
    Rule(
        id="R018",
        title="a tool call parser is a format, or one of the plugin",
        fields=("server.tool_call_parser", "server.tool_parser_plugin"),
        is_broken=lambda v: not v.tool_parser_plugin and not is_tool_format(v.tool_call_parser),
        message="`server.tool_call_parser` is {tool_call_parser}, and no format has this name",
        why="A misspelled name would leave every tool call in the text of the answers. A plugin is read at the start, "
        "so a name of its format is checked then.",
        fixes=(
            "`auto` finds the format by the model's chat template",
            "a format of your own: `server.tool_parser_plugin`",
        ),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R015",
        "tool servers are host:port or demo",
        ("server.tool_server",),
        "Here each has a label and a URL or a command, which the schema of the option checks.",
    ),
    StatedRule(
        "R017",
        "automatic tool choice needs a parser",
        ("server.enable_auto_tool_choice", "server.tool_call_parser"),
        "No switch is needed: `server.tool_call_parser` is `auto` unless it is set.",
    ),
    StatedRule(
        "R020",
        "disable_log_requests is the opposite of enable_log_requests",
        ("server.enable_log_requests",),
        "The old name is mapped onto the new one before layers are merged, so there is only one value.",
    ),
    StatedRule(
        "R023",
        "templates in requests need trust_request_chat_template",
        ("server.chat_template", "server.trust_request_chat_template"),
        "Without it such a request is answered 400. Requests without a template use the server's chat_template, "
        "otherwise "
        "the tokenizer's template.",
    ),
    StatedRule(
        "R025",
        "interleaved media need content of format string",
        ("server.chat_template_content_format",),
        "Media in messages are refused in this build, so there is nothing to interleave.",
    ),
    StatedRule(
        "R030",
        "each of the keys gives access to the API",
        ("server.api_key",),
        "Without keys the API is open; R201 says when that is refused.",
    ),
    StatedRule(
        "R031",
        "keys are required for every route except health",
        ("server.api_key",),
        "Other servers require keys for versioned routes only; here an open route is an explicit exception.",
    ),
    StatedRule(
        "R033",
        "request ids have a small cost",
        ("server.enable_request_id_headers",),
        "One header is read and one written for each answer: some microseconds, so there is no warning.",
    ),
    StatedRule(
        "R034",
        "tokenizer information is off by default",
        ("server.enable_tokenizer_info_endpoint",),
        "The route exists only if it is enabled, and requires a key like all others.",
    ),
    StatedRule(
        "R037",
        "response_role is the role of generated messages",
        ("server.response_role",),
        "With `add_generation_prompt: false` the model continues the client's last message, whose role is kept.",
    ),
    StatedRule(
        "R041",
        "reasoning needs a parser",
        (),
        "There is no separate switch: the deprecated enable_reasoning is an error that refers to the parser.",
    ),
    StatedRule(
        "R042",
        "a reasoning parser needs no switch",
        (),
        "There is no separate switch, so a parser always has an effect.",
    ),
    StatedRule(
        "R224", "auto decides the log format", ("server.log_format",), "human if stderr is a terminal, json otherwise."
    ),
    StatedRule(
        "R032",
        "middleware is an async function or an ASGI class",
        ("server.middleware",),
        "Each is imported before the weights are loaded; anything else, or a failed import, ends the start.",
    ),
    StatedRule(
        "R036",
        "limits of the HTTP parser are positive",
        ("server.max_incomplete_header_bytes", "server.max_header_count"),
        "Values below 1 are refused. The defaults are stricter than the 4 MiB of other servers.",
    ),
    StatedRule(
        "R038",
        "a server without a listener has no API processes",
        ("server.headless", "server.api_server_count"),
        "A headless node starts none, whatever the number.",
    ),
    StatedRule(
        "R039",
        "headless excludes an internal load balancer",
        ("server.headless",),
        "A headless node belongs to one replica, which has no other beside it (R423).",
    ),
    StatedRule(
        "R040",
        "headless is for further nodes",
        ("server.headless",),
        "A node with a rank above 0 is headless, and no other (R422).",
    ),
    StatedRule(
        "R265",
        "auto uses log_level for the HTTP side",
        ("server.http_log_level", "server.log_level"),
        "http_log_level is log_level unless it is set.",
    ),
    StatedRule(
        "R290",
        "auto limits all bodies to a multiple of one",
        ("server.max_total_request_bytes", "server.max_request_bytes"),
        f"auto is {TOTAL_REQUEST_FACTOR} times max_request_bytes.",
    ),
    StatedRule(
        "R292",
        "auto limits connections to the open files of the process",
        ("server.max_connections",),
        f"auto is {MAX_CONNECTIONS}, or the hard limit of open files less {RESERVED_FILES} if that is lower.",
    ),
    StatedRule(
        "R293",
        "auto leaves connections for other clients",
        ("server.max_connections_per_client", "server.max_connections"),
        f"auto is {CLIENT_SHARE:.0%} of max_connections: enough for a reverse proxy, and not all of them.",
    ),
    StatedRule(
        "R266",
        "auto lets the parser buffer more than max_header_bytes",
        ("server.max_incomplete_header_bytes", "server.max_header_bytes"),
        f"auto is {INCOMPLETE_HEADER_FACTOR} times max_header_bytes: a head that is slightly too large is then "
        "answered with a "
        "message.",
    ),
)
