"""What one HTTP request adds to the metrics: token counts and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .metrics import Metrics
from .text.generated_sequence import Delta, GeneratedSequence


class RequestMetrics:
    def __init__(self, metrics: Metrics, clock: Callable[[], float], arrived_at: float | None) -> None:
        """arrived_at: by `clock`; None is now."""
        self._metrics = metrics
        self._clock = clock
        self._arrived_at = clock() if arrived_at is None else arrived_at
        self._last_token_at: dict[int, float] = {}  # by the sequence's index
        self.first_token_s: float | None = None

    def add(self, sequence: GeneratedSequence, delta: Delta, *, counts_prompt: bool) -> None:
        """Count a new delta. counts_prompt: for one sequence of each prompt, with its first token."""
        if not delta.token_ids:
            return
        now = self._clock()
        last_at = self._last_token_at.get(sequence.index)
        if last_at is None:
            if self.first_token_s is None:
                self.first_token_s = now - self._arrived_at
                self._metrics.time_to_first_token.observe(self.first_token_s)
            if counts_prompt:
                num_tokens = len(sequence.request.prompt_token_ids)
                self._metrics.prompt_tokens.inc(num_tokens)
                self._metrics.cached_tokens.inc(sequence.num_cached)
                self._metrics.request_prompt_tokens.observe(num_tokens)
        else:  # the time since the last delta, divided among the tokens of this one
            self._metrics.inter_token_latency.observe((now - last_at) / len(delta.token_ids))
        self._last_token_at[sequence.index] = now
        self._metrics.generated(len(delta.token_ids))

    def end(self, sequences: Sequence[GeneratedSequence], outcome: str) -> None:
        """outcome: the finish reason to count for sequences that have none."""
        for sequence in sequences:
            self._metrics.finished(sequence.finish_reason or outcome)
            self._metrics.request_generation_tokens.observe(sequence.num_generated)
        if all(sequence.finish_reason for sequence in sequences):
            self._metrics.request_latency.observe(self._clock() - self._arrived_at)
