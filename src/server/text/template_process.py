"""Chat templates in processes of their own, which can be ended.

A template is a program. One operation of C in it, such as a filter on a long list, can take minutes and gigabytes, and
holds the GIL meanwhile: a time check within the process does not help. Here the kernel limits the processor time of
each rendering and its memory. Processor time, because a busy machine is no fault of the template, and a template cannot
wait for anything.

Which renderings need this is decided in renderer.py. The process is `python -m stoker.server.text.template_process`:
jobs on its standard input, answers on its standard output, each with its length before it. It gets no secrets: few
variables of the environment, and no descriptors but these.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import msgpack

from ...engine.api import InvalidRequest
from .chat_template import (
    MAX_RENDERED_CHARS,
    TIME_LIMIT_S,
    CannotCompile,
    ChatTemplate,
    ContentFormat,
    LimitExceeded,
    TemplateEnvironment,
)

T = TypeVar("T")

MEMORY_BYTES = 1 << 30  # address space of a process; a long body and its prompt need a tenth of it
NUM_PROCESSES = 2  # at most, started when they are needed
_GRACE_S = 0.5  # of processor time, beyond the limit of the rendering: to decode, to compile and to encode
_ANSWER_LIMIT_S = 60.0  # a process that does not answer for so long is stopped, or never runs
_MAX_ANSWER_BYTES = 4 * MAX_RENDERED_CHARS + (1 << 20)
_LENGTH_BYTES = 8
_MODULE = f"{__package__}.template_process"
_ENVIRONMENT = ("PATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


class TemplateProcesses:
    """Processes for the jobs of several threads. They end with this process, or with `close`."""

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._processes = [_TemplateProcess(time_limit_s) for _ in range(NUM_PROCESSES)]
        self._idle: queue.LifoQueue[_TemplateProcess] = queue.LifoQueue()  # the last used one is running already
        for process in reversed(self._processes):
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="templates")
        self.close = weakref.finalize(self, _end, self._processes)  # also at the exit of this process

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work`, which calls `ask`, in a thread. There is one thread for each process."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def start(self) -> None:
        """Start one process, without waiting for it: it imports its modules while others load."""
        process = self._idle.get()
        process.start()
        self._idle.put(process)

    def ask(self, job: Mapping[str, Any]) -> Any:
        """The result of a job. Waits for an idle process.

        Raises CannotCompile, InvalidRequest, or LimitExceeded; in the last case the process has been ended. OSError if
        the process cannot be started.
        """
        process = self._idle.get()
        try:
            return process.ask(job)
        finally:
            self._idle.put(process)


def _end(processes: Sequence[_TemplateProcess]) -> None:
    for process in processes:
        process.end()


class IsolatedTemplate:
    """As ChatTemplate, compiled and rendered in a process of `processes`."""

    def __init__(self, processes: TemplateProcesses, source: str, content_format: ContentFormat = "auto") -> None:
        """Raises CannotCompile or LimitExceeded."""
        self._processes = processes
        self._job = {"source": source, "content_format": content_format}
        self.variables: frozenset[str] = frozenset(processes.ask(self._job))

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], *, continues: bool = False
    ) -> str:
        text = self._processes.ask({**self._job, "render": [messages, variables, continues]})
        return cast(str, text)


class _TemplateProcess:
    """One process, started when it is needed; used by one thread at a time."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def start(self) -> None:
        """Unless it runs already."""
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        command = (sys.executable, "-P", "-m", _MODULE, str(self._time_limit_s))
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the same modules as here
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env=environment,
        )  # fmt: skip
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._process, self._is_ready = process, False

    def ask(self, job: Mapping[str, Any]) -> Any:
        self.start()
        data = msgpack.packb(job, default=_pack_other, unicode_errors="surrogatepass")
        try:
            self._wait_until_ready()
            deadline = time.monotonic() + _ANSWER_LIMIT_S + self._time_limit_s
            self._send(data, deadline)
            answer = msgpack.unpackb(self._receive(deadline), unicode_errors="surrogatepass")
        except BaseException:  # also of an interrupt: the rest of the answer would be read as the next one
            self.end()
            raise
        if answer["kind"] == "limit":
            self.end()  # and with it the memory that it holds
        return _result(answer)

    def _wait_until_ready(self) -> None:
        """Raises OSError."""
        if not self._is_ready:
            try:
                self._receive(time.monotonic() + _ANSWER_LIMIT_S)
            except LimitExceeded as error:
                raise OSError(f"the process for chat templates did not start: {error.limit}") from None
            self._is_ready = True

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        while rest:
            self._wait(self._process.stdin.fileno(), select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._process.stdin.fileno(), rest) :]
            except BrokenPipeError:
                raise self._ended() from None

    def _receive(self, deadline: float) -> bytes:
        size = int.from_bytes(self._read(_LENGTH_BYTES, deadline), "big")
        if size > _MAX_ANSWER_BYTES:
            raise LimitExceeded(f"more than {MAX_RENDERED_CHARS} characters")
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        data = bytearray()
        while len(data) < size:
            self._wait(self._process.stdout.fileno(), select.POLLIN, deadline)
            piece = os.read(self._process.stdout.fileno(), min(size - len(data), 1 << 20))
            if not piece:
                raise self._ended()
            data += piece
        return bytes(data)

    def _wait(self, pipe: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            raise LimitExceeded(f"no answer for {_ANSWER_LIMIT_S:g} s")

    def _ended(self) -> LimitExceeded:
        assert self._process is not None
        code = self._process.wait()
        if code == -signal.SIGPROF:
            return LimitExceeded(f"more than {self._time_limit_s:g} s")
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return LimitExceeded(f"its process ended ({reason})")


def _result(answer: dict[str, Any]) -> Any:
    match answer["kind"]:
        case "result":
            return answer["result"]
        case "cannot compile":
            raise CannotCompile(answer["message"], answer["line"])
        case "limit":
            raise LimitExceeded(answer["message"])
        case _:
            raise InvalidRequest(answer["message"], param=answer["param"], code=answer["code"])


def _pack_other(value: Any) -> Any:
    """Integers beyond 64 bits, which JSON may contain."""
    if isinstance(value, int):
        return msgpack.ExtType(0, str(value).encode())
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


# In the process


def main(argv: Sequence[str]) -> int:
    time_limit_s = float(argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    with contextlib.suppress(ValueError, OSError):  # macOS has no limit of the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)  # a template that uses all of its time takes little of it from the server and the engine
    environment = TemplateEnvironment(time_limit_s, time.process_time)
    compiled: dict[tuple[str, ContentFormat], ChatTemplate] = {}
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _write(target, b"")  # ready
    while length := source.read(_LENGTH_BYTES):
        job = msgpack.unpackb(
            source.read(int.from_bytes(length, "big")),
            ext_hook=lambda _, digits: int(digits),
            unicode_errors="surrogatepass",
            strict_map_key=False,
        )
        # At its end the kernel ends the process with SIGPROF, also within an operation, and without a server.
        signal.setitimer(signal.ITIMER_PROF, time_limit_s + _GRACE_S)
        answer = msgpack.packb(_answer(job, environment, compiled), unicode_errors="surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(target, answer)
    return 0


def _answer(
    job: dict[str, Any],
    environment: TemplateEnvironment,
    compiled: dict[tuple[str, ContentFormat], ChatTemplate],
) -> dict[str, Any]:
    key = (job["source"], job["content_format"])
    try:
        template = compiled.pop(key, None) or ChatTemplate(environment, *key)
        while len(compiled) >= 8:
            del compiled[next(iter(compiled))]  # the one that was not used for longest
        compiled[key] = template
        if "render" not in job:
            return {"kind": "result", "result": sorted(template.variables)}
        messages, variables, continues = job["render"]
        return {"kind": "result", "result": template.render(messages, variables, continues=continues)}
    except CannotCompile as error:
        return {"kind": "cannot compile", "message": error.problem, "line": error.line}
    except LimitExceeded as error:
        return {"kind": "limit", "message": error.limit}
    except InvalidRequest as error:
        return {"kind": "refused", "message": str(error), "param": error.param, "code": error.code}


def _write(target: Any, data: bytes) -> None:
    target.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    target.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
