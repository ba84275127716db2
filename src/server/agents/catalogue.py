"""The model as Codex's catalogue describes it: `models` of GET /v1/models, and the file that Codex reads.

Codex refuses a catalogue with a value that it does not know, such as another `apply_patch_tool_type`.
"""

from __future__ import annotations

from typing import Any

from ..capabilities import Capabilities

_LEVELS = {
    "none": "Answers without reasoning",
    "low": "Fast answers with little reasoning",
    "medium": "Reasons before it answers",
    "high": "Reasons longest, for hard problems",
}
_DEFAULT_LEVEL = "medium"
_MAX_TOOL_OUTPUT = 10_000  # tokens of one tool's output that Codex keeps
# Codex replaces its own instructions by these, so they cannot be empty.
_INSTRUCTIONS = """\
You are Codex, a coding agent that works in a terminal on the user's computer. Work on the task until it is solved.

- Read the files that matter before you change them, and follow the conventions that you find there, AGENTS.md first.
- Change files with `apply_patch`. Make the smallest change that solves the cause of the problem.
- Run the tests or programs that show whether a change works. Report what you ran and what came out; never guess.
- Do not undo changes that you did not make, and run no command that destroys data unless the user asks for it.
- Answer briefly: what you did, in which files, and what is left."""


def codex_model(name: str, context: int, capabilities: Capabilities) -> dict[str, Any]:
    """context: tokens of prompt and answer together."""
    levels = capabilities.reasoning_levels
    return {
        "slug": name,
        "display_name": name,
        "description": None,
        "default_reasoning_level": _DEFAULT_LEVEL if _DEFAULT_LEVEL in levels else None,
        "supported_reasoning_levels": [{"effort": level, "description": _LEVELS[level]} for level in levels],
        "supports_reasoning_summaries": bool(levels),
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "upgrade": None,
        "base_instructions": _INSTRUCTIONS,
        "model_messages": None,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": min(_MAX_TOOL_OUTPUT, context // 4)},
        "supports_parallel_tool_calls": capabilities.tools,
        "context_window": context,
        "max_context_window": context,
        "auto_compact_token_limit": None,
        "effective_context_window_percent": 95,
        "experimental_supported_tools": [],
        "input_modalities": ["text", *["image"] * capabilities.vision],
    }
