"""Failures of the engine as HTTP errors."""

from __future__ import annotations

from ..engine.api import ADAPTER_FAILED, GRAMMAR_FAILED, FinishReason, InvalidRequest
from ..engine.client.engine_client import EngineState
from ..text.generated_sequence import GenerationFailed
from .protocol.errors import ApiError, bad_request, internal_error, unavailable

_MESSAGES = {
    EngineState.STARTING: ("the engine is starting", "engine_starting"),
    EngineState.RESTARTING: ("the engine stopped and is being started again", "engine_restarting"),
    EngineState.SLEEPING: ("the engine sleeps; POST /wake_up wakes it", "engine_sleeping"),
    EngineState.STALLED: ("the engine makes no progress", "engine_stalled"),
    EngineState.DEAD: ("the engine has stopped and will not be started again", "engine_dead"),
}
_LOST_ADAPTER = ("adapter_changed", "adapter_memory", "adapter_unreadable")  # codes of an adapter that was loaded


def not_ready(state: EngineState) -> ApiError:
    """Error for new requests, in every state but READY."""
    message, code = _MESSAGES[state]
    return unavailable(message, code=code)


def stopped_during_request(state: EngineState) -> ApiError:
    """state: after the engine stopped; READY if it has been started again since."""
    if state in (EngineState.DEAD, EngineState.STALLED, EngineState.SLEEPING):
        return not_ready(state)
    message = "the engine stopped while it processed this request, and is being started again"
    return unavailable(message, code="engine_restarting")


def shutting_down() -> ApiError:
    return unavailable("the server is shutting down", code="server_shutting_down", retry_after_s=1)


def refused(error: InvalidRequest) -> ApiError | InvalidRequest:
    """The error of a request that the engine refuses; 500 if only the operator can mend its cause."""
    return internal_error(str(error), error.code) if error.code in _LOST_ADAPTER else error


def generation_failed(failure: GenerationFailed) -> ApiError:
    if failure.reason is FinishReason.ABORT:
        return shutting_down()
    if failure.message is not None and failure.message.startswith(GRAMMAR_FAILED):
        return bad_request(failure.message, code="grammar_too_complex")  # not 500, which clients send again
    if failure.message is not None and failure.message.startswith(ADAPTER_FAILED):
        return internal_error(failure.message, "adapter_unreadable")
    return internal_error(failure.message or "the engine could not complete this request", "engine_error")
