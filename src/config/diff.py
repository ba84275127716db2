"""Differences between two deployments, or a deployment and a running server, and what each change restarts.

Values are compared as they are shown, secrets by a keyed hash whose key exists only in this process. A server does not
report secrets, so for a running server only the number of secrets is compared.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from .deployment import Deployment
from .effective import effective_values
from .origin import Layer
from .resolve.decisions import Decisions
from .schema.options import Option, options
from .schema.section import Reload
from .yaml_writer import inline

_KEY = secrets.token_bytes(32)
_FILLED_IN = (Layer.MODEL, Layer.RULE)
COSTS: tuple[Reload, ...] = ("hot", "model", "process")  # the cheapest first


@dataclass(frozen=True, slots=True)
class Held:
    """One value of one side. `compared` is what counts, `text` what is shown."""

    compared: Any
    text: str
    origin: str
    is_auto: bool = False
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """Values by dotted path, keys of mappings on their own. `costs` are what the side itself states."""

    name: str
    values: Mapping[str, Held]
    is_running: bool = False
    costs: Mapping[str, Reload] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    path: str
    old: Held | None
    new: Held | None
    change: Reload

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "old": None if self.old is None else self.old.text,
            "new": None if self.new is None else self.new.text,
            "old_origin": None if self.old is None else self.old.origin,
            "new_origin": None if self.new is None else self.new.origin,
            "reload": self.change,
        }

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.old)} -> {_shown(self.new)}"


def _shown(held: Held | None) -> str:
    if held is None:
        return "(none)"
    return f"{held.text} (auto)" if held.is_auto else held.text


def written_side(name: str, deployment: Deployment, decisions: Decisions) -> Side:
    """A deployment on this machine, every layer of it merged."""
    values: dict[str, Held] = {}
    for entry in effective_values(deployment, decisions):
        option = entry.option
        if not _is_compared(option):
            continue
        is_auto = entry.is_waiting or entry.origin.layer in _FILLED_IN
        if option.is_secret:
            raw = getattr(getattr(deployment.config, option.section), option.name)
            values[option.path] = Held(_hashed(raw), _counted(_count(raw)), entry.said, is_secret=True)
            continue
        compared = _located(option, deployment, entry.value)
        for path, value, shown in _leaves(option.path, compared, entry.value):
            origin = str(entry.parts[path]) if path in entry.parts else entry.said
            values[path] = Held(value, inline(shown), origin, is_auto)
    return Side(name, values)


def running_side(name: str, records: Sequence[Mapping[str, Any]]) -> Side:
    """A server's answer to GET /config. Raises ValueError for any other answer."""
    values: dict[str, Held] = {}
    costs: dict[str, Reload] = {}
    try:
        for record in records:
            path, value, origin = str(record["path"]), record["value"], record["origin"]
            option = options().get(path)
            if option is not None and not _is_compared(option):
                continue
            costs[path] = record["reload"]
            is_auto = origin["layer"] in [layer.value for layer in _FILLED_IN]
            if option is not None and option.is_secret:
                values[path] = Held(_count(value), _counted(_count(value)), origin["text"], is_secret=True)
                continue
            for leaf, compared, _ in _leaves(path, value, value):
                values[leaf] = Held(compared, inline(compared), origin["text"], is_auto)
    except (KeyError, TypeError):
        raise ValueError("the answer is not a configuration") from None
    return Side(name, values, is_running=True, costs=costs)


def _is_compared(option: Option) -> bool:
    """Whether an option is compared: header keys only say how the file is read, refused options have their default."""
    return bool(option.section) and option.status != "refused"


def compare(old: Side, new: Side) -> list[Difference]:
    """Differences in the order of the manifest, then what only one side knows.

    Against a running server, values that are `auto` on both sides are equal: they depend on the machine and the time.
    """
    has_server = old.is_running or new.is_running
    found = [
        Difference(path, before, after, _cost(path, old, new))
        for path in dict.fromkeys([*new.values, *old.values])
        if not _same(before := old.values.get(path), after := new.values.get(path), has_server)
    ]
    order = {path: index for index, path in enumerate(options())}
    return sorted(found, key=lambda difference: order.get(_owner(difference.path) or "", len(order)))


def _same(old: Held | None, new: Held | None, has_server: bool) -> bool:
    if old is None or new is None:
        return False
    if has_server and (old.is_auto and new.is_auto):
        return True
    if has_server and (old.is_secret or new.is_secret):
        return old.text == new.text
    return _canonical(old.compared) == _canonical(new.compared)


def incomparable_secrets(old: Side, new: Side) -> list[str]:
    """Secrets that are set on both sides and cannot be compared, since a server does not report them."""
    return [
        path
        for path, held in old.values.items()
        if (old.is_running or new.is_running)
        and (held.is_secret and held.text != _counted(0))
        and path in new.values
        and new.values[path].text == held.text
    ]


def highest_cost(differences: Sequence[Difference]) -> Reload:
    """What is restarted if all of the changes are made."""
    return max((difference.change for difference in differences), key=COSTS.index, default="hot")


def _cost(path: str, old: Side, new: Side) -> Reload:
    owner = _owner(path)
    if owner is not None:
        return options()[owner].reload
    return next((side.costs[path] for side in (old, new) if path in side.costs), "process")


def _owner(path: str) -> str | None:
    """The option that a path, perhaps of a key in a mapping, belongs to."""
    while path and path not in options():
        path = path.rpartition(".")[0]
    return path or None


def _leaves(path: str, compared: Any, shown: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(shown, dict) and shown:
        return [leaf for key, value in shown.items() for leaf in _leaves(f"{path}.{key}", value, value)]
    return [(path, compared, shown)]


def _located(option: Option, deployment: Deployment, value: Any) -> Any:
    """A file's name as the file it means: the same name in two folders is two files."""
    if option.path_kind == "path" and isinstance(value, str) and option.path in deployment.folders:
        return deployment.located(option.path)
    return value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _hashed(secret: Any) -> list[str]:
    found = secret if isinstance(secret, tuple | list) else [] if secret is None else [secret]
    return [
        hmac.new(_KEY, item.get_secret_value().encode(), hashlib.sha256).hexdigest()
        for item in found
        if isinstance(item, SecretStr)
    ]


def _count(secret: Any) -> int:
    return len(secret) if isinstance(secret, tuple | list) else int(secret is not None)


def _counted(count: int) -> str:
    return {0: "not set", 1: "set"}.get(count, f"{count} set")
