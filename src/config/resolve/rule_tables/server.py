"""Rules about the API: its keys, logs, processes and templates. The format of a rule: ../rule.py."""

from __future__ import annotations

import json
from pathlib import Path

from ....formats.registry import is_tool_format
from ....input_file import read_file
from ...checkpoint.bounded_json import decode
from ...checkpoint.model_files import MAX_TEMPLATE_BYTES
from ...loopback import is_loopback
from ...origin import Layer
from ...schema.server import OPEN_ROUTES
from ..rule import Rule
from ..values import Values


def has_keys(v: Values) -> bool:
    return bool(v.server.api_key) or v.server.api_keys_file is not None


def _in_plain_text(path: str, number: str) -> Rule:
    """The rule that a secret is not written in a file: everybody who can read the file can read it."""
    return Rule(
        id=number,
        title=f"`{path}` is not written in a file",
        fields=(path,),
        severity="warning",
        is_broken=lambda v: (
            path in v.deployment.origins
            and v.deployment.origins[path].layer is Layer.FILE
            and v.deployment.references.get(path) is None
        ),
        message=f"`{path}` is written in a file in plain text",
        why="Manifests are kept in repositories and shown in tickets; what they contain is no secret for long.",
        fixes=("write `{{env: NAME}}` and set the variable, or `{{file: PATH}}`",),
    )


# Options outside of the engine's sections that only an engine makes use of.
_OF_AN_ENGINE = (
    *("model.enable_sleep_mode", "model.sleep_after", "server.files_dir", "server.responses_store"),
    *("server.tool_server", "server.enable_admin_routes", "server.enable_server_load_tracking"),
)


def _log_config_problem(v: Values) -> str:
    """Why server.log_config_file cannot be used; empty if its format is valid."""
    if v.config.server.log_config_file is None:
        return ""
    path = Path(v.located("server.log_config_file"))
    try:
        content = decode(read_file(path, MAX_TEMPLATE_BYTES))
    except OSError as error:
        return f"{path}: {(error.strerror or 'cannot be read').lower()}"
    except json.JSONDecodeError as error:
        return f"{path}:{error.lineno}:{error.colno}: invalid JSON: {error.msg}"
    except ValueError as error:
        return f"{path}: invalid JSON: {error}"
    return "" if isinstance(content, dict) else f"{path}: not a JSON object"


