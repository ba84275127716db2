"""RankProcesses: the other processes that compute a model, seen from rank 0, which is the engine.

They are started before rank 0 loads its weights. A thread watches them: when one ends, stops or fails, the exchange is
closed, so that a step that waits for it fails at once; the others are killed, and the engine ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Resolved
from ..config.exit_codes import EXIT_FAILED
from .api import EngineInfo, StepLaunches
from .core import StepPlan, StepResult
from .rank_link import Failed, Finish, FreeMemory, Loaded, RankLink, RankMessage, Start, Tokens, packed
from .step_queue import RunnerUnusable

if TYPE_CHECKING:  # they import torch
    import torch

    from .core.step_plan import Int32
    from .kernels import KernelSet
    from .kernels.exchange import SharedMemory
    from .parallel import Ranks
    from .parallel.stages import StageLink
    from .runner.loaded_model import RanksOf
    from .runner.model_runner import ModelRunner
    from .runner.stages import FirstStageRunner
    from .sampling.sampler import Int64, Sampled, Sampler
    from .sampling.sampling_table import Slots

COMMAND = (sys.executable, "-m", f"{__package__}.rank_process")
_POLL_S = 0.25  # of the thread that watches; a process that is stopped in two polls one after the other is given up
logger = logging.getLogger(__name__)


class RankLost(RunnerUnusable):
    """A process of the model has ended: no step can follow."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(slots=True)
class _Follower:
    rank: int
    process: subprocess.Popen[bytes]
    link: RankLink
    is_loaded: bool = False
    num_stopped: int = 0  # polls one after the other in which the process was stopped

    def __str__(self) -> str:
        return f"rank {self.rank} of the model (process {self.process.pid})"


