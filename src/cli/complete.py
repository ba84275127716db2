"""`engine complete`: prompts for the completion endpoint of a running server, or a single one with -q."""

from __future__ import annotations

from collections.abc import Iterator

from .flags.serving import CompleteFlags
from .remote import connect
from .talk import talk


def run(flags: CompleteFlags) -> int:
    """Returns the exit code: 0, or 1 if the server cannot be reached or refuses the only prompt."""
    connected = connect(flags.url, flags.model_name, flags.api_key)
    if connected is None:
        return 1
    remote, model = connected

    def answer(text: str) -> Iterator[str]:
        for choice in remote.stream("/completions", {"model": model, "prompt": text}):
            if choice.get("text"):
                yield choice["text"]

    return talk(answer, flags.quick, f"{model} at {flags.url}")
