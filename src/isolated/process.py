"""The isolated process itself: its limits, and the jobs that arrive, one after the other. See isolation.py."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .wire import pack, read, unpack, write

_GRACE_S = 0.5  # of processor time, beyond the limit that a job keeps itself: to decode, to compile and to encode


class Jobs(Protocol):
    def answer(self, job: dict[str, Any], body: bytes) -> dict[str, Any]:
        """`kind` is "result", with a `result`; "limit", with a `message`; or one that JobModule.error_of knows."""


def answer_jobs(argv: Sequence[str], make_jobs: Callable[[float], Jobs]) -> int:
    """Answer jobs until the other side closes the socket. Returns the exit code. make_jobs: gets the processor time of
    a job."""
    time_limit_s, memory_bytes, niceness = float(argv[1]), int(argv[2]), int(argv[3])
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and a closed terminal are for the process that started this
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):  # macOS has no limit of the address space
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(niceness)
    jobs = make_jobs(time_limit_s)
    with socket.socket(fileno=0) as connection, connection.makefile("rwb") as stream:
        write(stream, b"")  # ready
        while head := read(stream, memory_bytes):
            job = unpack(head)
            body = read(stream, memory_bytes)
            # After this time the kernel sends SIGPROF, which ends the process within an operation and without a server.
            signal.setitimer(signal.ITIMER_PROF, time_limit_s + _GRACE_S)
            answer = pack(jobs.answer(job, body))
            signal.setitimer(signal.ITIMER_PROF, 0)
            write(stream, answer)
    return 0
