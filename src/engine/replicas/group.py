"""ReplicaGroup: replicas that share the experts of a model, as the process that starts them sees them.

None can compute without the others. When one ends or is stopped, the others are ended too, also in the middle of a
step. The client of each starts it again, and processes of the same start find each other.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..client.child import EngineChild
from ..host.neighbours import Neighbours
from ..host.process_state import StoppedWatch
from ..transport.messages import ExitReason, Message

_POLL_S = 0.25  # a process that is stopped in two polls one after the other is given up
_WITHOUT_CAUSE = {"EngineExit", "ExchangeClosed", "ReplicaLost"}  # no reason was given, or another process is the cause


class ReplicaGroup:
    def __init__(
        self,
        commands: Mapping[int, Sequence[str]],
        configs: Mapping[int, str],
        environments: Mapping[int, Mapping[str, str]],
    ) -> None:
        """commands: start the engine process of each replica, by rank. configs: for their standard input."""
        self._commands, self._configs, self._environments = commands, configs, environments
        self._start: GroupStart | None = None

    def child(self, rank: int, receive: Callable[[Message], None], *, is_shared: bool = False) -> GroupChild:
        """A start of one replica. Others of the group must be started too before it is ready."""

        def child_of(neighbours: Neighbours) -> EngineChild:
            return EngineChild(
                (*self._commands[rank], "--neighbours", *neighbours.words(rank)),
                self._configs[rank],
                receive,
                self._environments[rank],
                is_shared=is_shared,
                inherits=neighbours.descriptors,
            )

        return GroupChild(self, rank, child_of)

    def join(self, child: GroupChild) -> GroupStart:
        """The start that other replicas have begun, or a new one. Raises OSError."""
        if self._start is None or self._start.lost or child.rank in self._start.children:
            self._start = GroupStart(len(self._configs))
        self._start.children[child.rank] = child
        return self._start


class GroupStart:
    """One start of all replicas."""

    def __init__(self, size: int) -> None:
        """Raises OSError."""
        self.neighbours = Neighbours.new(size)
        self.children: dict[int, GroupChild] = {}
        self.lost = ""  # why no step can follow
        weakref.finalize(self, _close, self.neighbours.descriptors)  # when no child needs them to start

    def close(self, why: str) -> None:
        """Close this start: no step can follow. The first reason counts."""
        self.lost = self.lost or why
        self.neighbours.memory.close_exchange()
        self.children = {}  # they refer to this start, whose descriptors are closed when none does

    def end(self, why: str, ended: GroupChild) -> None:
        """Close this start, and end the other processes."""
        if self.lost:
            return
        children = self.children.values()
        self.close(why)
        for child in children:
            if child is not ended:
                child.end(why)


class GroupChild:
    """One start of a replica; the same methods as EngineChild."""

    def __init__(self, group: ReplicaGroup, rank: int, child_of: Callable[[Neighbours], EngineChild]) -> None:
        self.rank = rank
        self._group, self._child_of = group, child_of
        self._start: GroupStart | None = None
        self._child: EngineChild | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ended_because = ""  # of what is not seen from its exit code

    @property
    def paths(self) -> list[Path]:
        return [] if self._child is None else self._child.paths

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Raises OSError."""
        start = self._start = self._group.join(self)
        child = self._child = self._child_of(start.neighbours)
        try:
            await child.start()
        except BaseException:
            start.end(f"replica {self.rank}, which has other experts, could not be started", self)
            raise
        self._tasks = [asyncio.create_task(each) for each in (self._watch_end(start), self._watch_stop(start, child))]
        if start.lost:  # meanwhile
            self.end(start.lost)

    def send(self, message: Message) -> None:
        if self._child is not None:
            self._child.send(message)

    async def ended(self) -> ExitReason:
        assert self._child is not None, "start comes first"
        reason = await self._child.ended()
        has_cause = reason.error not in _WITHOUT_CAUSE  # its own: the others may have ended before it
        return reason if has_cause or not self._ended_because else ExitReason("ReplicaLost", self._ended_because)

    async def stop(self, grace_s: float = 1.0) -> None:
        """See EngineChild.stop. The others, which cannot compute without this one, are stopped too."""
        if self._start is not None:
            self._start.close(f"replica {self.rank}, which has other experts, was stopped")
        if self._child is not None:
            await self._child.stop(grace_s)

    def end(self, why: str) -> None:
        """End the process at once: there is nothing to finish."""
        if self._child is not None:
            self._ended_because = why
            self._tasks.append(asyncio.create_task(self._child.stop(0)))

    async def _watch_end(self, start: GroupStart) -> None:
        assert self._child is not None, "start comes first"
        reason = await self.ended()
        start.end(f"replica {self.rank}, which has other experts, has ended: {reason.message}", self)

    async def _watch_stop(self, start: GroupStart, child: EngineChild) -> None:
        """Ends a process that SIGSTOP or a debugger has stopped: the others would wait for it."""
        ended, watch = asyncio.ensure_future(child.ended()), StoppedWatch(child.pid)
        while not ended.done():
            await asyncio.wait([ended], timeout=_POLL_S)
            if watch.is_stopped():
                self.end("the engine process is stopped")
                start.end(f"replica {self.rank}, which has other experts, is stopped", self)
                return


def _close(descriptors: tuple[int, ...]) -> None:
    for fd in descriptors:
        os.close(fd)
