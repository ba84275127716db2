"""GivenTokens: one choice whose tokens were generated elsewhere. It becomes text and events as one generated here does.

Where the engine would end it is found again from its finish reason and its last token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from ...engine.api import EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams, TokenLogprobs
from ...text.generated_sequence import Delta, GeneratedSequence
from ...text.tokenizer import Tokenizer
from .reading import AnswerReader

_STOP = FinishReason.STOP.value


class GivenTokens:
    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        eos_token_ids: Collection[int],
        *,
        prompt: Sequence[int] = (),
        kept_ids: Set[int] = frozenset(),
        reader: AnswerReader | None = None,
        hides_tokens: bool = False,
        stops_in_text: bool = False,
    ) -> None:
        """
        prompt: its last tokens. kept_ids: special tokens that are part of the text. reader: of the answer.
        stops_in_text: stop strings end the text before it is read: the reader has none.
        hides_tokens: the tokens of reasoning, and all log-probabilities, which would show them.
        """
        request = EngineRequest(request_id="", inputs=RequestInputs(list(prompt), sampling))
        self._sequence = GeneratedSequence(0, request, tokenizer, kept_ids, reader, stops_in_text=stops_in_text)
        self.is_cut = False  # by a stop string
        self._sampling = sampling
        self._end_ids = frozenset(() if sampling.ignore_eos else eos_token_ids)
        self._hides_tokens = hides_tokens

    def repeat(self, token_ids: list[int]) -> None:
        """Take tokens of which everything has been written."""
        if token_ids:
            self._sequence.take(EngineOutput(request_id="", token_ids=token_ids))

    def take(
        self,
        token_ids: list[int],
        *,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> Delta:
        """finish_reason: with the last tokens. Tokens and log-probabilities are not cut where a stop string ends the
        text."""
        if stop_reason is None and finish_reason == _STOP and token_ids and self._is_named(token_ids[-1]):
            stop_reason = token_ids[-1]
        ending = self._ending(token_ids, finish_reason, stop_reason)
        delta = self._sequence.take(EngineOutput(request_id="", token_ids=token_ids, finish_reason=ending))
        self.is_cut = isinstance(delta.stop_reason, str)
        if not self.is_cut:
            delta.finish_reason, delta.stop_reason = finish_reason, stop_reason
        delta.token_ids, delta.logprobs = token_ids, logprobs
        if (answer := delta.answer) is not None:
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
            if not self._hides_tokens:
                answer.token_ids, answer.logprobs = token_ids, logprobs
        return delta

    def needed(self, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """See Detokenizer.needed."""
        return self._sequence.needed(token_ids)

    def _is_named(self, token_id: int) -> bool:
        return token_id in self._sampling.stop_token_ids

    def _ending(
        self, token_ids: list[int], finish_reason: str | None, stop_reason: int | str | None
    ) -> FinishReason | None:
        """STOP if the last token is the end, and not text."""
        if finish_reason is None:
            return None
        if finish_reason != _STOP:
            return FinishReason.LENGTH
        last = token_ids[-1] if token_ids else None
        is_end = last == stop_reason if stop_reason is not None else last in self._end_ids
        return FinishReason.STOP if is_end and last is not None else FinishReason.COMPLETE
