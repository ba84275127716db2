"""Environment variables ENGINE__SECTION__OPTION as a layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from ..diagnostics import MAX_FINDINGS, Diagnostic, Label
from ..origin import Layer
from ..schema.options import ENV_PREFIX, Option, options
from ..source_text import SourceText, Span
from ..suggest import close, did_you_mean
from .layer import LayerSource, place
from .node import Node
from .secrets import mentions_secret
from .values import json_or_text, read_text

# What Kubernetes sets for each service of a namespace: a service called `engine` makes ENGINE_PORT and the like.
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@cache
def _variables() -> Mapping[str, Option]:
    return {option.variable: option for option in options().values() if option.has_flag}


class EnvironmentSource(LayerSource):
    """ENGINE__SERVER__PORT=8080. Unknown names with this prefix are errors, names that come close are warned about."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__()
        self.variables = _variables()
        for name in sorted(env):
            if _is_service_link(name, env[name]):
                continue
            if name.startswith(ENV_PREFIX):
                self._read(name, env[name])
            elif name.upper().startswith("ENGINE_"):
                self._warn(name, env[name])

    def _read(self, name: str, value: str) -> None:
        option, keys = self._option(name)
        text = SourceText(Layer.ENVIRONMENT, name, f"{name}={value}".splitlines() or [name])
        span = Span(text, 1, len(name) + 2, len(text.lines), len(text.lines[-1]) + 1)
        if option is None:
            text.lines = [name]  # the value may be anything, a secret too
            suggestions = close(name, self.variables) if len(self.found) < MAX_FINDINGS else []
            whole = Span(text, 1, 1, 1, len(name) + 1)
            self.found.append(
                Diagnostic(
                    code="C116",
                    message=f"no such variable `{name}`",
                    labels=(Label(whole, did_you_mean(suggestions)),),
                    suggestions=tuple(suggestions),
                )
            )
            return
        if option.is_secret or (option.kind == "mapping" and mentions_secret(value)):
            text.hide(span)
        try:
            node = read_text(option, value, span, separator=",") if not keys else json_or_text(value, span)
        except ValueError as error:
            label = Label(span, f"allowed: {option.allowed}, written as JSON")
            message = f"`{option.path}` is not valid JSON: {error}"
            self.found.append(Diagnostic(code="C104", message=message, path=option.path, labels=(label,)))
            return
        for key in reversed(keys):
            node = Node({key: node}, span)
        place(self.trees, option, node)

    def _option(self, name: str) -> tuple[Option | None, list[str]]:
        """The option a variable names, and the keys below it for a mapping."""
        if name in self.variables:
            return self.variables[name], []
        parts = name.removeprefix(ENV_PREFIX).split("__")
        option = self.variables.get(ENV_PREFIX + "__".join(parts[:2]))
        if option is not None and option.kind == "mapping" and len(parts) > 2 and all(parts):
            return option, [part.lower() for part in parts[2:]]
        return None, []

    def _warn(self, name: str, value: str) -> None:
        """A name that is an option's but for its underscores, or nearly so."""
        flat = {re.sub("_+", "_", variable): variable for variable in self.variables}
        matches = close(re.sub("_+", "_", name.upper()), flat, 0.9)
        if not matches:
            return
        variable = flat[matches[0]]
        text = SourceText(Layer.ENVIRONMENT, name, [name])
        label = Label(Span(text, 1, 1, 1, len(name) + 1), did_you_mean([variable]))
        self.found.append(
            Diagnostic(
                code="C117",
                severity="warning",
                message=f"the variable `{name}` is not read",
                labels=(label,),
                suggestions=(variable,),
            )
        )


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(value)))
