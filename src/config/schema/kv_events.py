"""Section `kv_events`: events about KV blocks for external routers.

None of its options is implemented yet: see refused.py.
"""

from __future__ import annotations

from typing import ClassVar

from .refused import with_refused
from .section import Section


@with_refused("kv_events")
class KVEventsConfig(Section):
    """Events about KV blocks."""

    json_flags: ClassVar[tuple[str, ...]] = ("--kv-events-config",)
