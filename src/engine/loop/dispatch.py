"""Dispatch: knows which client sent which request. Takes clients' messages, and sorts the outputs of a step by client.

Used by EngineLoop. In the engine process clients are ZMQ identities; in a thread and in `LLM` there is one client.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np

from ..api import EngineRequest, InvalidRequest, QueueFull
from ..transport.messages import Abort, Outputs, Refused
from .engine_core import EngineCore

RETRY_AFTER_S = 1.0  # a request for which the engine does not get its memory
Client = TypeVar("Client", bound=Hashable)


class Dispatch(Generic[Client]):
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._owners: dict[str, tuple[Client, int]] = {}  # request id -> client that gets its outputs, handle
        self._requests: dict[Client, dict[int, str]] = {}
        self._numbers: dict[Client, int] = {}  # the upper half of a route; the lower half is the handle
        self._last_number = -1

    def submit(self, client: Client, handle: int, request: EngineRequest) -> Refused | None:
        """Add a request to the core. Returns the reason if it is refused."""
        request_id = request.request_id
        request.route = self._number_of(client) << 32 | handle
        try:
            self._core.add(request)
        except InvalidRequest as error:
            return Refused(handle, str(error), error.param, error.code)
        except QueueFull as error:
            return Refused(handle, str(error), code="queue_full", retry_after_s=float(error.retry_after_s))
        except MemoryError as error:  # it sleeps, and other programs have its memory
            return Refused(handle, str(error), code="queue_full", retry_after_s=RETRY_AFTER_S)
        self._owners[request_id] = (client, handle)
        self._requests.setdefault(client, {})[handle] = request_id
        return None

    def abort(self, client: Client, message: Abort) -> None:
        """Handles that have ended already are ignored: the abort crossed the last output."""
        requests = self._requests.get(client, {})
        for handle in message.handles:
            request_id = requests.pop(handle, None)
            if request_id is not None:
                del self._owners[request_id]
                self._core.abort(request_id)

    def forget(self, client: Client) -> None:
        """The client has disconnected: abort its requests."""
        self.abort(client, Abort(list(self._requests.get(client, {}))))
        self._requests.pop(client, None)
        self._numbers.pop(client, None)

    def _number_of(self, client: Client) -> int:
        """A number is used for one client only, so tokens for a client that has disconnected are dropped."""
        if client not in self._numbers:
            self._last_number = self._numbers[client] = self._last_number + 1
        return self._numbers[client]

    def step(self) -> dict[Client, Outputs]:
        """One step of the core: one message for each client whose requests have outputs."""
        outputs = self._core.step()
        messages: dict[Client, Outputs] = {}
        if len(outputs.token_ids):
            numbers, handles = outputs.routes >> 32, outputs.routes.astype(np.int32)
            for client, number in self._numbers.items():
                own = numbers == number
                if own.all():
                    messages[client] = Outputs(handles, outputs.token_ids)
                elif own.any():
                    messages[client] = Outputs(handles[own], outputs.token_ids[own])
        for output in outputs.records:
            owner = self._owners.get(output.request_id)
            if owner is None:  # aborted while the step ran
                continue
            client, handle = owner
            message = messages.get(client)
            if message is None:
                message = messages[client] = Outputs()
            message.record_handles.append(handle)
            message.records.append(output)
            if output.finish_reason is not None:
                del self._owners[output.request_id]
                del self._requests[client][handle]
        return messages


def refusal(message: Refused) -> InvalidRequest | QueueFull:
    """The exception that `submit` caught, for the client."""
    if message.retry_after_s is not None:
        return QueueFull(message.message, retry_after_s=message.retry_after_s)
    return InvalidRequest(message.message, param=message.param, code=message.code)
