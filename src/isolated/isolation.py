"""Isolation: work on what clients and model folders send, in separate processes, which can be ended.

A chat template is a program: one operation of C in it, such as a filter on a long list, can take minutes and gigabytes.
The JSON parser takes tens of milliseconds for a long body. Both hold the GIL meanwhile, and with it the event loop. In
another process they hold nothing of the server, and the kernel limits the processor time of each job and its memory.
Processor time, because a busy machine is no fault of a template, and a job cannot wait for anything.

A process is `python -m` with the module that its pool is for (see process.py). Its standard input is a socket: jobs
arrive there, each as msgpack and, apart from it, the body that a client sent, so that this is never copied; answers are
msgpack. The process gets no secrets: few variables of the environment, and no descriptors but this one.

The server waits for an answer on its event loop. A thread that waits must get the GIL when it wakes up, which can take
milliseconds each time in a busy server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..frames import LENGTH_BYTES, FrameTooLong, length_before, length_of
from .wire import pack, unpack

TIME_LIMIT_S = 2.0  # of processor time, for a job
NUM_PROCESSES = 2  # of a pool at most, started when they are needed
MEMORY_BYTES = 1 << 30  # address space of a process; a long body and its prompt need a tenth of it
LOW_PRIORITY = 5  # niceness of processes whose jobs are long: they take little time from the server and the engine
_ANSWER_LIMIT_S = 60.0  # a process that does not answer for so long is stopped, or never runs
_MAX_ANSWER_BYTES = 257 << 20  # as a prompt of the largest size can have
_INLINE_BYTES = 64 << 10  # longer answers are decoded in a thread
_PIECE_BYTES = 256 << 10  # sent or received before other tasks of the event loop run
_ENVIRONMENT = ("PATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
Body = bytes | bytearray


class JobEnded(Exception):
    """A job exceeded the limit that the message names, and its process was ended."""


@dataclass(frozen=True, slots=True)
class JobModule:
    """What processes can do.

    name: of the module that `python -m` runs; it calls `answer_jobs` of process.py.
    error_of: the error that an answer contains which is neither a result nor a limit.
    """

    name: str
    error_of: Callable[[Mapping[str, Any]], Exception]


class IsolatedProcesses:
    """A pool of processes. They end with this process, or with `close`."""

    def __init__(
        self,
        jobs: JobModule,
        num_processes: int = NUM_PROCESSES,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int = MEMORY_BYTES,
        niceness: int = 0,
    ) -> None:
        """time_limit_s: processor time of a job."""
        self.jobs = jobs
        self._processes = [_Process(jobs.name, time_limit_s, memory_bytes, niceness) for _ in range(num_processes)]
        self._idle = deque(self._processes)
        self._waiting: deque[Future[_Process]] = deque()
        self._lock = threading.RLock()  # reentrant: the garbage collector may end an exchange
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self.close = weakref.finalize(self, _end, self._processes)  # also at the exit of this process

    def start(self) -> None:
        """Start one process, without waiting for it: it imports its modules while others load."""
        process = self._lend().result()
        process.start()
        self._give_back(process)

    def ask(self, job: Mapping[str, Any], body: Body = b"") -> Any:
        """The result of a job, for a caller without an event loop. Waits for an idle process.

        Raises what the job raises, JobEnded, or OSError if the process cannot be started.
        """
        process = self._lend().result()
        answer = _received(process, self._steps(process, job, body))
        return self._settled(answer if isinstance(answer, dict) else unpack(answer))

    async def answer(self, job: Mapping[str, Any], body: Body = b"") -> Any:
        """See `ask`, here on the event loop. When the caller is cancelled, a job that has begun continues to its
        end."""
        process = self._take() or await self._lent()
        answer = await _Exchange(process, self._steps(process, job, body)).received
        if isinstance(answer, dict):
            return self._settled(answer)
        return self._settled(await asyncio.get_running_loop().run_in_executor(self._decoder, unpack, answer))

    def _settled(self, answer: dict[str, Any]) -> Any:
        """The result in an answer. Raises the error in it."""
        match answer["kind"]:
            case "result":
                return answer["result"]
            case "limit":
                raise JobEnded(answer["message"])
            case _:
                raise self.jobs.error_of(answer)

    def _steps(self, process: _Process, job: Mapping[str, Any], body: Body) -> Steps:
        try:
            return (yield from process.exchange(job, body))
        finally:
            self._give_back(process)

    def _take(self) -> _Process | None:
        with self._lock:
            return self._idle.popleft() if self._idle else None

    def _lend(self) -> Future[_Process]:
        lent: Future[_Process] = Future()
        with self._lock:
            if self._idle:
                lent.set_result(self._idle.popleft())
            else:
                self._waiting.append(lent)
        return lent

    async def _lent(self) -> _Process:
        lent = self._lend()
        try:
            return await asyncio.wrap_future(lent)
        except asyncio.CancelledError:
            if not lent.cancel():  # it was lent meanwhile
                self._give_back(lent.result())
            raise

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            while self._waiting:
                lent = self._waiting.popleft()
                if lent.set_running_or_notify_cancel():
                    lent.set_result(process)
                    return
            self._idle.appendleft(process)  # the last used one is running already


def _end(processes: Sequence[_Process]) -> None:
    for process in processes:
        process.end()


Answer = bytearray | dict[str, Any]  # a long one is decoded later
Steps = Generator[int, None, Answer]  # yields the event of poll(2) that it waits for


class _Process:
    """One process, started when it is needed; does one job at a time."""

    def __init__(self, module: str, time_limit_s: float, memory_bytes: int, niceness: int) -> None:
        self._module = module
        self._time_limit_s = time_limit_s
        self._arguments = str(time_limit_s), str(memory_bytes), str(niceness)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_ready = False

    @property
    def socket(self) -> socket.socket:
        assert self._socket is not None, "it has not been started"
        return self._socket

    def start(self) -> None:
        """Start the process, unless it runs already."""
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        command = (sys.executable, "-P", "-m", self._module, *self._arguments)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the same modules as here
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
            )
        self.socket.setblocking(False)
        self._is_ready = False

    def end(self) -> None:
        """End the process. May be called more than once."""
        process, self._process = self._process, None
        if process is not None:
            self.socket.close()
            process.kill()
            threading.Thread(target=process.wait, daemon=True).start()  # the kernel may have a gigabyte to free

    def exchange(self, job: Mapping[str, Any], body: Body) -> Steps:
        """Send a job and receive its answer. An exchange that is not completed ends the process."""
        self.start()
        head = pack(job)
        try:
            if not self._is_ready:
                try:
                    yield from self._receive()
                except JobEnded as ended:
                    raise OSError(f"the process for isolated work did not start: {ended}") from None
                self._is_ready = True
            yield from self._send(length_before(head) + head + length_before(body))
            yield from self._send(body)
            data = yield from self._receive()
        except BaseException:  # the rest of the answer would be read as the next one
            self.end()
            raise
        if len(data) > _INLINE_BYTES:
            return data
        answer: dict[str, Any] = unpack(data)
        if answer["kind"] == "limit":
            self.end()  # and with it the memory that it holds
        return answer

    def _send(self, data: Body) -> Generator[int, None, None]:
        rest = memoryview(data)
        while rest:
            with contextlib.suppress(BlockingIOError):
                try:
                    rest = rest[self.socket.send(rest[:_PIECE_BYTES]) :]
                except ConnectionError:
                    raise self._ended() from None
            if rest:
                yield select.POLLOUT

    def _receive(self) -> Generator[int, None, bytearray]:
        data, size = bytearray(), -1
        while size < 0 or len(data) < size:
            yield select.POLLIN
            try:
                piece = self.socket.recv(_PIECE_BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                piece = b""
            if not piece:
                raise self._ended()
            data += piece
            if size < 0 and len(data) >= LENGTH_BYTES:
                try:
                    size = length_of(data[:LENGTH_BYTES], _MAX_ANSWER_BYTES)
                except FrameTooLong:
                    raise JobEnded(f"an answer of more than {_MAX_ANSWER_BYTES} bytes") from None
                del data[:LENGTH_BYTES]
        return data

    def _ended(self) -> JobEnded:
        assert self._process is not None
        code = self._process.wait()
        if code == -signal.SIGPROF:
            return JobEnded(f"more than {self._time_limit_s:g} s")
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return JobEnded(f"its process ended ({reason})")


def _received(process: _Process, steps: Steps) -> Answer:
    """What an exchange receives, in this thread."""
    try:
        while True:
            event = next(steps)
            poll = select.poll()
            poll.register(process.socket.fileno(), event)
            if not poll.poll(1000 * _ANSWER_LIMIT_S):
                steps.throw(_silent())
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    finally:
        steps.close()


class _Exchange:
    """An exchange on the event loop. It continues when its caller no longer waits."""

    def __init__(self, process: _Process, steps: Steps) -> None:
        self._loop = asyncio.get_running_loop()
        self.received: asyncio.Future[Answer] = self._loop.create_future()
        self._process = process
        self._steps = steps
        self._watched: tuple[int, int] | None = None  # descriptor and event
        self._timer = self._loop.call_later(_ANSWER_LIMIT_S, self._silent)
        self._step()

    def _step(self) -> None:
        try:
            self._watch(next(self._steps))
        except StopIteration as end:
            self._settle(end.value, None)
        except Exception as error:
            self._settle({}, error)

    def _silent(self) -> None:
        try:
            self._steps.throw(_silent())
        except JobEnded as error:
            self._settle({}, error)

    def _watch(self, event: int | None) -> None:
        watched = None if event is None else (self._process.socket.fileno(), event)
        if self._watched == watched:
            return
        if self._watched is not None:
            fd, was = self._watched
            (self._loop.remove_reader if was == select.POLLIN else self._loop.remove_writer)(fd)
        if watched is not None:
            fd, now = watched
            (self._loop.add_reader if now == select.POLLIN else self._loop.add_writer)(fd, self._step)
        self._watched = watched

    def _settle(self, answer: Answer, error: Exception | None) -> None:
        self._watch(None)
        self._timer.cancel()
        if self.received.cancelled():
            return
        if error is None:
            self.received.set_result(answer)
        else:
            self.received.set_exception(error)


def _silent() -> JobEnded:
    return JobEnded(f"no answer for {_ANSWER_LIMIT_S:g} s")
