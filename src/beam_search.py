"""Beam search: instead of sampling, finds the answers with the highest log-probability.

The method and the results of transformers' `generate(num_beams=...)`. The engine cannot branch a sequence, so each
step asks it for one token after each live beam: requests whose prompts are the beams. They run in one batch, and the
prefix cache has all but the last block of each. BeamSearch makes the requests and takes their results;
`LLM` and server/beam_generation.py send them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .engine.api import EngineOutput, EngineRequest, FinishReason, InvalidRequest, SamplingParams, TokenLogprobs

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """The search itself; what is asked of each token (temperature, bias, end) is in the request's SamplingParams.

    early_stopping: when `width` answers are found. True: stop. False: stop when the best live beam would rank below
    them if it ended now. "never": as False, but with the best length that it can reach.
    """

    width: int
    length_penalty: float = 1.0  # the score of an answer is its log-probability / length ** length_penalty
    early_stopping: EarlyStopping = False


def check_searchable(sampling: SamplingParams) -> None:
    """Raises InvalidRequest for the first parameter that a search cannot follow."""
    not_sampled, one_ranking = "no tokens are sampled", "beams are ranked by the model's log-probabilities"
    for name, is_off, reason in (
        ("top_p", sampling.top_p == 1, not_sampled),
        ("top_k", sampling.top_k <= 0, not_sampled),
        ("min_p", sampling.min_p == 0, not_sampled),
        ("presence_penalty", sampling.presence_penalty == 0, one_ranking),
        ("frequency_penalty", sampling.frequency_penalty == 0, one_ranking),
        ("repetition_penalty", sampling.repetition_penalty == 1, one_ranking),
        ("logits_processors", not sampling.logits_processors, one_ranking),
        ("stop", not sampling.stop, "use `stop_token_ids`"),
        ("bad_words", not (sampling.bad_words or sampling.bad_word_ids), "use `logit_bias`"),
    ):
        if not is_off:
            message = f"`{name}` is not supported in a beam search: {reason}"
            raise InvalidRequest(message, param=name, code="unsupported_parameter")


@dataclass(frozen=True, slots=True)
class _Beam:
    token_ids: list[int] = field(default_factory=list)  # after the prompt
    logprob: float = 0.0  # of all of them
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # if the request asks for them


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One token after one beam."""

    beam: _Beam
    logprob: float  # of the beam and the token
    entry: TokenLogprobs  # of all tokens at this position
    index: int  # of the token in `entry`

    @property
    def token_id(self) -> int:
        return self.entry.token_ids[self.index]

    def extended(self, num_top: int | None) -> _Beam:
        """num_top: as SamplingParams.logprobs."""
        beam, entry, logprobs = self.beam, self.entry, self.beam.logprobs
        if num_top is not None:
            token_ids = [self.token_id, *entry.token_ids[1 : 1 + num_top]]
            values = [entry.logprobs[self.index], *entry.logprobs[1 : 1 + num_top]]
            logprobs = [*logprobs, TokenLogprobs(token_ids, values, self.index)]
        return _Beam([*beam.token_ids, self.token_id], self.logprob, logprobs)


@dataclass(frozen=True, slots=True)
class _Answer:
    score: float
    beam: _Beam
    reason: FinishReason
    stop_token_id: int | None  # that the request named


