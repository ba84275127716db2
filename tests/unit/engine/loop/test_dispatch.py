"""Which client gets what: plain tokens in columns, and records."""

from __future__ import annotations

from stoker.engine.api import EngineRequest, FinishReason, RequestInputs, SamplingParams
from stoker.engine.loop.dispatch import Dispatch
from stoker.engine.transport.messages import Abort, Outputs, Refused

from ....fake_runner import build_core, continuation


def submit(dispatch: Dispatch[str], client: str, handle: int, prompt: list[int], max_tokens: int = 4) -> None:
    sampling = SamplingParams(max_tokens=max_tokens)
    request = EngineRequest(request_id=f"{client}-{handle}", inputs=RequestInputs(prompt, sampling))
    assert dispatch.submit(client, handle, request) is None


def plain(message: Outputs) -> dict[int, int]:
    return dict(zip(message.handles.tolist(), message.token_ids.tolist(), strict=True))


def test_each_client_gets_the_tokens_of_its_own_handles():
    dispatch: Dispatch[str] = Dispatch(build_core("{}", lambda phase: None))
    submit(dispatch, "x", 1, [1, 2])
    submit(dispatch, "y", 1, [3, 4])
    submit(dispatch, "x", 2**31 - 1, [5])
    first = dispatch.step()
    assert {client: message.record_handles for client, message in first.items()} == {"x": [1, 2**31 - 1], "y": [1]}
    second = dispatch.step()
    assert plain(second["x"]) == {1: continuation([1, 2], 2)[1], 2**31 - 1: continuation([5], 2)[1]}
    assert plain(second["y"]) == {1: continuation([3, 4], 2)[1]}


def test_the_last_token_is_a_record_with_its_reason():
    dispatch: Dispatch[str] = Dispatch(build_core("{}", lambda phase: None))
    submit(dispatch, "x", 1, [1, 2], max_tokens=2)
    submit(dispatch, "x", 2, [3, 4], max_tokens=3)
    dispatch.step()
    message = dispatch.step()["x"]
    assert (message.record_handles, plain(message).keys()) == ([1], {2})
    assert message.records[0].finish_reason is FinishReason.LENGTH


def test_a_disconnected_client_gets_no_outputs_and_the_others_continue():
    dispatch: Dispatch[str] = Dispatch(build_core("{}", lambda phase: None))
    submit(dispatch, "x", 1, [1, 2])
    submit(dispatch, "y", 1, [3, 4])
    dispatch.step()
    dispatch.forget("x")
    assert list(dispatch.step()) == ["y"]
    submit(dispatch, "x", 1, [5])  # the same name again, as a client that came back
    dispatch.abort("y", Abort([1]))
    assert list(dispatch.step()) == ["x"]


def test_a_request_for_which_the_engine_cannot_wake_up_is_refused():
    """It ended the engine."""
    core = build_core('{"take_error": "others use the device"}', lambda phase: None)
    core.free_memory()
    request = EngineRequest(request_id="x", inputs=RequestInputs([1], SamplingParams()))
    found = Dispatch(core).submit("x", 3, request)
    assert found == Refused(3, "others use the device", code="queue_full", retry_after_s=1.0)
    assert not core.has_work
