"""Host processor time of a steady decode step, in microseconds, without the model.

schedule: creates the plan. launch: writes it to the slot table and to the model inputs. collect: writes the sampled
tokens to the table. finish: creates the outputs. send: encodes the step's message to the client.

Runners: `tensors` builds input tensors on the host, as for a CPU. `device` is the CUDA runner without its kernels: the
host work before a graph is launched and after its tokens have arrived.

With --ranks, processes that do the same work of their own take the plans and tokens of this one; then a line is of
this process, which leads them, and `launch` has what it sends. The last column is the host work of one of the others:
from the bytes of the tokens to the table, and from the bytes of the plan to its model inputs. With --own-core this
process has one core alone, as where each process has cores of its own, and all others share the rest.

Usage: python -m benchmarks.scheduler [--runner tensors|device] [--ranks 1 2 4] [--own-core] [rows ...]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.loop.dispatch import Dispatch
from stoker.engine.ranks.followers import Follower, Followers
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.runner.step_input import build_step_input, logit_tokens
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.step import StepPlan, StepResult
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Tokens
from stoker.engine.transport.wire import encode

if TYPE_CHECKING:
    from stoker.engine.runner.runner import Runner

PROMPT_LEN = 100  # tokens; some rows add more, so that rows fill their blocks at different steps
NUM_STEPS = 400
NUM_ROUNDS = 3  # the best round is reported: other processes also use the machine
STAGES = ("schedule", "launch", "collect", "finish", "send")
CPU = torch.device("cpu")
SAMPLED = np.int32(7)  # the token that every row samples in every step


class HostRunner(Protocol):
    """Host work of a step, without scheduling and without the device."""

    def launch(self, plan: StepPlan) -> None: ...
    def collect(self, plan: StepPlan) -> StepResult: ...


class TensorRunner:
    """Builds the step's input tensors on the host."""

    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self._output_rows = np.empty(0, np.int64)

    def launch(self, plan: StepPlan) -> None:
        self._slots.apply(plan)
        build_step_input(plan, self._slots, CPU)
        wanted = logit_tokens(plan, self._slots)
        wanted.union(plan.num_batched_tokens)
        self._output_rows = wanted.output_rows

    def append(self, plan: StepPlan, token_ids: np.ndarray) -> None:
        self._slots.append(plan.slots[self._output_rows], token_ids)

    def collect(self, plan: StepPlan) -> StepResult:
        self.append(plan, np.full(len(self._output_rows), SAMPLED, np.int32))
        return StepResult(token_ids=np.full(len(self._output_rows), SAMPLED, np.int32))


class LeadingHost:
    """Sends other processes what they need to do the same."""

    def __init__(self, runner: HostRunner, others: Followers) -> None:
        self._runner, self._others = runner, others

    def launch(self, plan: StepPlan) -> None:
        self._others.send(plan)
        self._runner.launch(plan)

    def collect(self, plan: StepPlan) -> StepResult:
        result = self._runner.collect(plan)
        self._others.hold(Tokens(result.token_ids))
        return result


def follow(end: socket.socket, report: Connection, cores: set[int], *shape: int) -> None:
    """One of the other processes, on these cores. Reports its seconds of a step. shape: as of MakeRunner."""
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    link, runner = RankLink(end), tensor_runner(*shape)
    spent: list[float] = []
    plan: StepPlan | None = None
    with contextlib.suppress(EOFError):
        while True:
            _wait_readable(end)
            start = time.thread_time()
            message = link.receive()
            if isinstance(message, Tokens):
                assert plan is not None
                assert message.token_ids is not None
                runner.append(plan, message.token_ids)
                message = link.receive()
            assert isinstance(message, StepPlan)
            plan = message
            runner.launch(plan)
            spent.append(time.thread_time() - start)
    report.send(sum(spent[-NUM_STEPS:]) / NUM_STEPS)


def _wait_readable(end: socket.socket) -> None:
    """Wait without being counted."""
    end.recv(1, socket.MSG_PEEK)


class OtherRanks(Followers):
    """Processes without weights, which nothing watches."""

    def __init__(self, count: int, cores: set[int], *shape: int) -> None:
        """cores: on which they run. shape: as of MakeRunner."""
        super().__init__(count + 1)
        context = get_context("spawn")
        self._reports, self._processes = [], []
        for rank in range(1, count + 1):
            (here, there), (report, theirs) = socket.socketpair(), context.Pipe(duplex=False)
            process = context.Process(target=follow, args=(there, theirs, cores, *shape))
            process.start()
            there.close()
            self._followers.append(Follower(f"rank {rank}", RankLink(here), None))
            self._reports.append(report)
            self._processes.append(process)

    def end(self) -> float:
        """The mean of their microseconds of a step."""
        self.close()
        seconds: list[float] = [report.recv() for report in self._reports]
        for process in self._processes:
            process.join()
        return 1e6 * sum(seconds) / max(1, len(seconds))