RULES: tuple[Rule, ...] = (
    _in_plain_text("server.api_key", "R501"),
    _in_plain_text("model.hf_token", "R502"),
    _in_plain_text("kv_transfer.prefill_api_key", "R503"),
    Rule(
        id="R510",
        title="a server without an engine is one process with a tokenizer",
        fields=("server.engine", "model.skip_tokenizer_init", "server.headless", "server.api_server_count"),
        is_broken=lambda v: (
            v.server.engine == "none"
            and (v.model.skip_tokenizer_init or v.server.headless or v.server.api_server_count not in ("auto", 1))
        ),
        message="`server.engine` is none, which excludes `model.skip_tokenizer_init`, `server.headless` and "
        "several API processes",
        why="Such a server has nothing but a tokenizer and a chat template, and no engine that processes could share.",
        fixes=("remove those options, and start several servers for more throughput",),
    ),
    Rule(
        id="R511",
        title="options of generating routes need an engine",
        fields=("server.engine", *_OF_AN_ENGINE),
        severity="warning",
        is_broken=lambda v: v.server.engine == "none" and any(v.is_written(path) for path in _OF_AN_ENGINE),
        message="`server.engine` is none, so that options of sleep, batches, stored responses, tool servers, the "
        "prefix cache and the load have no effect",
        why="The routes that they are for need an engine, and are not there.",
        fixes=("keep them in a file for the servers that generate",),
    ),
    Rule(
        id="R019",
        title="logging answers needs logging requests",
        fields=("server.enable_log_outputs", "server.enable_log_requests"),
        is_broken=lambda v: v.server.enable_log_outputs and not v.server.enable_log_requests,
        message="`server.enable_log_outputs` needs `server.enable_log_requests`",
        why="An answer in the log is of no use without its request.",
        fixes=("set `server.enable_log_requests: true`, or remove `enable_log_outputs`",),
    ),
    Rule(
        id="R021",
        title="max_log_len needs enable_log_requests",
        fields=("server.max_log_len", "server.enable_log_requests"),
        severity="warning",
        is_broken=lambda v: v.server.max_log_len is not None and not v.server.enable_log_requests,
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
        is_broken=lambda v: v.server.return_tokens_as_token_ids and v.model.max_logprobs == 0,
        message="`server.return_tokens_as_token_ids` has hardly any effect: `model.max_logprobs` is 0",
        why="It changes how tokens of log-probabilities are shown; with 0 a request gets that of the sampled token at "
        "most.",
        fixes=("raise `model.max_logprobs`, or remove `return_tokens_as_token_ids`",),
    ),
    Rule(
        id="R024",
        title="chat_template is a file or a template",
        fields=("server.chat_template",),
        is_broken=lambda v: v.read_template[1],
        message="`server.chat_template` is neither a template nor a file that can be read: {problem}",
        why="The value is the name of an existing file, or a text with `{{` or `{%`, which is the template itself.",
        fixes=("check the file name, which is relative to the file that contains it",),
    ),
    Rule(
        id="R201",
        title="an address that other machines can reach needs a key",
        fields=("server.host", "server.api_key", "server.api_keys_file", "server.auth"),
        is_broken=lambda v: (
            v.server.auth == "key" and not has_keys(v) and v.server.uds is None and not is_loopback(v.server.host)
        ),
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
        is_broken=lambda v: not set(v.server.routes_without_key) <= set(OPEN_ROUTES),
        message="`server.routes_without_key` is {routes_without_key}",
        why="Other routes use the engine or change it, so they need a key; the probes need none anyway.",
        fixes=(f"name only {', '.join(OPEN_ROUTES)}",),
    ),
    Rule(
        id="R271",
        title="routes without a key need a key on the others",
        fields=("server.routes_without_key", "server.api_key", "server.api_keys_file"),
        severity="warning",
        is_broken=lambda v: bool(v.server.routes_without_key) and not has_keys(v),
        message="`server.routes_without_key` has no effect: there is no `server.api_key`, so no route needs one",
        why="It opens single routes of a server that has keys.",
        fixes=("set `server.api_key`, or remove `routes_without_key`",),
    ),
    Rule(
        id="R345",
        title="several API processes need the engine in a process of its own",
        fields=("server.api_server_count", "server.disable_frontend_multiprocessing"),
        is_broken=lambda v: v.server.api_server_count > 1 and v.server.disable_frontend_multiprocessing,
        message="`server.api_server_count` is {api_server_count}, and the engine runs inside the API process "
        "(`server.disable_frontend_multiprocessing`)",
        why="One engine serves all API processes, so it cannot be part of one of them.",
        fixes=("remove `disable_frontend_multiprocessing`, or set `api_server_count` to 1",),
    ),
    Rule(
        id="R346",
        title="stored responses need one API process",
        fields=("server.api_server_count", "server.responses_store"),
        is_broken=lambda v: v.server.api_server_count > 1 and v.server.responses_store is not None,
        message="`server.api_server_count` is {api_server_count}, and `server.responses_store` keeps responses",
        why="A response in the background runs in one API process; the others could neither cancel it nor say whether "
        "it still runs.",
        fixes=("remove `responses_store`, or set `api_server_count` to 1",),
    ),
    Rule(
        id="R347",
        title="an alias means a served name",
        fields=("server.model_aliases", "model.served_model_name"),
        is_broken=lambda v: (
            not set(v.server.model_aliases.values()) <= set(v.model.served_model_name or (v.model.model,))
        ),
        message="`server.model_aliases` has a name on its right side that is not served",
        why="A request that uses the alias would be answered 404.",
        fixes=("write a name of `model.served_model_name`, or without it `model.model`",),
    ),
    Rule(
        id="R208",
        title="auth none and keys contradict each other",
        fields=("server.auth", "server.api_key", "server.api_keys_file"),
        is_broken=lambda v: v.server.auth == "none" and has_keys(v),
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
            v.model.skip_tokenizer_init
            and (
                v.server.chat_template_content_format != "auto"
                or v.server.trust_request_chat_template
                or v.server.exclude_tools_when_tool_choice_none
                or v.server.enable_tokenizer_info_endpoint
            )
        ),
        message="without a tokenizer there are no chats and no tokenizer information, so these options have no effect",
        why="With skip_tokenizer_init requests contain token ids; /v1/chat/completions and /tokenizer_info are not "
        "available.",
        fixes=("remove these options of `server`, or `model.skip_tokenizer_init`",),
    ),
    Rule(
        id="R214",
        title="a limit of restarts needs restarts",
        fields=("server.max_engine_restarts", "server.on_engine_death"),
        severity="warning",
        is_broken=lambda v: v.server.on_engine_death == "exit" and v.is_written("server.max_engine_restarts"),
        message="`server.max_engine_restarts` has no effect with `on_engine_death: exit`",
        why="The server ends when the engine dies for the first time.",
        fixes=("remove one of the two",),
    ),
    Rule(
        id="R215",
        title="an engine in the API process cannot be restarted",
        fields=("server.on_engine_death", "server.disable_frontend_multiprocessing"),
        is_broken=lambda v: (
            v.server.disable_frontend_multiprocessing
            and v.server.on_engine_death == "restart"
            and v.is_written("server.on_engine_death")
        ),
        message="with `server.disable_frontend_multiprocessing` there is no engine process that could be restarted",
        why="A crash of the engine is then a crash of the server; a supervisor restarts both.",
        fixes=("write `on_engine_death: exit`, or run the engine in a separate process",),
    ),
    Rule(
        id="R270",
        title="paths without a log line begin with a slash",
        fields=("server.disable_access_log_for_endpoints",),
        is_broken=lambda v: not all(path.startswith("/") for path in v.server.disable_access_log_for_endpoints),
        message="`server.disable_access_log_for_endpoints` contains a path that does not begin with a slash",
        why="It is compared with the path of the request, so it would never match.",
        fixes=("write paths such as /v1/models",),
    ),
    Rule(
        id="R035",
        title="one file configures all loggers",
        fields=("server.log_config_file",),
        is_broken=_log_config_problem,
        message="`server.log_config_file`: {problem}",
        why="Server and engine process both use it instead of the built-in configuration.",
        fixes=("write a JSON object for Python's logging.config.dictConfig",),
    ),
    Rule(
        id="R262",
        title="log_config_file replaces the other logging options",
        fields=("server.log_config_file", "server.log_level", "server.log_format", "server.http_log_level"),
        severity="warning",
        is_broken=lambda v: (
            v.server.log_config_file is not None
            and any(v.is_written(f"server.{name}") for name in ("log_level", "log_format", "http_log_level"))
        ),
        message="log levels and formats have no effect together with `server.log_config_file`",
        why="The file replaces the built-in configuration completely.",
        fixes=("write them in that file, or remove `log_config_file`",),
    ),
    Rule(
        id="R018",
        title="a tool call parser is a format, or one of the plugin",
        fields=("server.tool_call_parser", "server.tool_parser_plugin"),
        is_broken=lambda v: not v.server.tool_parser_plugin and not is_tool_format(v.server.tool_call_parser),
        message="`server.tool_call_parser` is {tool_call_parser}, and no format has this name",
        why="A misspelled name would leave every tool call in the text of the answers. A plugin is read at the start, "
        "so a name of its format is checked then.",
        fixes=(
            "`auto` finds the format by the model's chat template",
            "a format of your own: `server.tool_parser_plugin`",
        ),
    ),
)
