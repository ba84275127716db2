"""What the processes of one model send each other between steps: sampled tokens, and the next plan.

Rank 0 plans, samples and answers; the others compute their part of the same steps. Numbers inside of a step are
exchanged by engine/collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, get_args

from ..api import AdapterRef, RequestInputs, SamplingParams, Task
from ..step import AdapterLoad, Admission, BlockCopy, BlockLoad, StepPlan, StepResult
from ..step.columns import int_bytes, read_result, writable_ints, write_result
from ..step.plan import Int32, Table
from .messages import FreeMemory, TakeMemory
from .records import Part, RecordCodec, many, record
from .request_parts import REQUEST_PARTS


@dataclass(frozen=True, slots=True)
class Start:
    """The first message of rank 0."""

    resolved: str  # JSON
    port: int = 0  # of rank 0, where ranks that exchange through Gloo find each other
    key: bytes = b""  # by which ranks that connect to each other know each other
    places: list[list[Any]] = field(default_factory=list)  # of each rank: the address and port of its `stages` listener


@dataclass(frozen=True, slots=True)
class Join:
    """The first message of a rank, or of a replica on another node, that has connected to node 0."""

    rank: int
    host: str
    fingerprint: dict[str, str]
    secret: str  # a hash
    pid: int = 0
    place: list[Any] = field(default_factory=list)  # address and port where it waits for the stage before it


@dataclass(frozen=True, slots=True)
class Alive:
    """Sent in both directions at an interval, where the end of a process is not seen otherwise."""

    begun: int = 0  # operations, steps and calls, where each rank plans its own steps


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A plan whose step is computed on a GPU in each rank, or by the hosts."""

    plan: StepPlan
    shape: list[Any] | None  # the fields of runner/step_shape.py StepShape; None: by the hosts
    again: Int32  # rows that are sampled a second time


@dataclass(frozen=True, slots=True)
class Capture:
    """The next shape of a step is captured, by all ranks."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The oldest step that the first stage has begun is finished now: the last stage has computed it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled in the step that runs, which ends with them; -1 where a row failed. None: sampling failed."""

    token_ids: Int32 | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The first message of another rank."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a rank that fails, and of node 0 to a rank or a replica that it refuses."""

    text: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Operation:
    """Begins now. Sent instead of a plan to ranks that plan the same step themselves."""

    name: str
    hashes: bytes = b""  # of the parts of a plan, which the ranks compare
    size: str = ""  # of the step, for people


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of the oldest operation of such a rank. None: the step failed, but the next one can follow."""

    result: StepResult | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """The last message of a rank that ends without a failure."""

    begun: int  # operations


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a method of all workers: worker.py. No step runs."""

    method: str
    arguments: bytes  # of rank_values.py


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter is to be read, while steps go on. Answered with AdapterRead."""

    ref: AdapterRef


@dataclass(frozen=True, slots=True)
class AdapterRead:
    """An adapter is in memory, unless there is an error."""

    digest: str
    error: str = ""
    code: str = ""  # of AdapterError


@dataclass(frozen=True, slots=True)
class ForgetAdapter:
    """The copy of an adapter is to be freed."""

    digest: str


@dataclass(frozen=True, slots=True)
class Returned:
    """What one rank returned."""

    value: bytes  # of its worker: rank_values.py
    error: str = ""


@dataclass(frozen=True, slots=True)
class AllReturned:
    """What the workers of all ranks returned, for workers that make the same call themselves."""

    by_rank: list[Returned]


OfSteps = StepPlan | DeviceStep | Capture | Tokens | Finish | Operation | Computed
OfCalls = Call | Returned | AllReturned | FreeMemory | TakeMemory
OfAdapters = ReadAdapter | AdapterRead | ForgetAdapter
OfProcesses = Start | Join | Loaded | Alive | Failed | Left
RankMessage = OfSteps | OfCalls | OfAdapters | OfProcesses


def _read_table(parts: list[Any], name: str) -> Table:
    width, data = parts
    return writable_ints(data, name).reshape(-1, width)


# A plan is sent to processes that sample and store nothing: of sampling parameters they get what decides which logits
# are computed, of stored blocks the places in the cache. Arrays can be written, because torch shares no others.
_TASK = REQUEST_PARTS[Task]
_PARTS = REQUEST_PARTS | {
    Task: _TASK._replace(
        write=lambda task: _TASK.write(task.without_sampling if isinstance(task, SamplingParams) else task)
    ),
    Int32: Part(bytes, int_bytes, writable_ints),
    Table: Part(list, lambda table: [table.shape[1], int_bytes(table)], _read_table),
    list[BlockLoad]: many(Part(list, attrgetter("block_ids"), lambda ids, _: BlockLoad(tuple(ids), memoryview(b"")))),
    list[BlockCopy]: many(Part(list, attrgetter("block_ids"), lambda ids, _: BlockCopy(b"", tuple(ids)))),
    list[tuple[int, list[int]]]: many(Part(list, list, lambda pair, _: tuple(pair))),
    list[Returned]: many(record(Returned, {})),
    StepResult: Part(list, write_result, lambda parts, _: read_result(parts)),
}
_PARTS[RequestInputs] = record(RequestInputs, _PARTS)
_PARTS[list[AdapterLoad]] = many(record(AdapterLoad, _PARTS))
_PARTS[list[Admission]] = many(record(Admission, _PARTS))
_PARTS[StepPlan] = record(StepPlan, _PARTS)
CODEC: RecordCodec[RankMessage] = RecordCodec(get_args(RankMessage), _PARTS)
