from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fake_runner import FakeRunner, FakeSettings, build_core, continuation

from stoker.engine.api import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    ProcessorCall,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.loop.device_step_queue import DeviceStepQueue
from stoker.engine.loop.engine_core import EngineCore, RunnerUnusable
from stoker.engine.loop.executor import Executor
from stoker.engine.loop.step_queue import InlineStepQueue, StepQueue
from stoker.engine.loop.thread_step_queue import ThreadStepQueue
from stoker.engine.plugins import PluginError
from stoker.engine.sampling.named_processors import make_named
from stoker.engine.step import StepPlan, StepResult
from stoker.engine.structured.grammars import Grammars

LIMITS = SchedulerSettings(num_blocks=50, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=99)


def core(**settings: object) -> EngineCore:
    return build_core(json.dumps(settings), lambda _: None)


def request(name: str, prompt: list[int], max_tokens: int = 6, **sampling: object) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return EngineRequest(request_id=name, inputs=RequestInputs(prompt, params))


def run(engine: EngineCore) -> dict[str, list[EngineOutput]]:
    outputs: dict[str, list[EngineOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_a_step_that_fails_ends_its_requests_and_no_others():
    engine = core(fail_steps=[1])
    engine.add(request("early", [1, 2]))
    first = engine.step()
    failed = engine.step()
    engine.add(request("late", [1, 2]))  # its prefix is computed again: the content of the cache is unknown
    late = run(engine)["late"]
    assert first.records[0].token_ids == continuation([1, 2], 1)
    assert [(output.request_id, output.finish_reason) for output in failed] == [("early", FinishReason.ERROR)]
    assert failed.records[0].error == "the engine failed in a step of this request: out of memory"
    assert [token for output in late for token in output.token_ids] == continuation([1, 2], 6)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_failures_with_successes_between_them_do_not_end_the_engine():
    engine = core(fail_steps=[0, 2, 4, 6])
    for index in range(4):
        engine.add(request(str(index), [index], max_tokens=9))
        engine.step()
        engine.abort(str(index))
        engine.add(request(f"good {index}", [index], max_tokens=1))
        engine.step()
    assert not engine.has_work


def test_three_failures_in_a_row_end_the_engine():
    engine = core(fail_all=True)
    for index in range(2):
        engine.add(request(str(index), [1]))
        assert engine.step().records[0].finish_reason is FinishReason.ERROR
    engine.add(request("third", [1]))
    with pytest.raises(RunnerUnusable, match="out of memory"):
        engine.step()


@pytest.mark.parametrize(
    ("prompt", "sampling", "param"),
    [
        ([1000], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([], {}, "prompt"),
        ([1], {"logit_bias": {1000: 1.0}}, "logit_bias"),
        ([1], {"allowed_token_ids": (1000,)}, "allowed_token_ids"),
        ([1], {"bad_word_ids": ((1, 2), (1, 1000))}, "bad_words"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(prompt: list[int], sampling: dict[str, object], param: str):
    engine = core()
    with pytest.raises(InvalidRequest) as refused:
        engine.add(request("r", prompt, **sampling))
    assert refused.value.param == param
    assert not engine.has_work


# ---- steps planned ahead


@pytest.mark.effect("scheduler.async_scheduling")
def test_the_next_step_is_planned_while_one_computes():
    is_planned = threading.Event()

    class Watched(Scheduler):
        def schedule(self) -> StepPlan | None:
            plan = super().schedule()
            if plan is not None and plan.step == 1:
                is_planned.set()
            return plan

    class Patient(FakeRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            assert is_planned.wait(10), "the second step is planned after the first one is done"
            return super().execute(plan)

    runner = Patient(FakeSettings())
    engine = EngineCore(Watched(LIMITS), Executor(ThreadStepQueue(runner)), core().info)
    engine.add(request("r", [1, 2], max_tokens=4))
    assert [token for output in run(engine)["r"] for token in output.token_ids] == continuation([1, 2], 4)


def test_the_engine_is_stepping_while_a_step_is_submitted():
    """Once the first launch of a kernel, which compiles it, was reported as an engine that makes no progress."""
    seen: list[bool] = []

    class Launching(FakeRunner):
        def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
            seen.append(engine.is_stepping)
            result = self.execute(plan)
            return lambda: result

    runner = Launching(FakeSettings())
    engine = EngineCore(Scheduler(LIMITS), Executor(DeviceStepQueue(runner)), core().info)
    engine.add(request("r", [1, 2], max_tokens=4))
    assert [token for output in run(engine)["r"] for token in output.token_ids] == continuation([1, 2], 4)
    engine.step()
    assert seen
    assert all(seen)
    assert not engine.is_stepping


def test_async_scheduling_changes_no_answer_when_blocks_run_out():
    def answers(*, ahead: bool) -> dict[str, list[int]]:
        engine = core(async_scheduling=ahead, num_blocks=12, max_num_seqs=5, max_num_batched_tokens=9)
        for index in range(9):
            engine.add(request(str(index), [index, *range(index)], max_tokens=20, stop_token_ids=tuple(range(1, 60))))
        found = {name: [token for one in parts for token in one.token_ids] for name, parts in run(engine).items()}
        assert engine.stats.num_free_blocks == 12
        assert engine.stats.num_preemptions > 0
        return found

    assert answers(ahead=True) == answers(ahead=False)


def test_a_step_that_fails_fails_the_one_planned_after_it():
    engine = core(async_scheduling=True, fail_steps=[1])
    engine.add(request("early", [1, 2]))
    first = engine.step()
    failed = engine.step()
    engine.add(request("late", [1, 2]))
    late = run(engine)["late"]
    assert first.records[0].token_ids == continuation([1, 2], 1)
    assert [(output.request_id, output.finish_reason) for output in failed] == [("early", FinishReason.ERROR)]
    assert [token for output in late for token in output.token_ids] == continuation([1, 2], 6)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize("ahead", [False, True])
def test_three_failures_in_a_row_leave_no_step_in_flight(ahead: bool):
    """Once the last plan stayed in flight, and every later step of an LLM failed because of it."""
    engine = core(async_scheduling=ahead, fail_all=True)
    for index in range(3):
        engine.add(request(str(index), [1]))
        with pytest.raises(RunnerUnusable) if index == 2 else contextlib.nullcontext():
            engine.step()
    assert not engine.has_work
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_three_failures_in_a_row_end_an_engine_with_async_scheduling():
    engine = core(async_scheduling=True, fail_all=True)
    for index in range(2):
        engine.add(request(str(index), [1]))
        assert engine.step().records[0].finish_reason is FinishReason.ERROR
        assert not engine.has_work
    engine.add(request("third", [1]))
    with pytest.raises(RunnerUnusable, match="out of memory"):
        engine.step()


def test_an_interrupt_during_a_step_leaves_no_request_in_the_engine():
    class Interrupted(FakeRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            if plan.step == 1:
                raise KeyboardInterrupt
            return super().execute(plan)

        def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
            result = self.execute(plan)
            return lambda: result

    for queue in (InlineStepQueue, ThreadStepQueue, DeviceStepQueue):
        engine = EngineCore(Scheduler(LIMITS), Executor(queue(Interrupted(FakeSettings()))), core().info)
        engine.add(request("r", [1, 2]))
        engine.step()
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        assert not engine.has_work
        assert engine.stats.num_free_blocks == 50
        engine.add(request("again", [1, 2]))
        assert [token for one in run(engine)["again"] for token in one.token_ids] == continuation([1, 2], 6)


def test_postponed_work_that_fails_does_not_end_the_engine():
    class Failing(Executor):
        def idle(self) -> bool:
            raise ValueError("no graph of this")

    engine = EngineCore(Scheduler(LIMITS), Failing(InlineStepQueue(FakeRunner(FakeSettings()))), core().info)
    assert not engine.idle()
    assert not engine.idle()
    engine.add(request("r", [1, 2]))
    assert [token for one in run(engine)["r"] for token in one.token_ids] == continuation([1, 2], 6)


# ---- logits processors that requests name


@pytest.mark.parametrize(
    ("pattern", "path", "said"),
    [
        (None, "tests.own_code:Only", "requests may not name logits processors here"),
        ("other.*", "tests.own_code:Only", "'tests.own_code:Only' is not among those"),
        ("tests", "tests.own_code:Only", "is not among those"),  # the whole path must match
        (".*", "tests.own_code:Missing", "tests.own_code has no Missing"),
        (".*", "tests.own_code:Ban", "cannot be made: TypeError"),
        (".*", "tests.own_code:NUMBER", "cannot be called"),
        (".*", "tests.own_code:run", "tests.own_code:run: comes from subprocess"),
        (".*", "tests.own_code.torch", "cannot be called"),
    ],
)
def test_a_processor_that_cannot_be_used_is_refused_before_anything_runs(pattern: str | None, path: str, said: str):
    engine = EngineCore(
        Scheduler(
            SchedulerSettings(num_blocks=9, block_size=4, max_num_seqs=1, max_num_batched_tokens=8, max_model_len=9)
        ),
        Executor(InlineStepQueue(FakeRunner(FakeSettings()))),
        core().info,
        processor_pattern=pattern,
    )
    with pytest.raises(InvalidRequest, match=said) as refused:
        engine.add(request("r", [1], logits_processors=(ProcessorCall(path),)))
    assert refused.value.param == "logits_processors"
    assert not engine.has_work


def test_a_request_cannot_call_what_a_module_has_imported(tmp_path: Path):
    r"""Once a pattern such as `tests\.own_code[.:].*` let a request run `subprocess.run` with arguments of its own."""
    canary = tmp_path / "canary"
    with pytest.raises(PluginError, match="only what its own package defines"):
        make_named(ProcessorCall("tests.own_code.run", (["touch", str(canary)],)))
    assert not canary.exists()


@pytest.mark.effect("observability.enable_logging_iteration_details")
def test_each_step_can_be_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    info = core().info
    for logs_steps in (False, True):
        executor = Executor(InlineStepQueue(FakeRunner(FakeSettings())))
        engine = EngineCore(Scheduler(LIMITS), executor, info, logs_steps=logs_steps)
        engine.add(request("r", [1, 2, 3], max_tokens=2))
        run(engine)
    assert [line.partition(" sampled")[0] for line in caplog.messages] == [
        "step 0: 1 rows, 3 tokens computed, 1",
        "step 1: 1 rows, 1 tokens computed, 1",
    ]


def test_step_times_are_counted():
    engine = core()
    engine.add(request("r", [1], max_tokens=3))
    run(engine)
    assert engine.num_steps == engine.stats.num_steps == 3
    assert engine.stats.step_time_s > 0


class RunnerBesideOthers(FakeRunner):
    """Another replica has begun `num_begun` steps."""

    def __init__(self, num_begun: int) -> None:
        super().__init__(FakeSettings())
        self.num_begun = num_begun
        self.sizes: list[int] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_begun = max(0, self.num_begun - 1)
        self.sizes.append(plan.num_batched_tokens)
        return super().execute(plan)


class SharedExecutor(Executor):
    is_shared = True

    def __init__(self, steps: StepQueue[Any], runner: RunnerBesideOthers) -> None:
        super().__init__(steps)
        self._runner = runner

    @property
    def is_waited_for(self) -> bool:
        return self._runner.num_begun > 0


@pytest.mark.parametrize("queue", [InlineStepQueue, ThreadStepQueue])
def test_an_engine_takes_part_in_steps_of_other_replicas(
    queue: type[InlineStepQueue] | type[ThreadStepQueue],
):
    runner = RunnerBesideOthers(2)
    engine = EngineCore(Scheduler(LIMITS), SharedExecutor(queue(runner), runner), core().info)
    assert [engine.assist() for _ in range(3)] == [True, True, False]
    assert runner.sizes == [0, 0]
    assert engine.num_steps == 2
    engine.add(request("a", [1, 2, 3]))
    runner.num_begun = 5
    assert [token for output in run(engine)["a"] for token in output.token_ids] == continuation([1, 2, 3], 6)
    assert 0 not in runner.sizes[2:]  # its own steps are those of the others


class Compiling(Grammars):
    """A grammar is being compiled. Waiting for it would keep other replicas waiting, which begin a step meanwhile."""

    def __init__(self) -> None:
        pass

    def prepare(self, sampling: SamplingParams) -> Callable[[], bool]:
        return lambda: False

    def wait_any(self, timeout_s: float) -> bool:
        raise AssertionError("another replica may begin a step meanwhile")


def test_a_grammar_that_is_being_compiled_does_not_keep_other_replicas_waiting():
    runner = RunnerBesideOthers(1)
    executor = SharedExecutor(InlineStepQueue(runner), runner)
    engine = EngineCore(Scheduler(LIMITS), executor, core().info, grammars=Compiling())
    engine.add(request("a", [1, 2, 3]))
    for _ in range(2):
        assert list(engine.step()) == []
    assert runner.sizes == [0]


def test_work_that_cannot_be_scheduled_does_not_keep_other_replicas_waiting():
    runner = RunnerBesideOthers(1)
    engine = EngineCore(Scheduler(LIMITS), SharedExecutor(InlineStepQueue(runner), runner), core().info)
    waiting = request("a", [1, 2, 3])
    waiting.is_ready = lambda: False
    engine.add(waiting)
    assert list(engine.step()) == []
    assert runner.sizes == [0]
