"""Rules about the HTTP side. How a rule is written: ../rule.py."""

from __future__ import annotations

import ipaddress
import re

from ..rule import Rule, StatedRule

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#]+")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


RULES: tuple[Rule, ...] = (
    Rule(
        id="R019",
        title="answers are logged beside their requests",
        fields=("server.enable_log_outputs", "server.enable_log_requests"),
        is_broken=lambda v: v.enable_log_outputs and not v.enable_log_requests,
        message="`server.enable_log_outputs` needs `server.enable_log_requests`",
        why="An answer in the log without what it answers is of no use, and one of the two is not meant.",
        fixes=("set `server.enable_log_requests: true`, or remove `enable_log_outputs`",),
    ),
    Rule(
        id="R021",
        title="max_log_len cuts what is logged",
        fields=("server.max_log_len", "server.enable_log_requests"),
        severity="warning",
        is_broken=lambda v: v.max_log_len is not None and not v.enable_log_requests,
        message="`server.max_log_len` has no effect while `server.enable_log_requests` is off",
        why="Without enable_log_requests no prompt is logged; with it and no max_log_len prompts are logged whole.",
        fixes=("set `server.enable_log_requests: true`, or remove `max_log_len`",),
    ),
    Rule(
        id="R022",
        title="token names are seen in log-probabilities alone",
        fields=("server.return_tokens_as_token_ids", "model.max_logprobs"),
        severity="warning",
        is_broken=lambda v: v.return_tokens_as_token_ids and v.max_logprobs == 0,
        message="`server.return_tokens_as_token_ids` changes nothing but the likeliest tokens, and "
        "`model.max_logprobs` is 0",
        why="It names the tokens of log-probabilities; of these a request then gets at most the chosen token's own.",
        fixes=("raise `model.max_logprobs`, or remove `return_tokens_as_token_ids`",),
    ),
    Rule(
        id="R024",
        title="chat_template is a file or a template",
        fields=("server.chat_template",),
        is_broken=lambda v: v.chat_template is not None and v.template_text is None,
        message="`server.chat_template` is neither a file that can be read nor a template",
        why="A value that names an existing file is read; a text that holds `{{` or `{%` is the template itself.",
        fixes=("check the file's name, which is relative to the file that wrote it",),
    ),
    Rule(
        id="R201",
        title="an address that others reach needs a key",
        fields=("server.host", "server.api_key", "server.auth"),
        is_broken=lambda v: v.auth == "key" and not v.api_key and v.uds is None and not is_loopback(v.host),
        message="`server.host` is {host}, which other machines reach, and there is no `server.api_key`",
        why="Whoever reaches the port could use the model and read its metrics.",
        fixes=(
            "set `server.api_key`, for example `api_key: {{env: API_KEY}}`",
            "or write `auth: none` to serve without keys",
            "or listen on 127.0.0.1",
        ),
    ),
    Rule(
        id="R208",
        title="auth none and keys contradict each other",
        fields=("server.auth", "server.api_key"),
        is_broken=lambda v: v.auth == "none" and bool(v.api_key),
        message="`server.auth` is none, but there is a `server.api_key`",
        why="One of the two is not meant, and guessing wrong opens the server.",
        fixes=("remove `auth: none` to check keys, or `api_key` to serve without",),
    ),
    Rule(
        id="R226",
        title="what is about chats and the tokenizer needs one",
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
        message="without a tokenizer there are no chats and nothing to show of it, so what is set for them is idle",
        why="With skip_tokenizer_init requests carry token ids; /v1/chat/completions and /tokenizer_info serve nobody.",
        fixes=("remove the options of `server` that are about chats, or `model.skip_tokenizer_init`",),
    ),
    Rule(
        id="R213",
        title="a gap in a body is shorter than the whole",
        fields=("server.body_idle_timeout", "server.body_timeout"),
        severity="warning",
        is_broken=lambda v: v.body_idle_timeout > v.body_timeout,
        message="`server.body_idle_timeout` is longer than `server.body_timeout`, so it is never reached",
        why="The whole body times out first.",
        fixes=("make `server.body_idle_timeout` the shorter one",),
    ),
    Rule(
        id="R214",
        title="without restarts there is no limit to them",
        fields=("server.max_engine_restarts", "server.on_engine_death"),
        severity="warning",
        is_broken=lambda v: v.on_engine_death == "exit" and v.is_written("server.max_engine_restarts"),
        message="`server.max_engine_restarts` has no effect with `on_engine_death: exit`",
        why="The server ends at the first death of the engine.",
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
        why="A crash of the engine is then a crash of the server; its supervisor restarts both.",
        fixes=("write `on_engine_death: exit`, or keep the engine in its own process",),
    ),
    Rule(
        id="R016",
        title="a Unix socket has no host and port",
        fields=("server.uds", "server.host", "server.port"),
        severity="warning",
        is_broken=lambda v: v.uds is not None and (v.is_written("server.host") or v.is_written("server.port")),
        message="`server.host` and `server.port` have no effect beside `server.uds`",
        why="The server listens on the Unix socket and opens no TCP port.",
        fixes=("remove `uds` to listen on {host}:{port}, or the other two",),
    ),
    Rule(
        id="R026",
        title="a key and its certificate belong together",
        fields=("server.ssl_keyfile", "server.ssl_certfile"),
        is_broken=lambda v: (v.ssl_keyfile is None) != (v.ssl_certfile is None),
        message="of `server.ssl_keyfile` and `server.ssl_certfile` only one is given",
        why="HTTPS needs both; with neither the server speaks plain HTTP.",
        fixes=("give both, or neither for plain HTTP",),
    ),
    Rule(
        id="R027",
        title="TLS files are watched where there are any",
        fields=("server.enable_ssl_refresh", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: v.enable_ssl_refresh and v.ssl_certfile is None and v.ssl_keyfile is None,
        message="`server.enable_ssl_refresh` has no files to watch",
        why="Without a key and a certificate the server speaks plain HTTP.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `enable_ssl_refresh`"),
    ),
    Rule(
        id="R028",
        title="client certificates are checked against authorities",
        fields=("server.ssl_cert_reqs", "server.ssl_ca_certs"),
        is_broken=lambda v: v.ssl_cert_reqs != 0 and v.ssl_ca_certs is None,
        message="`server.ssl_cert_reqs` is {ssl_cert_reqs}, but no `server.ssl_ca_certs` says whose certificates count",
        why="0 asks clients for no certificate, 1 checks one that is sent, 2 demands one.",
        fixes=("name a file of authorities in `server.ssl_ca_certs`", "or write `ssl_cert_reqs: 0`"),
    ),
    Rule(
        id="R029",
        title="credentials from any site are a danger",
        fields=("server.allow_credentials", "server.allowed_origins"),
        severity="warning",
        is_broken=lambda v: v.allow_credentials and "*" in v.allowed_origins,
        message="with `server.allow_credentials` and the origin `*` every web site can call in its visitors' names",
        why="Browsers then send cookies and stored logins along, whichever site asks.",
        fixes=("list the sites in `server.allowed_origins`, or remove `allow_credentials`",),
    ),
    Rule(
        id="R035",
        title="one file configures all loggers",
        fields=("server.log_config_file",),
        is_broken=lambda v: bool(v.log_config_problem),
        message="`server.log_config_file`: {log_config_problem}",
        why="Server and engine process both read it, in place of the built-in set-up.",
        fixes=("write a JSON object as Python's logging.config.dictConfig takes it",),
    ),
    Rule(
        id="R267",
        title="an origin is what browsers call one",
        fields=("server.allowed_origins",),
        is_broken=lambda v: not all(map(_ORIGIN.fullmatch, v.allowed_origins)),
        message="`server.allowed_origins` is {allowed_origins}, and not each of these can be the origin of a call",
        why="A browser names scheme, host and port and nothing behind; a text of another form would never match.",
        fixes=("write scheme://host or scheme://host:port without a slash at the end, or `*` for any site",),
    ),
    Rule(
        id="R260",
        title="without an origin there is nothing to allow",
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
        message="no `server.allowed_origins` are given, so what scripts of other sites may do has no effect",
        why="Browsers keep scripts of other sites out altogether.",
        fixes=("list the sites in `server.allowed_origins`",),
    ),
    Rule(
        id="R261",
        title="the parser holds a whole head",
        fields=("server.h11_max_incomplete_event_size", "server.max_header_bytes"),
        severity="warning",
        is_broken=lambda v: v.h11_max_incomplete_event_size < v.max_header_bytes,
        message=(
            "`server.h11_max_incomplete_event_size` is {h11_max_incomplete_event_size}, less than "
            "`server.max_header_bytes` ({max_header_bytes})"
        ),
        why="A head between the two that arrives in pieces is refused by the parser, with an answer that says nothing.",
        fixes=("leave it on auto, which is twice `server.max_header_bytes`",),
    ),
    Rule(
        id="R262",
        title="a logging file says everything",
        fields=("server.log_config_file", "server.log_level", "server.log_format", "server.uvicorn_log_level"),
        severity="warning",
        is_broken=lambda v: (
            v.log_config_file is not None
            and any(v.is_written(f"server.{name}") for name in ("log_level", "log_format", "uvicorn_log_level"))
        ),
        message="levels and formats of the deployment have no effect beside `server.log_config_file`",
        why="The file replaces the built-in set-up whole.",
        fixes=("write them in that file, or remove it",),
    ),
    Rule(
        id="R263",
        title="authorities are for client certificates",
        fields=("server.ssl_ca_certs", "server.ssl_cert_reqs"),
        severity="warning",
        is_broken=lambda v: v.ssl_ca_certs is not None and v.ssl_cert_reqs == 0,
        message="`server.ssl_ca_certs` has no effect: clients are not asked for a certificate",
        why="With `ssl_cert_reqs: 0` nothing is checked against it.",
        fixes=("write `ssl_cert_reqs: 2` to demand client certificates, or 1 to accept them",),
    ),
    Rule(
        id="R264",
        title="client certificates come with TLS",
        fields=("server.ssl_cert_reqs", "server.ssl_certfile", "server.ssl_keyfile"),
        is_broken=lambda v: v.ssl_cert_reqs != 0 and v.ssl_certfile is None and v.ssl_keyfile is None,
        message="`server.ssl_cert_reqs` is {ssl_cert_reqs}, but the server speaks plain HTTP",
        why="Client certificates are part of the TLS handshake; over plain HTTP everybody would get in.",
        fixes=("give `server.ssl_keyfile` and `server.ssl_certfile`", "or remove `ssl_cert_reqs`"),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R015",
        "tool servers are host:port, or demo",
        ("server.tool_server",),
        "The option is refused in this build, so no such list is ever read.",
    ),
    StatedRule(
        "R017",
        "automatic tool choice needs a parser",
        ("server.enable_auto_tool_choice", "server.tool_call_parser"),
        "Both are refused in this build: tool calls stay in the text of the answer.",
    ),
    StatedRule(
        "R018",
        "a plugin is imported before its parser is looked up",
        ("server.tool_call_parser", "server.tool_parser_plugin"),
        "Both are refused in this build, so no plugin is imported.",
    ),
    StatedRule(
        "R020",
        "disable_log_requests is the opposite of enable_log_requests",
        ("server.enable_log_requests",),
        "The old name is mapped onto the new one before layers are merged, so the stronger layer decides and there are "
        "never two values.",
    ),
    StatedRule(
        "R023",
        "a template in a request is used where the deployment trusts it",
        ("server.chat_template", "server.trust_request_chat_template"),
        "Without trust_request_chat_template such a request is a 400, and never answered with another template than "
        "it asked for. Requests that bring none get the server's chat_template, else the tokenizer's own.",
    ),
    StatedRule(
        "R025",
        "interleaved media need content as a string",
        ("server.chat_template_content_format",),
        "Media in messages are refused in this build, so there is nothing to interleave.",
    ),
    StatedRule(
        "R030",
        "any one of the keys opens the API",
        ("server.api_key",),
        "No key leaves it open; see R201 for when that is refused.",
    ),
    StatedRule(
        "R031",
        "keys guard every route but health",
        ("server.api_key",),
        "Other servers guard only the versioned prefixes; here an open route is a written exception.",
    ),
    StatedRule(
        "R033",
        "request ids cost a little",
        ("server.enable_request_id_headers",),
        "One header is read and one written for each answer: some microseconds, so nothing is warned about.",
    ),
    StatedRule(
        "R034",
        "the tokenizer is disclosed on demand alone",
        ("server.enable_tokenizer_info_endpoint",),
        "The route does not exist unless it is switched on, and it asks for a key like all others.",
    ),
    StatedRule(
        "R037",
        "response_role is the role of generated messages",
        ("server.response_role",),
        "With `add_generation_prompt: false` the model goes on with the client's last message, whose role is kept.",
    ),
    StatedRule(
        "R041",
        "reasoning needs a parser",
        (),
        "There is no switch beside the parser: the old enable_reasoning is taken for naming a parser, or told to.",
    ),
    StatedRule(
        "R042",
        "a parser without the switch has no effect",
        (),
        "There is no switch beside the parser, so a parser that is named is never idle.",
    ),
    StatedRule(
        "R224", "auto logs for who reads", ("server.log_format",), "human if stderr is a terminal, json otherwise."
    ),
    StatedRule(
        "R032",
        "middleware is an async function or an ASGI class",
        ("server.middleware",),
        "Each is imported before the weights load; what is neither, or cannot be imported, ends the start.",
    ),
    StatedRule(
        "R036",
        "limits of the HTTP parser are positive",
        ("server.h11_max_incomplete_event_size", "server.h11_max_header_count"),
        "Their types take nothing below 1. The defaults are stricter than the 4 MiB of other servers.",
    ),
    StatedRule(
        "R038",
        "a server without a listener has no API processes",
        ("server.headless", "server.api_server_count"),
        "It cannot occur: headless is refused.",
    ),
    StatedRule(
        "R039",
        "headless goes with no load balancer of its own",
        ("server.headless",),
        "It cannot occur: headless is refused.",
    ),
    StatedRule(
        "R040",
        "headless is for further nodes",
        ("server.headless",),
        "It cannot occur: headless is refused.",
    ),
    StatedRule(
        "R265",
        "auto logs the HTTP side like the rest",
        ("server.uvicorn_log_level", "server.log_level"),
        "uvicorn_log_level is log_level unless it is written.",
    ),
    StatedRule(
        "R266",
        "auto leaves the parser room for a head",
        ("server.h11_max_incomplete_event_size", "server.max_header_bytes"),
        "Twice max_header_bytes: a head that is a little too large is then answered with a body that says so.",
    ),
)
