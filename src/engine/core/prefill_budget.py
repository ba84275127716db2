"""PrefillBudget: the tokens that one step has for prompts, and how prompts share them.

A prompt that wants more than half of the step's budget gets at most half of what is left while others come after it, so
a long prompt cannot hold up a short one. What the others leave over is given back to it afterwards (step_planner.py).

Also counts the prompts that the step leaves computed in part, which are limited. Does not know blocks or slots.
"""

from __future__ import annotations

from .request import Request
from .settings import SchedulerSettings


class PrefillBudget:
    """`left`: tokens that may still be planned."""

    def __init__(self, settings: SchedulerSettings, num_decodes: int, num_forced: int = 0) -> None:
        """num_forced: answers that continue with known tokens. Each is computed like a prompt, before the prompts."""
        self._settings = settings
        self.left = settings.prefill_budget(num_decodes + num_forced) + num_forced
        self._room = settings.max_num_batched_tokens - num_decodes  # of the step, for prompts that are computed whole
        self._half = self.left // 2
        self._num_partial = 0  # prompts that are computed in part after the step
        self._num_long_partial = 0

    def chunk_end(self, start: int, stop: int, *, has_others: bool, is_whole: bool = False) -> int:
        """The end of the chunk of a prompt with `start` computed tokens, at most `stop`; `start` if it gets none.

        has_others: more prompts come after this one. is_whole: it is computed in one step, which neither shares nor
        sizes limit. Called only while `left` is positive.
        """
        wanted, left = stop - start, self.left
        if is_whole:
            return stop if wanted <= self._room else start
        if not self._settings.enable_chunked_prefill:
            return stop if wanted <= left else start
        if wanted > self._half and has_others:
            left = max(left // 2, 1)
        if wanted <= left:
            return stop
        # A chunk that ends with a block lets the sequence go on from blocks that others publish meanwhile.
        size = self._settings.block_size
        end = (start + left) // size * size
        return end if end > start else start + left

    def take(self, request: Request, num_tokens: int) -> None:
        """Plan tokens of a sequence. Prompts share what the answers that came before them have left."""
        self.left = max(0, self.left - num_tokens)
        self._room -= num_tokens
        if request.has_forced:
            self._half = self.left // 2

    def is_long(self, request: Request) -> bool:
        return len(request.token_ids) > self._settings.long_prefill_token_threshold

    def count_partial(self, request: Request) -> None:
        """Count a prompt that the step leaves computed in part."""
        if request.has_forced:
            return
        self._num_partial += 1
        self._num_long_partial += self.is_long(request)

    @property
    def allows_partial(self) -> bool:
        """Whether one more short prompt may be left computed in part."""
        return self._num_partial < self._settings.max_num_partial_prefills

    @property
    def allows_long_partial(self) -> bool:
        """Whether one more long prompt may be left computed in part."""
        return self.allows_partial and self._num_long_partial < self._settings.max_long_partial_prefills
