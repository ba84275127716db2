"""A runner whose next token is a keyed hash of the prefix: any correct batching, chunking and preemption gives it.

As a module (`python -m tests.fake_runner`) it is an engine process with the real scheduler, loop and sockets around it;
its configuration is a JSON object with FakeSettings' fields.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from stoker.config import ModelFilesError
from stoker.engine.api import EngineInfo, PoolingParams, TokenLogprobs, Vectors
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.settings import PoolingSettings
from stoker.engine.host.neighbours import Neighbours
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.loop.executor import Executor
from stoker.engine.loop.step_queue import InlineStepQueue, StepQueue
from stoker.engine.loop.thread_step_queue import ThreadStepQueue
from stoker.engine.process import main
from stoker.engine.step import StepPlan, StepResult

VOCAB_SIZE = 1000
EOS = 0
NOT_FINITE = 666  # the result of a prompt that ends with this token
TASKS = PoolingSettings({"embed": False, "token_embed": True})


def next_token(prefix: Sequence[int]) -> int:
    digest = blake2b(np.asarray(prefix, "<i4").tobytes(), digest_size=8).digest()
    return 1 + int.from_bytes(digest) % (VOCAB_SIZE - 1)  # never EOS: lengths are the test's to choose


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that a request with this prompt must get."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def pooled(prompt: Sequence[int], task: str) -> Vectors:
    """What a request with this prompt and task must get."""
    rows = [next_token(prompt[:end]) for end in range(1, len(prompt) + 1)] if task == "token_embed" else [sum(prompt)]
    return Vectors(1, np.array(rows, "<f4").tobytes())


def num_valid_drafts(length: int, num_drafts: int) -> int:
    """How many drafts after this number of tokens are valid: all numbers occur, and each in many blocks."""
    return length * 7 // 3 % (num_drafts + 1)


@dataclass
class FakeSettings:
    step_s: float = 0.0  # seconds that each step sleeps
    fail_steps: list[int] = field(default_factory=list)  # numbers of the steps that run out of memory
    fail_all: bool = False
    hang_step: int = -1  # this step sleeps for hang_s
    hang_s: float = 0.0
    free_error: str = ""  # of sleep
    take_error: str = ""
    start_error: str = ""  # the model's files are refused with these words
    block_size: int = 4
    num_blocks: int = 400
    max_num_seqs: int = 64
    max_queued_requests: int = 1024
    max_model_len: int = 512
    max_num_batched_tokens: int = 128
    async_scheduling: bool = False
    records_block_events: bool = False


class FakeRunner:
    def __init__(self, settings: FakeSettings) -> None:
        self._settings = settings
        self._slots: dict[int, list[int]] = {}
        self._wants_logprobs: dict[int, bool] = {}
        self._tasks: dict[int, tuple[str, ...]] = {}  # of slots whose prompts are pooled

    def execute(self, plan: StepPlan) -> StepResult:
        settings = self._settings
        for slot in plan.released_slots:
            self._slots.pop(slot, None)
        for admission in plan.admissions:
            self._slots[admission.slot] = list(admission.token_ids)
            self._wants_logprobs[admission.slot] = admission.inputs.sampling.logprobs is not None
            task = admission.inputs.task
            self._tasks[admission.slot] = task.tasks if isinstance(task, PoolingParams) else ()
        time.sleep(settings.hang_s if plan.step == settings.hang_step else settings.step_s)
        if settings.fail_all or plan.step in settings.fail_steps:
            raise MemoryError("secret address 0xdeadbeef")
        tokens: list[int] = []
        logprobs, vectors, errors = {}, {}, {}
        num_valid = np.minimum(plan.num_outputs, 1)
        for row in np.flatnonzero(plan.num_outputs).tolist():
            slot, num_drafts = int(plan.slots[row]), int(plan.num_outputs[row]) - 1
            known = self._slots[slot]
            assert len(known) == plan.num_computed[row] + plan.num_tokens[row] - num_drafts
            if tasks := self._tasks[slot]:
                tokens.append(EOS)
                vectors[row] = {task: pooled(known, task) for task in tasks}
                if known[-1] == NOT_FINITE:
                    errors[row] = "not finite"
                continue
            num_valid[row] += num_valid_drafts(len(known), num_drafts)
            for _ in range(num_valid[row]):
                known.append(next_token(known))
                if self._wants_logprobs[slot]:
                    logprobs[len(tokens)] = TokenLogprobs([known[-1]], [-0.5], 1)
                tokens.append(known[-1])
        has_drafts = (plan.num_outputs > 1).any()
        return StepResult(
            np.array(tokens, np.int32),
            logprobs,
            errors=errors,
            vectors=vectors,
            num_valid=num_valid if has_drafts else None,
        )


class FakeExecutor(Executor):
    """Steps of FakeRunner, with memory that can be freed and work that can be postponed."""

    can_sleep = True

    def __init__(self, steps: StepQueue[Any], settings: FakeSettings, idle: Callable[[], bool] | None) -> None:
        super().__init__(steps)
        self._settings, self._idle = settings, idle

    def free_memory(self) -> None:
        if self._settings.free_error:
            raise MemoryError(self._settings.free_error)

    def take_memory(self) -> None:
        if self._settings.take_error:
            raise MemoryError(self._settings.take_error)

    def idle(self) -> bool:
        return False if self._idle is None else self._idle()


def build_core(
    config: str,
    phase: Callable[[str], None],
    idle: Callable[[], bool] | None = None,
    neighbours: Neighbours | None = None,  # it has no experts to share
) -> EngineCore:
    settings = FakeSettings(**json.loads(config))
    phase("weights")
    if settings.start_error:
        raise ModelFilesError(settings.start_error)
    phase("warm-up")
    limits = SchedulerSettings(
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        max_queued_requests=settings.max_queued_requests,
        eos_token_ids=(EOS,),
        records_block_events=settings.records_block_events,
        pooling=TASKS,
    )
    info = EngineInfo(
        model="fake",
        max_model_len=settings.max_model_len,
        vocab_size=VOCAB_SIZE,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        max_cached_len=limits.max_cached_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        eos_token_ids=(EOS,),
        weights_bytes=0,
        kv_cache_bytes=0,
        dtype="float32",
        device="cpu",
        kernels={},
        phases={"weights": 0.0, "warm-up": 0.0},
    )
    runner = FakeRunner(settings)
    steps: StepQueue[Any] = ThreadStepQueue(runner) if settings.async_scheduling else InlineStepQueue(runner)
    return EngineCore(Scheduler(limits), FakeExecutor(steps, settings, idle), info)


if __name__ == "__main__":
    sys.exit(main(build=build_core))
