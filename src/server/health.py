"""Whether the process is alive, and whether it can serve: engine, drain and queue as one answer each."""

from __future__ import annotations

from typing import Any

from ..engine.client import EngineState
from .protocol.errors import ApiError, unavailable
from .service import Service


def readiness(service: Service) -> ApiError | None:
    """Why new requests should be sent elsewhere, if so: not started, restarting, draining, or the queue is full."""
    error = service.not_ready()
    if error is not None:
        return error
    num_waiting = service.client.stats.num_waiting
    if num_waiting >= service.max_queued_requests:
        return unavailable(f"{num_waiting} requests wait already", code="queue_full", retry_after_s=1)
    return None


def liveness(service: Service) -> ApiError | None:
    """Why the process should be replaced, if so: its engine hangs, or is gone for good."""
    state = service.client.state
    if state in (EngineState.STALLED, EngineState.DEAD) and not service.is_draining():
        return service.not_ready()
    return None


def state_body(service: Service, error: ApiError | None) -> dict[str, Any]:
    """The state as JSON; with the error beside it, so that this answer has the shape of all others."""
    if error is None:
        return {"status": "ok", "state": service.client.state.value}
    state = "draining" if service.is_draining() else service.client.state.value
    return {**error.body, "status": error.code, "state": state, "reason": service.client.reason or error.message}
