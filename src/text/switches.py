"""Variables of chat templates that are switches: true or false."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

THINKING_SWITCHES = ("enable_thinking", "thinking")  # in chat templates of Qwen and GLM, of DeepSeek and Granite
MUST_BE_SWITCH = "must be true or false, not a text or a number"


def wrong_switch(variables: Mapping[str, Any]) -> str | None:
    """Name of the first variable of which MUST_BE_SWITCH is true; None if there is none.

    For a template every text that is not empty is true, also "false".
    """
    for name, given in variables.items():
        is_thinking = name in THINKING_SWITCHES and not isinstance(given, bool | None)
        if is_thinking or (isinstance(given, str) and given.lower() in ("true", "false")):
            return name
    return None
