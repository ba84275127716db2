"""The tokens that the rows of a batch used, from their answers, in whose dialect they are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Usage:
    num_input: int = 0
    num_cached: int = 0
    num_output: int = 0
    num_reasoning: int = 0
    model: str | None = None  # of the first answer

    def add(self, answer: Mapping[str, Any]) -> None:
        """answer: the body of a response."""
        usage = answer.get("usage")
        if not isinstance(usage, Mapping):
            return
        if self.model is None:
            self.model = answer.get("model")
        if "prompt_tokens" in usage:  # chat and text completions
            self._count(usage, "prompt_tokens", "completion_tokens")
        elif "input_tokens_details" in usage:  # responses
            self._count(usage, "input_tokens", "output_tokens")
        else:  # messages, whose input is counted without what was cached
            self._count(usage, "input_tokens", "output_tokens")
            cached = usage.get("cache_read_input_tokens") or 0
            self.num_input += cached + (usage.get("cache_creation_input_tokens") or 0)
            self.num_cached += cached

    def _count(self, usage: Mapping[str, Any], input_: str, output: str) -> None:
        self.num_input += usage.get(input_) or 0
        self.num_output += usage.get(output) or 0
        self.num_cached += (usage.get(f"{input_}_details") or {}).get("cached_tokens") or 0
        self.num_reasoning += (usage.get(f"{output}_details") or {}).get("reasoning_tokens") or 0

    @property
    def shown(self) -> dict[str, Any]:
        return {
            "input_tokens": self.num_input,
            "input_tokens_details": {"cached_tokens": self.num_cached},
            "output_tokens": self.num_output,
            "output_tokens_details": {"reasoning_tokens": self.num_reasoning},
            "total_tokens": self.num_input + self.num_output,
        }
