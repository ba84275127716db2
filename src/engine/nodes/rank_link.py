"""What the processes of one model send each other between steps: sampled tokens, and the next plan.

Rank 0 plans, samples and answers; the others compute their part of the same steps. Numbers inside of a step are
exchanged by engine/parallel. A message is a msgpack array whose first entry is its tag. Both ends of a socket pair are
processes of one start, and those of a TCP connection know each other (nodes/gathering.py), so what arrives is not
checked.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from ..api import SamplingParams, TokenLogprobs
from ..core import StepPlan, StepResult
from ..core.block_store import BlockCopy, BlockLoad
from ..core.step_plan import Admission, Int32

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Start:
    """The first message of rank 0."""

    resolved: str  # JSON
    port: int = 0  # of rank 0, where ranks that exchange through Gloo find each other
    key: bytes = b""  # by which ranks that connect to each other know each other
    places: list[list[Any]] = field(default_factory=list)  # of each rank: the address and port of its `stages` listener


@dataclass(frozen=True, slots=True)
class Join:
    """The first message of a rank that has connected to rank 0."""

    rank: int
    host: str
    pid: int
    place: list[Any]  # address and port where it waits for the stage before it
    fingerprint: dict[str, str]
    secret: str  # a hash


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to Join instead of Start, and the last message."""

    reason: str


@dataclass(frozen=True, slots=True)
class Alive:
    """Sent in both directions at an interval, where the end of a process is not seen otherwise."""

    begun: int = 0  # operations, steps and calls, where each rank plans its own steps


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A plan whose step is computed on a GPU in each rank, or by the hosts."""

    plan: StepPlan
    shape: list[Any] | None  # the fields of runner/cuda/buckets.py StepShape; None: by the hosts
    again: Int32  # rows that are sampled a second time


@dataclass(frozen=True, slots=True)
class Capture:
    """The next shape of a step is captured, by all ranks."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Sleep; answered by Returned. No step runs."""


@dataclass(frozen=True, slots=True)
class TakeMemory:
    """Wake up, before the next step; answered by Returned."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The oldest step that the first stage has begun is finished now: the last stage has computed it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled in the step that runs, which ends with them. None: sampling failed."""

    token_ids: Int32 | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The first message of another rank."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The last one."""

    text: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Operation:
    """Begins now. Sent instead of a plan to ranks that plan the same step themselves."""

    name: str
    hashes: bytes = b""  # of the parts of a plan: launched/plan_hashes.py
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
    """Of a method of all workers: worker.py. No step runs."""

    method: str
    arguments: bytes  # of rank_values.py


@dataclass(frozen=True, slots=True)
class Returned:
    """By one rank."""

    value: bytes  # of its worker: rank_values.py
    error: str = ""


@dataclass(frozen=True, slots=True)
class AllReturned:
    """By the workers of all ranks, for those that make the same call themselves."""

    by_rank: list[Returned]


RankMessage = (
    Start
    | Join
    | Refused
    | Alive
    | StepPlan
    | DeviceStep
    | Capture
    | FreeMemory
    | TakeMemory
    | Finish
    | Tokens
    | Loaded
    | Failed
    | Operation
    | Computed
    | Left
    | Call
    | Returned
    | AllReturned
)


