"""The address of a pod, for others: it is known only when the pod runs, and reaches the server through variables."""

from __future__ import annotations

from dataclasses import replace

from ..origin import Layer
from .bundle import Bundle, model_name
from .pod import Start

_ADDRESS = "$(POD_IP)"


def with_topic(bundle: Bundle, start: Start) -> tuple[Bundle, Start]:
    """Names the pod in the topic of its events, from which a router knows whose cache they are of."""
    events = bundle.deployment.config.kv_events
    if not events.is_publishing or events.topic:
        return bundle, start
    return _with(bundle, start, "kv_events.topic", f"kv@{_ADDRESS}:{bundle.port}@{model_name(bundle)}")


def with_transfer_address(bundle: Bundle, start: Start) -> tuple[Bundle, Start]:
    """Gives the address at which other engines read the KV blocks of this one, unless the file does."""
    is_written = bundle.deployment.origin("kv_transfer.kv_ip").layer is Layer.FILE
    if is_written or not bundle.deployment.config.kv_transfer.is_between_engines:
        return bundle, start
    return _with(bundle, start, "kv_transfer.kv_ip", _ADDRESS)


def _with(bundle: Bundle, start: Start, path: str, value: str) -> tuple[Bundle, Start]:
    return (
        replace(bundle, settings={**bundle.settings, path: value}),
        replace(start, fields={"POD_IP": "status.podIP", **start.fields}),
    )
