"""`engine connect`: the configuration with which a coding agent uses a deployment, written from its manifest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config.deployment import Deployment
from ..config.diagnostics import show
from ..config.errors import DeploymentError
from ..config.examine import Report, report_on
from ..config.exit_codes import EXIT_ENVIRONMENT, EXIT_INVALID_CONFIGURATION
from ..config.plan.model import read_model
from ..config.resolve.machine import read_machine_spec
from ..config.resolve.values import Values
from ..server.agents.catalogue import codex_model
from ..server.capabilities import capabilities_of
from .answer_format import format_of_answers, templates_of, variables_of
from .console import print_message, print_result
from .flags.writing import ConnectFlags
from .server_url import base_url

Client = Literal["claude-code", "codex", "opencode", "continue"]
_MAX_OUTPUT = 32_000  # tokens of one answer that an agent asks for
_PLACEHOLDER = "STOKER_API_KEY"
_CATALOGUE = "stoker-models.json"


@dataclass(frozen=True, slots=True)
class Connection:
    """What clients must know.

    url: without /v1. key_variable: of the environment; None if the server needs no key. context: in tokens.
    """

    url: str
    model: str
    key_variable: str | None
    context: int

    @property
    def max_output(self) -> int:
        return min(_MAX_OUTPUT, self.context // 2)


def run(client: Client, files: Sequence[str], overrides: Sequence[str], flags: ConnectFlags) -> int:
    """Print the configuration. Returns the exit code."""
    if flags.catalogue and client != "codex":
        print_message("error: --catalogue is for codex")
        return EXIT_INVALID_CONFIGURATION
    report = report_on(files, overrides, read_machine_spec(), is_elsewhere=True)
    if report.errors:
        print_message(show(report.errors))
        return report.exit_code
    found = _connection(report, flags.url, needs_plain_name=client == "claude-code")
    if isinstance(found, str):
        print_message(f"error: {found}")
        return EXIT_ENVIRONMENT if report.model_missing else EXIT_INVALID_CONFIGURATION
    try:
        text = _codex_catalogue(found, report) if flags.catalogue else _WRITERS[client](found)
    except DeploymentError as error:
        print_message(f"error: {error}")
        return error.exit_code
    except ValueError as error:  # of the format of answers
        print_message(f"error: {error}")
        return EXIT_INVALID_CONFIGURATION
    print_result(text.rstrip("\n"))
    return 0


def _connection(report: Report, url: str | None, *, needs_plain_name: bool) -> Connection | str:
    """Connection to the server, or what prevents it."""
    deployment, decisions = report.deployment, report.decisions
    assert deployment is not None
    assert decisions is not None
    context = decisions.get("model.max_model_len")
    if not isinstance(context, int):
        return (
            f"{report.model_missing or 'the model'} is not on this machine, so its context length is not known: "
            "start the server once, or set `model.max_model_len`"
        )
    names = deployment.model.served_model_name or (deployment.model.model,)
    server = deployment.server
    plain = _plain_names(names)
    if needs_plain_name and not plain:
        plain = _plain_names(map(_meant_by, server.model_aliases))
        if not plain:
            return (
                f"Claude Code accepts no model name with a slash, such as {names[0]}: "
                "add `model.served_model_name` with a name without one, or `server.model_aliases`"
            )
    if url is None and server.uds is not None:
        return "the server listens on a Unix socket (`server.uds`): give the address that clients use with --url"
    address = url or base_url(server.host, server.port, is_tls=server.ssl_certfile is not None)
    key = _key_variable(deployment) if server.api_key else None
    return Connection(address.rstrip("/").removesuffix("/v1"), (plain or [*names])[0], key, context)


def _plain_names(names: Iterable[str | None]) -> list[str]:
    return [name for name in names if name and "/" not in name]


def _meant_by(alias: str) -> str | None:
    """A name that an alias serves: it may be a pattern, such as `claude-*`. None for a pattern of another form."""
    name = alias.replace("*", "stoker")
    return None if set(name) & set("?[]") else name


def _key_variable(deployment: Deployment) -> str:
    """The variable that the server reads its first key from, if it is one."""
    reference = deployment.references.get("server.api_key")
    first = reference[0] if isinstance(reference, list) and reference else reference
    if isinstance(first, Mapping) and isinstance(first.get("env"), str):
        return str(first["env"])
    if isinstance(first, str) and first.startswith("${"):
        return first.removeprefix("${").rstrip("}").partition(":")[0]
    return _PLACEHOLDER


def _claude_code(to: Connection) -> str:
    key = f'"${to.key_variable}"' if to.key_variable else "none"
    names = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    values = {
        "ANTHROPIC_BASE_URL": shlex.quote(to.url),
        "ANTHROPIC_AUTH_TOKEN": key,
        **{name: shlex.quote(to.model) for name in names},
        "CLAUDE_CODE_SUBAGENT_MODEL": shlex.quote(to.model),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(to.max_output),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(to.context),
        "CLAUDE_CODE_DISABLE_1M_CONTEXT": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    lines = [f"export {name}={value}" for name, value in values.items()]
    return "\n".join(["# In the shell that starts claude:", *lines])


def _codex(to: Connection) -> str:
    provider = {"name": "Stoker", "base_url": f"{to.url}/v1", "wire_api": "responses"}
    if to.key_variable:
        provider["env_key"] = to.key_variable
    return "\n".join(
        [
            "# In ~/.codex/config.toml. Codex reads the description of the model from a file, written by",
            f"#   engine connect codex FILE --catalogue > ~/.codex/{_CATALOGUE}",
            "# Replace HOME in its name by your home directory: Codex needs the whole path.",
            f"model = {json.dumps(to.model)}",
            'model_provider = "stoker"',
            f"model_context_window = {to.context}",
            f'model_catalog_json = "HOME/.codex/{_CATALOGUE}"',
            "",
            "[model_providers.stoker]",
            *(f"{name} = {json.dumps(value)}" for name, value in provider.items()),
        ]
    )


def _codex_catalogue(to: Connection, report: Report) -> str:
    """What the server answers to GET /v1/models. Raises DeploymentError, ValueError."""
    assert report.deployment is not None
    assert report.decisions is not None
    model = read_model(report.deployment)
    values = Values(report.deployment, report.decisions)
    templates = templates_of(values, Path(model.tokenizer_path))
    answers = format_of_answers(values, Path(model.tokenizer_path), model.spec.architecture)
    capabilities = capabilities_of(answers.format, variables_of(templates))
    return json.dumps({"models": [codex_model(to.model, to.context, capabilities)]}, indent=2)


def _opencode(to: Connection) -> str:
    options: dict[str, Any] = {"baseURL": f"{to.url}/v1"}
    if to.key_variable:
        options["apiKey"] = f"{{env:{to.key_variable}}}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Stoker",
        "options": options,
        "models": {to.model: {"name": to.model, "limit": {"context": to.context, "output": to.max_output}}},
    }
    content = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"stoker/{to.model}",
        "provider": {"stoker": provider},
    }
    return json.dumps(content, indent=2)


def _continue(to: Connection) -> str:
    key = [f"    apiKey: ${{{{ secrets.{to.key_variable} }}}}"] if to.key_variable else []
    return "\n".join(
        [
            "# ~/.continue/config.yaml; a secret is read from ~/.continue/.env",
            "name: Stoker",
            "version: 1.0.0",
            "schema: v1",
            "models:",
            f"  - name: {json.dumps(to.model)}",
            "    provider: openai",
            f"    model: {json.dumps(to.model)}",
            f"    apiBase: {json.dumps(to.url + '/v1')}",
            *key,
            "    roles: [chat, edit, apply]",
            "    capabilities: [tool_use]",
            "    defaultCompletionOptions:",
            f"      contextLength: {to.context}",
            f"      maxTokens: {to.max_output}",
        ]
    )


_WRITERS: Mapping[Client, Callable[[Connection], str]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
    "continue": _continue,
}
