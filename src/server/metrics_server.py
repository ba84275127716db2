"""The metrics of a service on a separate address, for `engine run-batch`, which serves no other route."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .http.serve import serve
from .http.shutdown import Shutdown
from .service import Service


@contextlib.asynccontextmanager
async def serving_metrics(service: Service, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Serve GET /metrics, and nothing else, during the `async with` block. sockets: from `bind`; closed at the end."""

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.render(), headers={"content-type": service.metrics.content_type})

    async def nothing_to_end() -> None:
        pass

    shutdown, listening = Shutdown(), asyncio.Event()
    app = Starlette(routes=[Route("/metrics", metrics)])
    task = asyncio.ensure_future(
        serve(
            app,
            sockets,
            shutdown,
            end_streams=nothing_to_end,
            drain_timeout=0,
            on_listening=listening.set,
            exit_hard=False,
        )
    )
    waiting = asyncio.ensure_future(listening.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield
    finally:
        waiting.cancel()
        shutdown.request("the run has ended")
        shutdown.cut.set()
        await task
