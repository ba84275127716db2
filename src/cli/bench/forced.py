"""ForcedEngine: decodes given answers, with drafts and without, in this process.

The model computes every step and the sampler every token, which the answer then replaces. So what is measured depends
on the deployment and on the text, not on what the weights say: they may be random.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...config import Resolved
from ...engine.api import DraftCounts, EngineRequest, RequestInputs, SamplingParams
from ...engine.core import Scheduler
from ...engine.core.settings import DraftSettings
from ...engine.executor.scheduler import draft_settings, scheduler_settings
from ...engine.executor.step_times import draft_times, step_times
from ...engine.runner.load_runner import host_parts, load_runner
from ...engine.runner.sample_head import SampleHead
from ...engine.sampling.sampler import IsShown, Sampled, Sampler
from ...engine.spec_decode.step_times import DraftTimes


class _Forced(Sampler):
    """Samples as always, and puts the tokens of `answers` in the place of what was sampled."""

    answers: Sequence[Sequence[int]] = ((),)  # by the seed of the request

    def sample(
        self, logits: torch.Tensor, slots: Any, lengths: Any, token_table: Any, is_shown: IsShown | None = None
    ) -> Sampled:
        found = super().sample(logits, slots, lengths, token_table, is_shown)
        places = (lengths - self.table.num_prompt_tokens[slots]).tolist()
        for row, (seed, place) in enumerate(zip(self.table.seed[slots].tolist(), places, strict=True)):
            if place < len(self.answers[seed]):
                found.token_ids[row] = self.answers[seed][place]
        return found


@dataclass(frozen=True, slots=True)
class Decoded:
    seconds: float  # for a token of each answer, once all prompts are computed
    drafts: DraftCounts | None  # None: decoded without


class ForcedEngine:
    def __init__(self, resolved: Resolved) -> None:
        """resolved: of one process on a CPU, with a method of drafting. Measures how long steps take."""
        self._resolved = resolved
        self._samplers: list[_Forced] = []

        def head(made: Any) -> SampleHead:
            self._samplers.append(_Forced(made.slots.sampling, made.loaded.kernels))
            return SampleHead(made, self._samplers[0])

        self.runner = load_runner(resolved, host_parts(head))
        self.runner.warm_up()
        self.step_seconds = step_times(self.runner, self.runner.execute)  # by the number of tokens
        self.draft_seconds = draft_times(self.runner, self.runner.execute)  # of a network, by the number of drafts

    def drafting(self, max_drafted: int) -> DraftSettings:
        """Drafting as in a server that has just started. max_drafted: tokens of a sequence in a step."""
        times = DraftTimes()
        times.steps.measure(self.step_seconds)
        if self.draft_seconds:
            times.drafts.measure(self.draft_seconds)
        own = self._resolved.speculative.model_copy(update={"num_speculative_tokens": max_drafted})
        found = draft_settings(self._resolved.model_copy(update={"speculative": own}), times)
        assert found is not None
        return found

    def decode(
        self,
        prompt: Sequence[int],
        answers: Sequence[Sequence[int]],
        drafting: DraftSettings | None,
        temperature: float = 0.0,
    ) -> Decoded:
        """All answers at the same time, each after the same prompt.

        temperature: of the requests. A network drafts its most probable tokens at 0; above, it samples with the noise
            and the sampler of the request, whose tokens are those of the answer.
        """
        self._samplers[0].answers = answers
        scheduler = Scheduler(scheduler_settings(self._resolved, drafting=drafting))
        for seed, answer in enumerate(answers):
            sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=len(answer), ignore_eos=True)
            scheduler.add(EngineRequest(request_id=str(seed), inputs=RequestInputs(list(prompt), sampling)))
        began, num_before, num_tokens = 0.0, 0, 0
        begun: set[str] = set()
        while scheduler.has_work:
            plan = scheduler.schedule()
            assert plan is not None, "work is left and none of it was scheduled"
            started = time.perf_counter()
            result = self.runner.execute(plan)
            outputs = list(scheduler.finish_step(plan, result, time.perf_counter() - started))
            num_tokens += sum(len(output.token_ids) for output in outputs)
            begun |= {output.request_id for output in outputs}
            if not began and len(begun) == len(answers):
                began, num_before = time.perf_counter(), num_tokens
        seconds = (time.perf_counter() - began) / max(1.0, (num_tokens - num_before) / len(answers))
        return Decoded(seconds, scheduler.stats().drafts)
