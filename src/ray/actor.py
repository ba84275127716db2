"""The class whose instances Ray Serve runs as actors, one for each replica."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from ..config import Deployment
from .checks import resolve_replica
from .replica import Replica

_FLUSH_S = 0.2  # in which Ray passes the last parts of responses on
logger = logging.getLogger(__name__)


class StokerReplica:
    """Ray Serve calls its methods on one event loop."""

    async def __init__(self, deployment: Deployment, num_on_node: int) -> None:  # type: ignore[misc]  # Ray awaits it
        resolved = await asyncio.to_thread(resolve_replica, deployment, num_on_node)
        self._replica = await Replica.start(resolved)
        self._watch = asyncio.ensure_future(self._exit_with_engine())

    def __serve_build_asgi_app__(self) -> Any:
        return self._replica.app

    async def check_health(self) -> None:
        self._replica.check_health()

    async def describe(self) -> dict[str, Any]:
        """Describe the replica that a handle chose: its process, its engine's process, and what it does."""
        return {
            "pid": os.getpid(),
            "engine_pid": getattr(self._replica.client, "pid", None),
            "state": self._replica.client.state.value,
            "open_requests": len(self._replica.service.live),
            "generated_tokens": self._replica.service.metrics.num_generated,
        }

    async def __del__(self) -> None:
        """Close the replica. Ray Serve calls this once its requests have ended or their time is over."""
        if hasattr(self, "_watch"):  # else the start failed
            self._watch.cancel()
            await self._replica.close()

    async def _exit_with_engine(self) -> None:
        """End the process when its engine has ended. Ray sees that at once, sends requests to other replicas and starts
        a new one; a failed health check is counted three times before it has an effect."""
        reason = await self._replica.died()
        logger.critical("%s: this replica ends, Ray starts another one", reason)
        if len(self._replica.service.live):
            await self._replica.drained()  # at once: the engine's end has ended them, with an error event
            await asyncio.sleep(_FLUSH_S)
        os._exit(1)