class RankLink:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._part, self._num_read, self._is_length = bytearray(_LENGTH.size), 0, True  # what is being read

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: RankMessage) -> None:
        """Raises OSError if the other process has ended."""
        self.send_bytes(packed(message))

    def send_bytes(self, data: bytes) -> None:
        """data: of `packed`."""
        with self._sending:
            self._socket.sendall(data)

    def offer(self, message: RankMessage, limit_s: float = 0.0) -> None:
        """As `send`, for a short message; nothing is sent if that would wait longer than limit_s: another thread
        sends, or the other process does not read."""
        deadline = time.monotonic() + limit_s
        if not self._sending.acquire(timeout=limit_s):
            return
        try:
            fd = self._socket.fileno()
            if fd < 0:
                raise OSError(errno.EBADF, "this end is closed")
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._socket.sendall(packed(message))
        finally:
            self._sending.release()

    def receive(self, max_bytes: int | None = None) -> RankMessage:
        """Waits for a message. Raises EOFError if the other process has ended, OSError if the connection is broken.

        max_bytes: from a process that is not known; then raises ValueError for what is no message.
        """
        while (message := self.receive_part(max_bytes)) is None:
            pass
        return message

    def receive_part(self, max_bytes: int | None = None) -> RankMessage | None:
        """As `receive`, but reads once: does not wait if something has come. None before the end of a message."""
        got = self._socket.recv_into(memoryview(self._part)[self._num_read :])
        if not got:
            raise EOFError("the other process has ended")
        self._num_read += got
        if self._num_read < len(self._part):
            return None
        part, is_length, self._num_read, self._is_length = self._part, self._is_length, 0, not self._is_length
        if not is_length:
            self._part = bytearray(_LENGTH.size)
            return _unpacked(msgpack.unpackb(part))
        (length,) = _LENGTH.unpack(part)
        if max_bytes is not None and length > max_bytes:
            raise ValueError("not a message of a rank")
        self._part = bytearray(length)
        return None

    def shut_down(self) -> None:
        """Calls that wait on either side end with an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def packed(message: RankMessage) -> bytes:
    """A plan is packed for a rank that samples and stores nothing: of the sampling parameters it has only what decides
    which logits are computed, of stored blocks their places in the cache."""
    match message:
        case Start(resolved, port, key, places):
            parts: list[Any] = ["start", resolved, port, key, places]
        case Join(rank, host, pid, place, fingerprint, secret):
            parts = ["join", rank, host, pid, place, fingerprint, secret]
        case Refused(reason):
            parts = ["refused", reason]
        case Alive(begun):
            parts = ["alive", begun]
        case FreeMemory():
            parts = ["free"]
        case TakeMemory():
            parts = ["take"]
        case Finish():
            parts = ["finish"]
        case Tokens(token_ids):
            parts = ["tokens", None if token_ids is None else _bytes(token_ids)]
        case Loaded():
            parts = ["loaded"]
        case Failed(text, exit_code):
            parts = ["failed", text, exit_code]
        case Operation(name, hashes, size):
            parts = ["operation", name, hashes, size]
        case Computed(result, cause):
            parts = ["computed", None if result is None else _result_parts(result), cause]
        case Left(begun):
            parts = ["left", begun]
        case Call(method, arguments):
            parts = ["call", method, arguments]
        case Returned(value, error):
            parts = ["returned", value, error]
        case AllReturned(by_rank):
            parts = ["all returned", [(each.value, each.error) for each in by_rank]]
        case StepPlan():
            parts = ["step", *_plan_parts(message)]
        case DeviceStep(plan, shape, again):
            parts = ["device step", shape, _bytes(again), *_plan_parts(plan)]
        case Capture():
            parts = ["capture"]
    data: bytes = msgpack.packb(parts)
    return _LENGTH.pack(len(data)) + data


def _unpacked(parts: list[Any]) -> RankMessage:
    tag, *rest = parts
    match tag:
        case "start":
            return Start(*rest)
        case "join":
            return Join(*rest)
        case "refused":
            return Refused(*rest)
        case "alive":
            return Alive(*rest)
        case "free":
            return FreeMemory()
        case "take":
            return TakeMemory()
        case "finish":
            return Finish()
        case "tokens":
            return Tokens(None if rest[0] is None else _numbers(rest[0]))
        case "loaded":
            return Loaded()
        case "failed":
            return Failed(*rest)
        case "operation":
            return Operation(*rest)
        case "computed":
            return Computed(None if rest[0] is None else _result(*rest[0]), rest[1])
        case "left":
            return Left(*rest)
        case "call":
            return Call(*rest)
        case "returned":
            return Returned(*rest)
        case "all returned":
            return AllReturned([Returned(*each) for each in rest[0]])
        case "step":
            return _plan(*rest)
        case "device step":
            shape, again, *plan = rest
            return DeviceStep(_plan(*plan), shape, _numbers(again))
        case "capture":
            return Capture()
    raise AssertionError(f"a message with the tag {tag}")


def _plan_parts(plan: StepPlan) -> list[Any]:
    admissions = [
        (each.slot, _bytes(each.token_ids), each.num_prompt_tokens, each.block_ids, each.sampling.prompt_logprobs)
        for each in plan.admissions
    ]
    columns = (plan.block_slots, plan.slots, plan.num_computed, plan.num_tokens, plan.is_sampled)
    tables = (plan.block_ids, plan.restored_states, plan.kept_states)
    copied = ([each.block_ids for each in copies] for copies in (plan.loads, plan.saves))
    return [
        *(plan.step, plan.released_slots, admissions, plan.forced, *copied),
        *(column.tobytes() for column in columns),
        *((table.shape[1], table.tobytes()) for table in tables),
    ]


def _plan(
    step: int,
    released_slots: list[int],
    admissions: list[Any],
    forced: list[Any],
    loads: list[list[int]],
    saves: list[list[int]],
    *columns: Any,
) -> StepPlan:
    block_slots, slots, num_computed, num_tokens = map(_numbers, columns[:4])
    block_ids, restored, kept = (_numbers(data).reshape(-1, width) for width, data in columns[5:])
    return StepPlan(
        step=step,
        released_slots=released_slots,
        admissions=[
            Admission(slot, _numbers(tokens).tolist(), count, blocks, SamplingParams(prompt_logprobs=logprobs), seed=0)
            for slot, tokens, count, blocks, logprobs in admissions
        ],
        block_slots=block_slots,
        block_ids=block_ids,
        slots=slots,
        num_computed=num_computed,
        num_tokens=num_tokens,
        is_sampled=np.frombuffer(columns[4], np.bool_).copy(),
        restored_states=restored,
        kept_states=kept,
        forced=[(slot, tokens) for slot, tokens in forced],
        loads=[BlockLoad(tuple(block_ids), memoryview(b"")) for block_ids in loads],
        saves=[BlockCopy(b"", tuple(block_ids), is_for_others=False) for block_ids in saves],
    )


def _result_parts(result: StepResult) -> list[Any]:
    """Pairs, because keys of msgpack are text."""
    prompts = [(row, [_logprobs_parts(each) for each in entries]) for row, entries in result.prompt_logprobs.items()]
    logprobs = [(row, _logprobs_parts(each)) for row, each in result.logprobs.items()]
    forced = list(result.forced.items())
    return [_bytes(result.token_ids), logprobs, prompts, list(result.errors.items()), result.complete, forced]


def _result(
    token_ids: bytes, logprobs: list[Any], prompts: list[Any], errors: list[Any], complete: list[int], forced: list[Any]
) -> StepResult:
    return StepResult(
        token_ids=_numbers(token_ids),
        logprobs={row: TokenLogprobs(*each) for row, each in logprobs},
        prompt_logprobs={row: [TokenLogprobs(*each) for each in entries] for row, entries in prompts},
        errors=dict(errors),
        complete=complete,
        forced=dict(forced),
    )


def _logprobs_parts(entry: TokenLogprobs) -> tuple[list[int], list[float], int]:
    return entry.token_ids, entry.logprobs, entry.rank


def _bytes(numbers: Any) -> bytes:
    return np.asarray(numbers, np.int32).tobytes()


def _numbers(data: bytes) -> Int32:
    return np.frombuffer(bytearray(data), np.int32)  # torch shares only memory that can be written
