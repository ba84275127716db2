"""Replica: a Stoker engine and its OpenAI-compatible app, inside a process that somebody else started.

Does not import Ray: actor.py gives it to Ray Serve.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.applications import Starlette

from ..cli.prepare import engine_client, start_beside
from ..config import Resolved
from ..config.open_files import raise_limit
from ..engine.client.engine_client import EngineClient, EngineState
from ..logs import configure_logging
from ..server.app import build_app
from ..server.health import liveness
from ..server.run import Text, background_work, check_server, load_text
from ..server.service import Service

_WATCH_INTERVAL_S = 0.1


class Unhealthy(RuntimeError):
    """The replica should be replaced."""


class Replica:
    """Create it with `start`; end it with `close`."""

    def __init__(self, resolved: Resolved, client: EngineClient, text: Text) -> None:
        self.client = client
        self.service = Service(resolved, client, text.tokenizer, text.renderer, answers=text.answers)
        self.app: Starlette = build_app(self.service)
        self._work = contextlib.AsyncExitStack()

    @classmethod
    async def start(cls, resolved: Resolved) -> Replica:
        """Raises EngineStartFailed, or an error of the server's files; then no engine process is left."""
        configure_logging(resolved.server)
        raise_limit()
        client = engine_client(resolved, lambda phase: None)

        def load() -> Text:
            check_server(resolved)
            return load_text(resolved)

        try:
            replica = cls(resolved, client, await start_beside(client, load))
            await replica._work.enter_async_context(background_work(replica.service, replica.app))
        except BaseException:
            await client.close()
            raise
        replica.service.long_bodies.start()
        return replica

    def check_health(self) -> None:
        """Raises Unhealthy if the engine makes no progress or will not be started again."""
        if liveness(self.service) is not None:
            raise Unhealthy(self.client.reason)

    async def died(self) -> str:
        """Wait until the engine will not be started again. Returns the cause."""
        while self.client.state is not EngineState.DEAD:  # noqa: ASYNC110 (the client's state can only be polled)
            await asyncio.sleep(_WATCH_INTERVAL_S)
        return self.client.reason

    async def drained(self) -> None:
        """Wait until every request has ended."""
        while len(self.service.live):  # noqa: ASYNC110 (rare: after the engine has died)
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def close(self) -> None:
        """End all requests, with an error, then the engine."""
        await self.service.live.end_all()
        await self._work.aclose()
        await self.client.close()
