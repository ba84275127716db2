"""GET /livez, /readyz and /health, for supervisors and load balancers. No API key is needed."""

from __future__ import annotations

from ..endpoint import Call
from ..health import liveness, readiness, state_body
from ..protocol.errors import ApiError


async def livez(call: Call) -> None:
    await _answer(call, liveness(call.service))


async def readyz(call: Call) -> None:
    await _answer(call, readiness(call.service))


async def _answer(call: Call, error: ApiError | None) -> None:
    body = state_body(call.service, error)
    if error is None:
        await call.answer(body)
    else:
        await call.answer(body, status=error.status, headers=error.headers)
