"""POST /reset_prefix_cache, /reload, /start_profile and /stop_profile, for operators, and GET /server_info."""

from __future__ import annotations

from dataclasses import asdict

from ...config.effective import as_records, running_values
from ...engine.api import ProfileError
from ...version import __version__
from ..access.keys_file import KeysProblem
from ..endpoint import Call
from ..protocol.errors import ApiError


async def reset_prefix_cache(call: Call) -> None:
    """Reset the cache: later requests reuse nothing that was computed before; running ones are not affected."""
    call.service.new_cache_epoch()
    await call.answer({"status": "ok"})


async def reload(call: Call) -> None:
    """Read the keys file again. An invalid one is an error, and the previous keys remain valid."""
    file = call.service.keys_file
    assert file is not None, "the route exists only with a keys file"
    try:
        await call.answer({"status": "ok", "num_keys": file.reread()})
    except KeysProblem as problem:
        raise ApiError(409, f"the previous keys remain valid: {problem}", code="invalid_keys_file") from None


async def start_profile(call: Call) -> None:
    """Record the steps of the engine from now on."""
    await _profile(call, is_start=True)
    await call.answer({"status": "ok"})


async def stop_profile(call: Call) -> None:
    """Write what was recorded. The answer has the file, on the machine of the engine."""
    await call.answer({"status": "ok", "trace": await _profile(call, is_start=False)})


async def _profile(call: Call, *, is_start: bool) -> str:
    try:
        return await call.service.client.profile(is_start=is_start)
    except ProfileError as error:
        raise ApiError(409, str(error), code="no_profile") from None


async def server_info(call: Call) -> None:
    """Version, configuration and engine in one answer."""
    service = call.service
    info = asdict(service.engine_info)
    await call.answer(
        {
            "version": __version__,
            "model": service.model_name,
            "state": service.client.state.value,
            "engine": {name: value for name, value in info.items() if name != "model"},
            "config": as_records(running_values(service.resolved)),
        }
    )
