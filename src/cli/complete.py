"""`engine complete`: prompts for the completion endpoint of a running server, or a single one with -q."""

from __future__ import annotations

from collections.abc import Iterator

from .defaults import DEFAULT_URL
from .remote import connect
from .talk import talk


def run(
    url: str = DEFAULT_URL,
    model_name: str | None = None,
    api_key: str | None = None,
    quick: str | None = None,
) -> int:
    """Returns the exit code: 0, or 1 if the server cannot be reached or refuses the only prompt."""
    connected = connect(url, model_name, api_key)
    if connected is None:
        return 1
    remote, model = connected

    def answer(text: str) -> Iterator[str]:
        for choice in remote.stream("/completions", {"model": model, "prompt": text}):
            if choice.get("text"):
                yield choice["text"]

    return talk(answer, quick, f"{model} at {url}; an empty line or Ctrl-D ends")