class BeamSearch:
    """The search of one prompt: give the results of `requests` to `advance` until it `is_finished`."""

    def __init__(
        self, request: EngineRequest, params: BeamSearchParams, eos_token_ids: Sequence[int], context: int
    ) -> None:
        """
        request: the prompt and what is asked of each answer, which passes `check_searchable`.
        context: maximum length of prompt and answer together.
        """
        self._request = request
        self._sampling = request.inputs.sampling
        self._params = params
        sampling = self._sampling
        self._named_ids = frozenset(sampling.stop_token_ids)
        self._ending_ids = self._named_ids if sampling.ignore_eos else self._named_ids.union(eos_token_ids)
        room = context - len(request.inputs.prompt_token_ids)
        self._max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        self._live = [_Beam()]
        self._answers: list[_Answer] = []  # best first, at most `width`
        self._num_tokens = 0  # of each live beam
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._num_cached_tokens = self._num_newly_cached_tokens = 0
        self.is_finished = False

    @property
    def num_live(self) -> int:
        """Number of `requests`."""
        return len(self._live)

    def requests(self) -> Iterator[EngineRequest]:
        """One request for each live beam."""
        inputs, sampling = self._request.inputs, self._sampling
        # Of one beam, as many tokens as can be live afterwards, besides those that end it.
        num_candidates = self._params.width + len(self._ending_ids)
        step = SamplingParams(
            max_tokens=1,
            ignore_eos=True,
            temperature=0.0 if sampling.temperature == 1.0 else sampling.temperature,  # greedy rows are not scaled
            logit_bias=sampling.logit_bias,
            allowed_token_ids=sampling.allowed_token_ids,
            logprobs=max(num_candidates, sampling.logprobs or 0),
            processed_logprobs=True,
            prompt_logprobs=None if self._num_tokens else sampling.prompt_logprobs,
            detokenize=False,
        )
        for index, beam in enumerate(self._live):
            yield replace(
                self._request,
                request_id=f"{self._request.request_id}-{self._num_tokens}-{index}",
                inputs=replace(inputs, prompt_token_ids=inputs.prompt_token_ids + beam.token_ids, task=step),
            )

    def advance(self, outputs: Sequence[EngineOutput]) -> None:
        """Continue with the results of `requests`, in their order."""
        if not self._num_tokens:
            self._prompt_logprobs = outputs[0].prompt_logprobs
            self._num_cached_tokens = outputs[0].num_cached_tokens
            self._num_newly_cached_tokens = outputs[0].num_newly_cached_tokens
        is_last = self._num_tokens + 1 == self._max_tokens
        width, num_top = self._params.width, self._sampling.logprobs
        live: list[_Beam] = []
        for rank, candidate in enumerate(self._candidates(outputs)):
            if rank >= width and (is_last or len(live) == width):
                break
            if not is_last and candidate.token_id not in self._ending_ids:
                if len(live) < width:
                    live.append(candidate.extended(num_top))
            elif rank < width:  # else better beams are live: it would not have been searched further
                self._answers.append(self._answer(candidate, candidate.extended(num_top)))
        self._live = live
        self._num_tokens += 1
        self._answers.sort(key=lambda answer: -answer.score)  # stable: of equal ones the first that was found
        del self._answers[width:]
        self.is_finished = not self._live or (len(self._answers) == width and self._cannot_improve())

    def best(self, n: int) -> list[EngineOutput]:
        """Up to `n` answers, best first; fewer if `allowed_token_ids` leaves no others. Each is complete."""
        return [
            EngineOutput(
                request_id=self._request.request_id,
                token_ids=answer.beam.token_ids,
                logprobs=None if self._sampling.logprobs is None else answer.beam.logprobs,
                prompt_logprobs=self._prompt_logprobs,
                finish_reason=answer.reason,
                stop_reason=answer.stop_token_id,
                num_cached_tokens=self._num_cached_tokens,
                num_newly_cached_tokens=self._num_newly_cached_tokens,
            )
            for answer in self._answers[:n]
        ]

    def _candidates(self, outputs: Sequence[EngineOutput]) -> Iterator[_Candidate]:
        """Best first. Of equal ones the better beam's, then as the engine ranks them. As many as are taken are made."""
        extensions = map(self._extensions, self._live, outputs)
        return heapq.merge(*extensions, key=lambda candidate: -candidate.logprob)

    def _extensions(self, beam: _Beam, output: EngineOutput) -> Iterator[_Candidate]:
        """Extensions of one beam, best first."""
        assert output.logprobs is not None, output.request_id
        (entry,) = output.logprobs
        is_too_short = self._num_tokens < self._sampling.min_tokens
        for index in range(1, len(entry.token_ids)):  # 0 is the sampled token, which is among the others too
            if entry.logprobs[index] == -math.inf or (is_too_short and entry.token_ids[index] in self._ending_ids):
                continue
            yield _Candidate(beam, beam.logprob + entry.logprobs[index], entry, index)

    def _answer(self, candidate: _Candidate, beam: _Beam) -> _Answer:
        score = self._score(beam.logprob, len(beam.token_ids))
        if candidate.token_id not in self._ending_ids:
            return _Answer(score, beam, FinishReason.LENGTH, None)
        is_named = candidate.token_id in self._named_ids
        return _Answer(score, beam, FinishReason.STOP, candidate.token_id if is_named else None)

    def _score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self._params.length_penalty)

    def _cannot_improve(self) -> bool:
        """Whether no live beam is expected to become one of the best `width` answers, which are complete."""
        stopping = self._params.early_stopping
        if stopping is True:
            return True
        is_longer_better = stopping == "never" and self._params.length_penalty > 0
        best_length = self._max_tokens if is_longer_better else self._num_tokens
        return self._score(self._live[0].logprob, best_length) <= self._answers[-1].score
