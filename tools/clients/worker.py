"""Runs the cases of one client in the client's environment: python -m tools.clients.worker ADAPTER.

Reads one JSON object per line, `{"call": function of the adapter, "task": {...}}`, and answers each with one line:
`{"returned": value}`, `{"raised": {...}}`, or `{"absent": true}` if the adapter has no such function. Imports nothing
but the standard library and the adapter: the environment holds the client and no package of Stoker's.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


def described(error: BaseException) -> dict[str, Any]:
    """An error as the client's user sees it, and the server's error object if one is kept in it or in its causes."""
    chain = list(_chain(error))
    bodies = [body for each in chain if isinstance(body := getattr(each, "body", None), dict)]
    bodies += [body for each in chain if (body := _json_in(str(each))) is not None]
    statuses = [status for each in chain if isinstance(status := getattr(each, "status_code", None), int)]
    return {
        "class": _name(type(error)),
        "classes": [_name(kind) for kind in type(error).__mro__],
        "message": str(error),
        "status": statuses[0] if statuses else None,
        "server": bodies[0].get("error", bodies[0]) if bodies else None,
    }


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _json_in(message: str) -> dict[str, Any] | None:
    """An error body of the server in a message: some errors keep it nowhere else."""
    found = message.find('{"error":')
    if found < 0:
        return None
    try:
        body: dict[str, Any] = json.JSONDecoder().raw_decode(message[found:])[0]
    except ValueError:
        return None
    return body


def _name(kind: type) -> str:
    """openai.NotFoundError: as it is imported, without the modules inside the package."""
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"


def answer(adapter: Any, call: str, task: dict[str, Any], loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """loop: runs in another thread."""
    function = getattr(adapter, call, None)
    if function is None:
        return {"absent": True}
    try:
        value = function(SimpleNamespace(**task))
        if inspect.iscoroutine(value):
            value = asyncio.run_coroutine_threadsafe(value, loop).result()
        return {"returned": value}
    except Exception as error:
        return {"raised": described(error)}


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # some clients print
    # One loop, which runs all the time as in an application: clients keep connections that belong to a loop, and a
    # stream that was left may be closed after the function has returned.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    adapter = importlib.import_module(f"tools.clients.adapters.{sys.argv[1]}")
    for line in sys.stdin:
        message = json.loads(line)
        out.write(json.dumps(answer(adapter, message["call"], message["task"], loop)) + "\n")


if __name__ == "__main__":
    main()
