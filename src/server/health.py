"""Liveness and readiness of the server, from the state of the engine, of the drain and of the queue."""

from __future__ import annotations

from typing import Any

from ..engine.client.engine_client import EngineState
from . import engine_errors
from .protocol.errors import ApiError, unavailable
from .service import Service


def readiness(service: Service) -> ApiError | None:
    """Why new requests should be sent elsewhere: starting, restarting, draining, queue full. None if ready."""
    error = service.not_ready()
    if error is not None:
        return error
    num_waiting = service.client.stats.num_waiting
    if num_waiting >= service.max_queued_requests:
        return unavailable(f"the queue is full: {num_waiting} requests are waiting", code="queue_full", retry_after_s=1)
    return None


def liveness(service: Service) -> ApiError | None:
    """Why the process should be replaced: an engine makes no progress or has stopped. None if alive."""
    states = {engine.state for engine in service.engines.values()}
    broken = next((state for state in (EngineState.DEAD, EngineState.STALLED) if state in states), None)
    return None if broken is None or service.is_draining() else engine_errors.not_ready(broken)


def state_body(service: Service, error: ApiError | None) -> dict[str, Any]:
    """The state as JSON; an error body has the fields of all error responses too."""
    if error is None:
        return {"status": "ok", "state": service.client.state.value, **_replicas(service)}
    state = "draining" if service.is_draining() else service.client.state.value
    reason = service.client.reason or error.message
    return {**error.body, "status": error.code, "state": state, "reason": reason, **_replicas(service)}


def _replicas(service: Service) -> dict[str, Any]:
    """The state of each by its rank, if there are several."""
    if len(service.engines) == 1:
        return {}
    return {"replicas": {str(rank): engine.state.value for rank, engine in service.engines.items()}}
