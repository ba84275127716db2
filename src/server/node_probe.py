"""What a node without an API answers, for supervisors: /livez, /readyz and /health, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .http.serve import serve
from .http.shutdown import Shutdown


async def serve_probes(
    sockets: list[socket.socket],
    shutdown: Shutdown,
    describe: Callable[[], dict[str, Any]],
    is_ready: Callable[[], bool],
    on_listening: Callable[[], None],
) -> None:
    """Serve probes until the shutdown is requested. sockets: from `take_address`. describe: the body of each answer."""

    async def alive(request: Request) -> Response:
        return JSONResponse(describe())

    async def ready(request: Request) -> Response:
        return JSONResponse(describe(), status_code=200 if is_ready() else 503)

    async def nothing_to_end() -> None:
        pass

    app = Starlette(routes=[Route("/livez", alive), Route("/readyz", ready), Route("/health", ready)])
    await serve(app, sockets, shutdown, end_streams=nothing_to_end, drain_timeout=0, on_listening=on_listening)
