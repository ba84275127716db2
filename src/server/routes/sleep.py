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
    call.service.wake_tags.clear()
    await call.answer({"status": "ok", "level": call.service.client.sleep_level})


async def wake_up(call: Call) -> None:
    """`tags`: what is to be in memory again, weights or kv_cache; both without it.

    The engine is woken once both were asked for, by one request or by several. Until then it sleeps, and requests are
    refused: no part of its memory is of use without the other.
    """
    tags, service = call.queries("tags") or list(_TAGS), call.service
    for tag in tags:
        if tag not in _TAGS:
            raise bad_request(f"`tags` may be {' and '.join(_TAGS)}, not {tag[:20]!r}", param="tags")
    client, wanted = service.client, service.wake_tags
    if client.sleep_level:
        wanted.update(tags)
        if missing := [tag for tag in _TAGS if tag not in wanted]:
            await call.answer({"status": "ok", "is_sleeping": True, "missing": missing})
            return
    try:
        await client.wake_up()
    except EngineDead as error:
        raise unavailable(f"the engine could not be woken: {error.reason}", code="engine_sleeping") from None
    wanted.clear()
    await call.answer({"status": "ok", "is_sleeping": False})


async def is_sleeping(call: Call) -> None:
    level = call.service.client.sleep_level
    await call.answer({"is_sleeping": level > 0, "level": level})
