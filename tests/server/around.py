"""Middleware of an operator, good and bad, for test_middleware.py to name by import path."""

from __future__ import annotations

from typing import Any

from starlette.responses import PlainTextResponse

NUMBER = 3


async def stamp(request: Any, call_next: Any) -> Any:
    """As most people write one: looks at the request, changes the answer."""
    response = await call_next(request)
    response.headers["x-stamp"] = response.headers.get("x-stamp", "") + f"stamp {request.method};"
    return response


class Tag:
    """As an ASGI class: adds its name behind what is there."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def tagged(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                headers[b"x-stamp"] = headers.get(b"x-stamp", b"") + b"tag;"
                message["headers"] = list(headers.items())
            await send(message)

        await self.app(scope, receive, tagged)


async def close_the_door(request: Any, call_next: Any) -> Any:
    return PlainTextResponse("closed today", 403)


async def bring_a_key(request: Any, call_next: Any) -> Any:
    """Signs users in by a header of its own, and gives them the server's key."""
    if request.headers.get("x-user") == "known":
        request.scope["headers"].append((b"authorization", b"Bearer secret"))
    return await call_next(request)


async def fail(request: Any, call_next: Any) -> Any:
    raise RuntimeError("a mistake of the operator's")


def plain(request: Any, call_next: Any) -> Any:
    return call_next(request)


async def too_narrow(request: Any) -> Any:
    return request


class NoApp:
    pass
