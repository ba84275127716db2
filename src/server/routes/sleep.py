"""POST /sleep and /wake_up, and GET /is_sleeping: an engine that gives its memory back until it is needed."""

from __future__ import annotations

from ...engine.api import EngineDead, SleepError
from ..endpoint import Call
from ..protocol.errors import ApiError, bad_request, unavailable

_TAGS = ("weights", "kv_cache")
_MODES = ("abort", "wait")


async def sleep(call: Call) -> None:
    """`level`: 1 or 2, by default 1. `mode`: `abort` ends open requests with an error, `wait` waits for them."""
    level, mode = call.query.get("level", "1"), call.query.get("mode", "abort")
    if level not in ("1", "2"):
        raise bad_request(f"`level` must be 1 or 2, not {level[:20]!r}", param="level")
    if mode not in _MODES:
        raise bad_request(f"`mode` must be abort or wait, not {mode[:20]!r}", param="mode")
    try:
        await call.service.client.sleep(int(level), waits=mode == "wait")
    except SleepError as error:
        raise ApiError(409, str(error), code="cannot_sleep") from None
    except EngineDead as error:
        raise unavailable(f"the engine does not sleep: {error.reason}", code="engine_not_ready") from None
    await call.answer({"status": "ok", "level": call.service.client.sleep_level})


async def wake_up(call: Call) -> None:
    """`tags`: what is to be loaded. Both are loaded for either."""
    tag = call.query.get("tags", "weights")
    if tag not in _TAGS:
        raise bad_request(f"`tags` may be {' and '.join(_TAGS)}, not {tag[:20]!r}", param="tags")
    try:
        await call.service.client.wake_up()
    except EngineDead as error:
        raise unavailable(f"the engine could not be woken: {error.reason}", code="engine_sleeping") from None
    await call.answer({"status": "ok"})


async def is_sleeping(call: Call) -> None:
    level = call.service.client.sleep_level
    await call.answer({"is_sleeping": level > 0, "level": level})
