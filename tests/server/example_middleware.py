"""Middleware of an operator, valid and invalid, which the tests configure by import path."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

NUMBER = 3


async def stamp(request: Any, call_next: Any) -> Any:
    """A function: reads the request, changes a response header."""
    response = await call_next(request)
    response.headers["x-stamp"] = response.headers.get("x-stamp", "") + f"stamp {request.method};"
    return response


class Tag:
    """An ASGI class: appends to the response header."""

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


async def refuse_all(request: Any, call_next: Any) -> Any:
    return PlainTextResponse("closed today", 403)


async def refuse_by_exception(request: Any, call_next: Any) -> Any:
    raise HTTPException(402, "the budget of this month is spent", {"X-Budget": "0"})


async def add_key(request: Any, call_next: Any) -> Any:
    """Authenticates users by another header and adds the server's key."""
    if request.headers.get("x-user") == "known":
        request.scope["headers"].append((b"authorization", b"Bearer secret"))
    return await call_next(request)


async def fail(request: Any, call_next: Any) -> Any:
    raise RuntimeError("a bug in the operator's code")


def not_async(request: Any, call_next: Any) -> Any:
    return call_next(request)


async def one_argument(request: Any) -> Any:
    return request


class NoArgument:
    pass
