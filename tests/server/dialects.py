"""Bodies and streams of the Responses and Messages APIs, for their tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoker.formats.registry import find
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from .deployment import Served

THINKS = "<think>\nLet me see.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def speaking(folder: Path, text: str, *, tokens_per_output: int = 1, **options: Any) -> Served:
    """A server whose model says this, and is known to write in Hermes' format."""
    token_ids = Tokenizer.load(folder).encode(text)
    engine = FakeEngine(script=lambda _: token_ids, tokens_per_output=tokens_per_output)
    return Served(folder, engine, answer_format=find("hermes"), **options)


def named_events(stream: str) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their types."""
    found = []
    for block in stream.split("\n\n"):
        if block:
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            found.append(event)
    return found


def prompts(served: Served) -> list[str]:
    tokenizer = served.service.need_tokenizer()
    return [
        tokenizer.decode(request.inputs.prompt_token_ids, skip_special_tokens=False)
        for request in served.engine.requests
    ]
