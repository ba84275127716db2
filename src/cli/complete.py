"""`engine complete`: prompts to a running server's completion endpoint, one by one, or a single one with -q."""

from __future__ import annotations

from collections.abc import Iterator

from .remote import connect
from .talk import talk


def run(
    url: str = "http://localhost:8000/v1",
    model_name: str | None = None,
    api_key: str | None = None,
    quick: str | None = None,
) -> int:
    """Returns the exit code: 0, or 1 when the server cannot be reached or refuses the only prompt."""
    connected = connect(url, model_name, api_key)
    if connected is None:
        return 1
    remote, model = connected

    def answer(text: str) -> Iterator[str]:
        for choice in remote.stream("/completions", {"model": model, "prompt": text}):
            if choice.get("text"):
                yield choice["text"]

    return talk(answer, quick, f"{model} at {url}; an empty line or Ctrl-D ends")
