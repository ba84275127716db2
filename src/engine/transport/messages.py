"""Messages between the API process and the engine process. Their encoding is in wire.py."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..api import AdapterRef, EngineInfo, EngineOutput, EngineRequest, EngineStats

Int32 = npt.NDArray[np.int32]

# ---- messages to the engine


@dataclass(frozen=True, slots=True)
class Hello:
    """A client is connected; phases, stats and Ready are sent to it from now on."""


@dataclass(frozen=True, slots=True)
class Submit:
    handle: int  # the client's number for this request; outputs are sent with it
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class SubmitMany:
    """Requests that each have one output. They are queued and refused one by one."""

    handles: list[int]  # one for each request
    requests: list[EngineRequest]

    def __post_init__(self) -> None:
        if len(self.handles) != len(self.requests):
            raise ValueError(f"{len(self.handles)} handles for {len(self.requests)} requests")


@dataclass(frozen=True, slots=True)
class Abort:
    handles: list[int]


@dataclass(frozen=True, slots=True)
class Profile:
    """Start a profile of the steps, or end it; answered by Profiled."""

    is_start: bool


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Sleep: give memory back to the system, once no request is left; answered by MemoryFreed."""


@dataclass(frozen=True, slots=True)
class TakeMemory:
    """Wake up: take that memory again; answered by MemoryTaken."""


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Read an adapter, in every process of the model; answered by AdapterChanged."""

    number: int  # the client's, for this call
    ref: AdapterRef


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Forget an adapter as soon as no running request uses it; answered by AdapterChanged."""

    number: int  # the client's, for this call
    digest: str


# ---- messages to the client


@dataclass(frozen=True, slots=True)
class Phase:
    name: str  # a start-up phase has begun


@dataclass(frozen=True, slots=True)
class Ready:
    info: EngineInfo


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """The outputs of one step for one client: plain tokens in columns, and records of tokens with more information.

    Each handle occurs once. `request_id` of a record is empty: the handle identifies the request.
    """

    handles: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    token_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # the next one of each handle
    record_handles: list[int] = field(default_factory=list)
    records: list[EngineOutput] = field(default_factory=list)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outputs) and self._comparable == other._comparable

    @property
    def _comparable(self) -> tuple[object, ...]:
        return self.handles.tolist(), self.token_ids.tolist(), self.record_handles, self.records


@dataclass(frozen=True, slots=True)
class Refused:
    """The request with this `handle` was not admitted: QueueFull if `retry_after_s` is set, else InvalidRequest."""

    handle: int
    message: str
    param: str | None = None
    code: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profile has started, or its trace is written; `error` if not."""

    path: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class MemoryFreed:
    error: str = ""  # why not, if it has all of it still


@dataclass(frozen=True, slots=True)
class MemoryTaken:
    error: str = ""  # why not, if it has none of it


@dataclass(frozen=True, slots=True)
class AdapterChanged:
    """An adapter was loaded or unloaded; `error` and `code` if it could not be."""

    number: int  # of the call
    error: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A thread of the engine sends it every second, during a long step too."""

    num_steps: int
    is_stepping: bool
    cpu_s: float  # processor time of the whole engine process so far
    is_reading: bool = False  # a file, which requests wait for


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why the engine process is about to end."""

    error: str  # class of the exception
    message: str
    exit_code: int = 1


ToEngine = Hello | Submit | SubmitMany | Abort | Profile | FreeMemory | TakeMemory | LoadAdapter | UnloadAdapter
ToClient = (
    Phase
    | Ready
    | Outputs
    | Refused
    | Stats
    | Profiled
    | MemoryFreed
    | MemoryTaken
    | AdapterChanged
    | Heartbeat
    | ExitReason
)
Message = ToEngine | ToClient
