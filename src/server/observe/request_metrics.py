"""What one HTTP request adds to the metrics: token counts and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...text.generated_sequence import Delta, GeneratedSequence
from .metrics import Metrics, TokenKind
from .tracing import Phases

Charge = Callable[[int, TokenKind], None]


def no_charge(num_tokens: int, kind: TokenKind) -> None:
    """Charge nothing, for requests without a key."""


class RequestMetrics:
    def __init__(
        self, metrics: Metrics, clock: Callable[[], float], arrived_at: float | None, charge: Charge = no_charge
    ) -> None:
        """Created when the request is about to be sent to the engine.

        arrived_at: by `clock`; None is now.
        charge: called with each number of tokens that the request uses.
        """
        self._metrics, self._times, self._sizes = metrics, metrics.times, metrics.sizes
        self._charge = charge
        self._clock = clock
        self._submitted_at = clock()
        self._arrived_at = self._submitted_at if arrived_at is None else arrived_at
        self._first_token_at: dict[int, float] = {}  # by the sequence's index
        self._last_token_at: dict[int, float] = {}
        self._has_prompt: set[int] = set()  # sequences whose prompt was counted
        self.first_token_s: float | None = None

    def add(self, sequence: GeneratedSequence, delta: Delta, *, counts_prompt: bool) -> None:
        """Count a new delta. counts_prompt: for one sequence of each prompt, with its first token or, without any, its
        end."""
        if counts_prompt and sequence.index not in self._has_prompt and (delta.token_ids or sequence.finish_reason):
            self._has_prompt.add(sequence.index)
            num_tokens = len(sequence.request.inputs.prompt_token_ids)
            self._charge(num_tokens, "prompt")
            self._metrics.prompt_tokens.inc(num_tokens)
            self._metrics.cached_tokens.inc(sequence.num_cached)
            self._sizes.prompt_tokens.observe(num_tokens)
        if not delta.token_ids:
            return
        now = self._clock()
        last_at = self._last_token_at.get(sequence.index)
        if last_at is None:
            self._first_token_at[sequence.index] = now
            if self.first_token_s is None:
                self.first_token_s = now - self._arrived_at
                self._times.time_to_first_token.observe(self.first_token_s)
        else:  # the time since the last delta, divided among the tokens of this one
            self._times.inter_token_latency.observe((now - last_at) / len(delta.token_ids))
        self._last_token_at[sequence.index] = now
        self._charge(len(delta.token_ids), "generated")
        self._metrics.generated(len(delta.token_ids))

    def rejected(self) -> None:
        """The queue had no room for it."""
        self._metrics.admission_rejections.inc()

    def phases(self, sequences: Sequence[GeneratedSequence]) -> Phases | None:
        """Times of the first sequence; None if it has no token."""
        first = sequences[0]
        if first.index not in self._first_token_at or first.queued_s is None:
            return None
        return Phases(
            self._submitted_at, first.queued_s, self._first_token_at[first.index], self._last_token_at[first.index]
        )

    def end(self, sequences: Sequence[GeneratedSequence], per_prompt: int, outcome: str) -> None:
        """per_prompt: sequences of each prompt. outcome: the finish reason to count for sequences that have none."""
        for first in range(0, len(sequences), per_prompt):
            self._sizes.params_n.observe(per_prompt)
            longest = max(sequence.num_generated for sequence in sequences[first : first + per_prompt])
            self._sizes.max_generation_tokens.observe(longest)
            max_tokens = sequences[first].request.inputs.sampling.max_tokens
            if max_tokens is not None:
                self._sizes.params_max_tokens.observe(max_tokens)
        for sequence in sequences:
            self._metrics.finished(sequence.finish_reason or outcome)
            self._sizes.generation_tokens.observe(sequence.num_generated)
            if sequence.finish_reason:
                self._observe_times(sequence)
        if all(sequence.finish_reason for sequence in sequences):
            self._times.latency.observe(self._clock() - self._arrived_at)

    def _observe_times(self, sequence: GeneratedSequence) -> None:
        """The time of a complete sequence in its three parts: in the queue, to the first token, to the last token."""
        first_at = self._first_token_at.get(sequence.index)
        if first_at is None or sequence.queued_s is None:
            return
        prefill_s = max(0.0, first_at - self._submitted_at - sequence.queued_s)
        decode_s = self._last_token_at[sequence.index] - first_at
        self._times.queue_time.observe(sequence.queued_s)
        self._times.prefill_time.observe(prefill_s)
        self._times.decode_time.observe(decode_s)
        self._times.inference_time.observe(prefill_s + decode_s)
        if sequence.num_generated > 1:
            self._times.time_per_output_token.observe(decode_s / (sequence.num_generated - 1))
