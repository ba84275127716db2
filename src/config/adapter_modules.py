"""Adapters that a deployment names: `lora.modules`, and `server.lora_modules` in the notation of command lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.adapter import NAME_PATTERN

if TYPE_CHECKING:
    from .schema.deployment import DeploymentConfig

IN_SECTION, IN_SERVER = "lora.modules", "server.lora_modules"
_NAME = re.compile(NAME_PATTERN)
_KEYS = ("name", "path", "base_model_name")
_LAYOUT = "is_3d_lora_weight"  # names and shapes of the tensors say it
_FORMS = 'write NAME=PATH, or {"name": NAME, "path": PATH}'


class Module(NamedTuple):
    """An adapter as it is written. option: where."""

    name: str
    path: str
    base_model_name: str | None
    option: str


def name_problem(name: str) -> str:
    """Why a text cannot be the name of an adapter; empty if it can."""
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{name[:80]!r} is not a name of an adapter: letters, digits, `.`, `_` and `-`, in one part or two with `/` "
        "between them, neither of which is `..`"
    )


def modules_of(config: DeploymentConfig) -> Iterator[Module]:
    """All adapters of a deployment. Raises ValueError for one of `server.lora_modules` that cannot be read."""
    for name, written in config.lora.modules.items():
        yield Module(name, written["path"], written.get("base_model_name"), IN_SECTION)
    for text in config.server.lora_modules:
        yield read_module(text)


def read_module(text: str) -> Module:
    """An item of `server.lora_modules`. Raises ValueError."""
    if text.lstrip().startswith("{"):
        values = _object(text)
    else:
        name, equals, path = text.partition("=")
        if not equals:
            raise ValueError(f"`{text[:80]}` names no path: {_FORMS}")
        values = {"name": name.strip(), "path": path.strip()}
    if problem := name_problem(values["name"]):
        raise ValueError(problem)
    if not values["path"]:
        raise ValueError(f"`{text[:80]}` has an empty path: {_FORMS}")
    return Module(values["name"], values["path"], values.get("base_model_name"), IN_SERVER)


def _object(text: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{text[:80]}` is not JSON: {error}") from None
    unknown = [key for key in values if key not in (*_KEYS, _LAYOUT)]
    if unknown:
        raise ValueError(f"`{unknown[0]}` is not a key of an adapter; its keys are {', '.join(_KEYS)}")
    if not all(isinstance(values.get(key), str) for key in ("name", "path")):
        raise ValueError(f"`{text[:80]}` needs the texts `name` and `path`")
    if not isinstance(values.get("base_model_name"), str | None):
        raise ValueError(f"`base_model_name` in `{text[:80]}` must be a text")
    return values


def modules_problem(config: DeploymentConfig) -> str:
    """What is wrong with the adapters of a deployment; empty if nothing is."""
    of_model = {*(config.model.served_model_name or (config.model.model,)), *config.server.model_aliases}
    names: set[str] = set()
    try:
        for module in modules_of(config):
            if module.name in names:
                return f"two adapters have the name `{module.name}`"
            if module.name in of_model:
                return f"the adapter `{module.name}` has a name of the model"
            names.add(module.name)
    except ValueError as error:
        return str(error)
    return ""