class DeviceHost:
    """The device builds its inputs from slot tables in its memory; the host sends only rows and table updates."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._runner.parts.body.graphs.run = lambda _: torch.empty(0)  # type: ignore[attr-defined]
        self._finish: Callable[[], StepResult]

    def launch(self, plan: StepPlan) -> None:
        self._finish = self._runner.launch(plan)

    def collect(self, plan: StepPlan) -> StepResult:
        return self._finish()


def tensor_runner(num_rows: int, max_len: int, block_size: int) -> TensorRunner:
    return TensorRunner(SlotTable(num_rows, max_len, block_size, SamplingTable(num_rows, 1000, (2,))))


def device_host(num_rows: int, max_len: int, block_size: int) -> HostRunner:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    from stoker.engine.runner.cuda.device_parts import sampling_parts
    from stoker.engine.runner.cuda.loading import load_on_device
    from stoker.engine.runner.load_runner import load_runner

    arguments = {
        "model": "builtin:tiny",
        "device": "cuda",
        "dtype": "float32",
        "max_model_len": max_len,
        "max_num_seqs": num_rows,
        "max_num_batched_tokens": num_rows * (PROMPT_LEN + block_size),
        "block_size": block_size,
        "num_gpu_blocks_override": max_len // block_size + 2,
    }
    deployment = load_deployment([], arguments=arguments)
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    return DeviceHost(load_runner(resolved, sampling_parts(), load_on_device))


MakeRunner = Callable[[int, int, int], HostRunner]  # of rows, longest sequence, block size
RUNNERS: dict[str, tuple[MakeRunner, int]] = {"tensors": (tensor_runner, 16), "device": (device_host, 64)}


def measure(
    num_rows: int, make_runner: MakeRunner, block_size: int, num_ranks: int, cores: set[int]
) -> dict[str, float]:
    """Mean microseconds of each stage with `num_rows` decoding sequences. block_size: of the device. cores: of the
    other processes."""
    max_len = PROMPT_LEN + block_size + 2 * NUM_STEPS
    settings = SchedulerSettings(
        num_blocks=num_rows * (max_len // block_size + 2),
        block_size=block_size,
        max_num_seqs=num_rows,
        max_num_batched_tokens=num_rows * (PROMPT_LEN + block_size),
        max_model_len=max_len,
        max_queued_requests=num_rows,
        eos_token_ids=(2,),
    )
    scheduler = Scheduler(settings)
    others = OtherRanks(num_ranks - 1, cores, num_rows, max_len, block_size)
    runner = make_runner(num_rows, max_len, block_size)
    if num_ranks > 1:
        runner = LeadingHost(runner, others)
    core: Any = SimpleNamespace(add=scheduler.add, step=lambda: outputs)
    dispatch: Dispatch[bytes] = Dispatch(core)
    for row in range(num_rows):
        prompt = list(range(row, row + PROMPT_LEN + row % block_size))
        sampling = SamplingParams(max_tokens=None)
        request = EngineRequest(request_id=f"request-{row}", inputs=RequestInputs(prompt, sampling))
        dispatch.submit(b"client", row + 1, request)
    spent = dict.fromkeys(STAGES, 0.0)
    is_counted = False

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = time.thread_time()
        result = work()
        spent[stage] += (time.thread_time() - start) * is_counted
        return result

    for step in range(-20, NUM_STEPS):  # negative steps are prefill and warm-up
        is_counted = step >= 0
        plan = timed("schedule", scheduler.schedule)
        assert not is_counted or plan.num_rows == plan.num_batched_tokens == num_rows
        timed("launch", lambda: runner.launch(plan))  # noqa: B023 (called before the next iteration)
        result = timed("collect", lambda: runner.collect(plan))  # noqa: B023
        outputs = timed("finish", lambda: scheduler.finish_step(plan, result))  # noqa: B023
        timed("send", lambda: [encode(message) for message in dispatch.step().values()])
    return {stage: seconds / NUM_STEPS * 1e6 for stage, seconds in spent.items()} | {"other rank": others.end()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="*", default=[1, 32, 64, 256, 1024])
    parser.add_argument("--runner", choices=RUNNERS, default="tensors")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--own-core", action="store_true", help="no other process of these runs on that of the first")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0)
    if chosen.own_core:
        own = min(cores)
        os.sched_setaffinity(0, {own})
        cores -= {own}
    columns = (*STAGES, "all", "other rank")
    print(f"{'rows':>6}{'ranks':>6}" + "".join(f"{name:>11}" for name in columns) + "   microseconds")
    for num_rows, num_ranks in itertools.product(chosen.rows, chosen.ranks):
        rounds = (measure(num_rows, *RUNNERS[chosen.runner], num_ranks, cores) for _ in range(NUM_ROUNDS))
        totals = [spent | {"all": sum(spent[stage] for stage in STAGES)} for spent in rounds]
        best = min(totals, key=lambda spent: spent["all"])
        print(f"{num_rows:>6}{num_ranks:>6}" + "".join(f"{best[name]:>11.1f}" for name in columns), flush=True)


if __name__ == "__main__":
    main()
