"""Responses that are generated without a waiting client, until they are cancelled or the server shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """owner: of the response, as in the store."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def start(self, owner: str, response_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[owner, response_id] = task
        task.add_done_callback(lambda _: self._tasks.pop((owner, response_id), None))

    def is_running(self, owner: str, response_id: str) -> bool:
        return (owner, response_id) in self._tasks

    async def cancel(self, owner: str, response_id: str) -> bool:
        """Returns whether it ran, when it has ended."""
        task = self._tasks.get((owner, response_id))
        if task is None:
            return False
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return True
