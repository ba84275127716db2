"""Responses that are generated without a waiting client, until they are cancelled or the server shuts down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from .event_log import EventLog, LogMemory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """task: generates and stores the response. response: as it is now. log: its events, if it was asked as a stream."""

    task: asyncio.Task[None]
    response: Callable[[], dict[str, Any]]
    log: EventLog | None


class Background:
    """owner: of the response, as in the store."""

    def __init__(self, max_log_bytes: int) -> None:
        self.log_memory = LogMemory(max_log_bytes)
        self._running: dict[tuple[str, str], Running] = {}

    def start(
        self,
        owner: str,
        response_id: str,
        work: Coroutine[Any, Any, None],
        response: Callable[[], dict[str, Any]],
        log: EventLog | None,
        on_end: Callable[[], None],
    ) -> None:
        task = asyncio.ensure_future(work)
        self._running[owner, response_id] = Running(task, response, log)

        def end(_: asyncio.Task[None]) -> None:
            del self._running[owner, response_id]
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a response in the background could not be stored", exc_info=error)
            on_end()

        task.add_done_callback(end)

    def get(self, owner: str, response_id: str) -> Running | None:
        return self._running.get((owner, response_id))

    async def cancel(self, owner: str, response_id: str) -> bool:
        """Returns whether it ran, when it has ended."""
        running = self.get(owner, response_id)
        if running is None:
            return False
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        return True
