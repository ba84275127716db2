"""`engine chat`: a conversation with a running server, or one message with -q."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .defaults import DEFAULT_URL
from .remote import connect
from .talk import talk


def run(
    url: str = DEFAULT_URL,
    model_name: str | None = None,
    api_key: str | None = None,
    system_prompt: str | None = None,
    quick: str | None = None,
) -> int:
    """Returns the exit code: 0, or 1 if the server cannot be reached or refuses the only message."""
    connected = connect(url, model_name, api_key)
    if connected is None:
        return 1
    remote, model = connected
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []

    def answer(text: str) -> Iterator[str]:
        messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            for choice in remote.stream("/chat/completions", {"model": model, "messages": messages}):
                delta: dict[str, Any] = choice.get("delta") or {}
                if delta.get("content"):
                    said.append(delta["content"])
                    yield delta["content"]
        finally:
            if said:
                messages.append({"role": "assistant", "content": "".join(said)})
            else:
                messages.pop()  # else a question without an answer would precede the next one

    return talk(answer, quick, f"{model} at {url}; an empty line or Ctrl-D ends")