class RankProcesses:
    def __init__(self, resolved: Resolved, lost: Callable[[], None] = lambda: None) -> None:
        """Starts them. lost: called in a thread when one is lost. Raises OSError."""
        from .kernels.exchange import SharedMemory  # torch

        self._resolved, self._lost = resolved, lost
        self._size, num_stages = resolved.parallel.tensor_parallel_size, resolved.num_stages
        self._memories: list[SharedMemory] = []  # of each stage, if it has several ranks
        self._ports = [_free_port() for _ in range(num_stages)]
        self._rings = [_ring(num_stages) for _ in range(self._size)]
        self._own_ends = self._rings[0][0] if num_stages > 1 else ()
        self._changed = threading.Condition()
        self._failure: RankLost | None = None
        self._is_closed = False
        self._followers: list[_Follower] = []
        try:
            if self._size > 1:
                self._memories += (SharedMemory.new(self._size) for _ in range(num_stages))
            for rank in range(1, resolved.parallel.num_ranks):
                self._followers.append(self._started(rank))
                port = self._ports[rank // self._size]
                self._followers[-1].link.send(Start(resolved.model_dump_json(), port))
        except BaseException:
            self.close()
            raise
        finally:
            for memory in self._memories:
                os.close(memory.fd)  # mapped here, inherited there
            for end in (end for ring in self._rings for ends in ring for end in ends):
                if end not in self._own_ends:
                    end.close()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def _started(self, rank: int) -> _Follower:
        stage, own_rank = divmod(rank, self._size)
        mine, its = socket.socketpair()
        with its:
            fds = {"rank": rank, "socket": its.fileno()}
            if self._memories:
                fds["memory"] = self._memories[stage].fd
            if self._rings[own_rank]:
                fds["before"], fds["after"] = (end.fileno() for end in self._rings[own_rank][stage])
            arguments = [text for name, value in fds.items() for text in (f"--{name}", str(value))]
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[fd for name, fd in fds.items() if name != "rank"],
                process_group=0,  # Ctrl-C in a terminal is for rank 0
            )
        return _Follower(rank, process, RankLink(mine))

    def ranks(self, kernels: KernelSet) -> Ranks:
        """Those of the first stage, as rank 0 sees them."""
        from .parallel.connect import connect

        uses_gloo = self._resolved.parallel.disable_custom_all_reduce
        return connect(kernels, self._memories[0], self._ports[0], 0, self._size, uses_gloo=uses_gloo)

    @property
    def ranks_of(self) -> RanksOf | None:
        """Makes the ranks of the first stage; None if rank 0 is its only one."""
        return self.ranks if self._memories else None

    def stage_link(self) -> StageLink:
        """To the next stage, and from the last one. To be called once."""
        from .parallel.connect import stage_link

        return stage_link(self._resolved, *self._own_ends)

    def wait_loaded(self) -> None:
        """Waits until all have their weights. Raises RankLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or all(each.is_loaded for each in self._followers))
        self.check()

    def check(self) -> None:
        """Raises RankLost if a process has ended."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends them."""
        self._is_closed = True
        for each in self._followers:
            each.process.kill()
            each.process.wait()
            each.link.close()

    def send(self, message: RankMessage) -> None:
        """What is sampled to the ranks of the first stage, other messages to all. Raises RankLost."""
        data = packed(message)
        try:
            for each in self._followers[: self._size - 1] if isinstance(message, Finish | Tokens) else self._followers:
                each.link.send_bytes(data)
        except OSError:
            self.wait_failure()
            self.check()
            raise

    def lose(self, reason: str, exit_code: int = EXIT_FAILED) -> None:
        """No step can follow. The first reason counts."""
        with self._changed:
            if self._failure is not None or self._is_closed:
                return
            self._failure = RankLost(reason, exit_code)
            self._changed.notify_all()
        for memory in self._memories:
            memory.close_exchange()
        for each in self._followers:
            each.process.kill()
        self._lost()

    def wait_failure(self) -> None:
        """Gives the thread that watches the time to see why an exchange has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, 4 * _POLL_S)

    def _watch(self) -> None:
        poller = select.poll()
        by_fd = {each.link.fileno(): each for each in self._followers}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        while self._failure is None and not self._is_closed:
            for fd, _ in poller.poll(_POLL_S * 1000):
                self._take(by_fd[fd])
            for each in self._followers:
                each.num_stopped = each.num_stopped + 1 if _is_stopped(each.process.pid) else 0
                if each.num_stopped == 2:
                    self.lose(f"{each} is stopped")

    def _take(self, follower: _Follower) -> None:
        try:
            message = follower.link.receive()
        except (EOFError, OSError):
            self.lose(f"{follower} {_end_of(follower.process)}")
            return
        match message:
            case Loaded():
                with self._changed:
                    follower.is_loaded = True
                    self._changed.notify_all()
            case Failed(text, exit_code):
                self.lose(f"{follower} failed: {text}", exit_code)


class LeadingRunner:
    """Executes steps together with the other ranks."""

    def __init__(self, runner: ModelRunner, others: RankProcesses) -> None:
        """runner: of rank 0, with a LeadingSampler."""
        self._runner, self._others = runner, others

    def execute(self, plan: StepPlan) -> StepResult:
        """Raises RankLost if neither this step nor a later one can be computed, else what sampling raises."""
        with self._in_step():
            self._others.send(plan)
            return self._runner.execute(plan)

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        self._others.check()
        try:
            yield
        except SamplingFailed as failed:
            raise failed.error from None
        except BaseException as error:
            self._others.wait_failure()
            self._others.check()
            self._others.lose(f"a step ended in the middle: {type(error).__name__}")
            raise

    def warm_up(self) -> None:
        self._runner.warm_up(self.execute)

    def free_cache(self) -> None:
        """Of all ranks."""
        self._others.send(FreeMemory())
        self._runner.free_cache()

    def info(self) -> EngineInfo:
        return self._runner.info()

    def launches(self) -> StepLaunches:
        return self._runner.launches()


class LeadingStageRunner(LeadingRunner):
    """Begins and finishes the steps of a pipeline together with the other ranks."""

    def __init__(self, runner: FirstStageRunner, others: RankProcesses) -> None:
        super().__init__(runner, others)
        self._stage = runner

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """The first stage of a step. Returns a function that waits for the others, and samples. Raises as `execute`."""
        with self._in_step():
            self._others.send(plan)
            begun = self._stage.begin(plan)

        def finish() -> StepResult:
            with self._in_step():
                self._others.send(Finish())
                return self._stage.finish(begun)

        return finish

    def execute(self, plan: StepPlan) -> StepResult:
        """As LeadingRunner."""
        return self.launch(plan)()


class SamplingFailed(Exception):
    """The other ranks know it: they are ready for the next step."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class LeadingSampler:
    """The sampler of rank 0, which sends the others what it has sampled."""

    def __init__(self, sampler: Sampler, others: RankProcesses) -> None:
        self._sampler, self._others = sampler, others
        self.prompt_logprobs = sampler.prompt_logprobs

    def sample(self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: Int32) -> Sampled:
        """As Sampler. Raises SamplingFailed."""
        try:
            sampled = self._sampler.sample(logits, slots, lengths, token_table)
        except Exception as error:
            self._others.send(Tokens(None))
            raise SamplingFailed(error) from error
        self._others.send(Tokens(sampled.token_ids))
        return sampled


def _ring(num_stages: int) -> list[tuple[socket.socket, socket.socket]]:
    """Connections of each stage: from the one before, to the next one. None of a single stage."""
    if num_stages == 1:
        return []
    pairs = [socket.socketpair() for _ in range(num_stages)]  # from each stage to the next
    return [(pairs[stage - 1][1], pairs[stage][0]) for stage in range(num_stages)]


def _free_port() -> int:
    """A TCP port of this machine on which no program listens now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def _is_stopped(pid: int) -> bool:
    """By SIGSTOP, or a debugger. Of Linux only."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state in ("T", "t")


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return "has closed its connection"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
