"""HeadlessNode: starts the ranks of another node than 0, and starts them again when rank 0 or one of them has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import time
from enum import Enum

from ...config import Resolved
from ...config.exit_codes import EXIT_FAILED
from ..host.supervision import RestartBudget
from ..transport.rank_messages import Failed, Loaded
from .child import RankChild, children_of_node, close_descriptors, memories_of_node
from .joining import RANK_0_ENDED

_POLL_S = 0.25
logger = logging.getLogger(__name__)


class NodeState(Enum):
    STARTING = "starting"  # node 0 is waited for, or weights are loaded
    READY = "ready"  # all ranks compute
    STOPPED = "stopped"


class _Ended(Exception):
    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class HeadlessNode:
    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        server = resolved.server
        self._budget = RestartBudget(server.engine_restarts)
        self._children: list[RankChild] = []
        self._loaded: set[int] = set()
        self._failures: dict[int, str] = {}
        self.reason = ""  # of the last end

    @property
    def state(self) -> NodeState:
        if not self._children:
            return NodeState.STOPPED
        return NodeState.READY if len(self._loaded) == len(self._children) else NodeState.STARTING

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {child.rank: child.process.pid for child in self._children}

    async def run(self) -> int:
        """Run until the task is cancelled, or the node cannot go on. Returns the exit code of the command."""
        while True:
            try:
                self._start()
                await self._watch()
            except _Ended as ended:
                self.reason = str(ended)
                # what a second start would not change is left to the supervisor of this command
                is_final = ended.exit_code not in (RANK_0_ENDED, EXIT_FAILED)
                if is_final or (ended.exit_code and not self._budget.take(time.monotonic())):
                    logger.critical("%s: node %d ends", ended, self._resolved.topology.node)
                    return ended.exit_code
                logger.warning("%s: the ranks of node %d start again", ended, self._resolved.topology.node)
            finally:
                self._end()
            await asyncio.sleep(_POLL_S)

    def _start(self) -> None:
        """Raises OSError."""
        node = self._resolved.topology.node
        memories = memories_of_node(self._resolved, node)
        try:
            self._children = children_of_node(self._resolved, node, memories)
        finally:
            close_descriptors(memories)

    def _end(self) -> None:
        for child in self._children:
            child.close()
        self._children = []
        self._loaded, self._failures = set(), {}

    async def _watch(self) -> None:
        """Raises _Ended when a rank ends or is stopped."""
        was_ready = False
        while True:
            for child in self._children:
                self._read(child)
            if ended := [child for child in self._children if child.process.poll() is not None]:
                child = max(ended, key=lambda each: each.process.returncode != RANK_0_ENDED)
                code = child.process.returncode
                how = self._failures.get(child.rank) or child.end()
                how = how if code != RANK_0_ENDED else "ended with node 0"
                raise _Ended(f"{child} {how}", EXIT_FAILED if code < 0 else code)
            for child in self._children:
                if child.is_stopped():
                    raise _Ended(f"{child} is stopped", EXIT_FAILED)
            if self.state is NodeState.READY and not was_ready:
                was_ready = True
                logger.info("node %d computes: %s", self._resolved.topology.node, ", ".join(map(str, self._children)))
            await asyncio.sleep(_POLL_S)

    def _read(self, child: RankChild) -> None:
        poll = select.poll()
        poll.register(child.link.fileno(), select.POLLIN)
        with contextlib.suppress(OSError, EOFError, ValueError):
            while poll.poll(0):
                match child.link.receive():
                    case Loaded():
                        self._loaded.add(child.rank)
                    case Failed(text, _):
                        self._failures[child.rank] = f"failed: {text}"
