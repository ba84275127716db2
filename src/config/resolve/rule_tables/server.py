"""Rules about the HTTP side. How a rule is written: ../rule.py."""

from __future__ import annotations

import ipaddress

from ..rule import Rule, StatedRule


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


RULES: tuple[Rule, ...] = (
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
        is_broken=lambda v: v.auth == "key" and not v.api_key and not is_loopback(v.host),
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
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R023",
        "a template in a request is refused",
        ("server.chat_template",),
        "The server's chat_template applies, else the tokenizer's own: a template is code, and clients send none.",
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
        "R037",
        "response_role is the role of generated messages",
        ("server.response_role",),
        "Messages that the client sent keep theirs.",
    ),
    StatedRule(
        "R224", "auto logs for who reads", ("server.log_format",), "human if stderr is a terminal, json otherwise."
    ),
)
