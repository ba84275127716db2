"""A process that computes a part of a model: `python -m stoker.engine.rank_process --rank N --socket FD`.

It loads its part of the weights, then computes the steps that rank 0 sends. It ends when rank 0 does, also in the
middle of a step, and reports to rank 0 why it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from ..config import Resolved
from ..logs import configure_logging
from .api import TokenLogprobs
from .core import StepPlan
from .kernels import KernelSet
from .kernels.exchange import SharedMemory
from .parallel import Ranks
from .parallel.connect import connect, stage_link
from .parallel.stages import StageLink
from .rank_link import Failed, Finish, FreeMemory, Loaded, RankLink, Start, Tokens
from .runner.loaded_model import LoadedModel, RanksOf, load_later_stage, load_on_cpu
from .runner.measure import PhaseClock
from .runner.model_runner import ModelRunner
from .runner.stages import BegunStep, FirstStageRunner, LaterStageRunner
from .sampling.sampler import Int64, Sampled
from .sampling.sampling_table import Slots
from .startup import exit_code_of

RunnerT = TypeVar("RunnerT", bound=ModelRunner)
logger = logging.getLogger(__name__)


class SamplingFailed(Exception):
    """On rank 0. The step is over."""


class FollowingSampler:
    """Receives what rank 0 has sampled."""

    def __init__(self, link: RankLink) -> None:
        self._link = link

    def sample(self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: object) -> Sampled:
        """logits: a part, not used."""
        message = self._link.receive()
        assert isinstance(message, Tokens), message
        if message.token_ids is None:
            raise SamplingFailed
        return Sampled(message.token_ids, {})

    def prompt_logprobs(self, logits: torch.Tensor, next_ids: torch.Tensor, slots: Slots) -> list[TokenLogprobs]:
        """Empty: rank 0 has them."""
        return [TokenLogprobs([], [], 0)] * len(slots)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stoker.engine.rank_process", description=__doc__)
    for name in ("--rank", "--socket"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--memory", "--before", "--after"):  # where there are several ranks of a stage, and several stages
        parser.add_argument(name, type=int)
    given = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with rank 0, which may have answers to finish
        signal.signal(number, signal.SIG_IGN)
    link = RankLink(socket.socket(fileno=given.socket))
    threading.Thread(target=_end_with, args=(link.fileno(),), name="rank-0-watch", daemon=True).start()
    try:
        _compute(link, given.rank, given.memory, given.before, given.after)
    except EOFError:
        return 0
    except Exception as error:
        logger.critical("rank %d of the model ends", given.rank, exc_info=error)
        with contextlib.suppress(OSError):
            link.send(Failed(f"{type(error).__name__}: {error}", exit_code_of(error)))
        return exit_code_of(error)
    return 0


def _compute(link: RankLink, rank: int, memory: int | None, before: int | None, after: int | None) -> None:
    """Raises EOFError when rank 0 has ended."""
    start = link.receive()
    assert isinstance(start, Start), start
    resolved = Resolved.model_validate_json(start.resolved)
    configure_logging(resolved.server)
    parallel = resolved.parallel
    stage, own_rank = divmod(rank, parallel.tensor_parallel_size)
    ranks_of: RanksOf | None = None
    if memory is not None:
        shared = SharedMemory(memory, parallel.tensor_parallel_size)
        where = (shared, start.port, own_rank, parallel.tensor_parallel_size)

        def ranks_of(kernels: KernelSet) -> Ranks:
            return connect(kernels, *where, uses_gloo=parallel.disable_custom_all_reduce)

    compute: Callable[[RankLink], None]
    if before is None or after is None:
        compute = partial(follow, following_runner(resolved, link, ranks_of))
    else:
        ends = socket.socket(fileno=before), socket.socket(fileno=after)
        compute = follower_of_stage(resolved, stage, link, stage_link(resolved, *ends), ranks_of)
    gc.collect()
    gc.freeze()
    compute(link)


def follower_of_stage(
    resolved: Resolved, stage: int, link: RankLink, ring: StageLink, ranks_of: RanksOf | None
) -> Callable[[RankLink], None]:
    """Loads a part of a stage. Returns what computes its steps."""
    if not stage:
        return partial(follow_first_stage, following_runner(resolved, link, ranks_of, partial(FirstStageRunner, ring)))
    load = partial(load_later_stage, stage=stage, ranks_of=ranks_of)
    return partial(follow_later_stage, LaterStageRunner(resolved, stage, ring, load))


def following_runner(
    resolved: Resolved,
    link: RankLink,
    ranks_of: RanksOf | None,
    runner: Callable[..., RunnerT] = ModelRunner,  # type: ignore[assignment]
) -> RunnerT:
    """The runner of another rank than 0 of the first stage, with its part of the weights."""

    def load(resolved: Resolved, phases: PhaseClock) -> LoadedModel:
        return load_on_cpu(resolved, phases, ranks_of=ranks_of)

    return runner(resolved, load=load, sampler_of=lambda _: FollowingSampler(link))


def follow(runner: ModelRunner, link: RankLink) -> None:
    """Computes what rank 0 sends. Raises EOFError when rank 0 has ended."""
    link.send(Loaded())
    while True:
        match link.receive():
            case StepPlan() as plan:
                with contextlib.suppress(SamplingFailed):
                    runner.execute(plan)
            case FreeMemory():
                runner.free_cache()


def follow_first_stage(runner: FirstStageRunner, link: RankLink) -> None:
    """As `follow`, of a pipeline."""
    link.send(Loaded())
    begun: deque[BegunStep] = deque()
    while True:
        match link.receive():
            case StepPlan() as plan:
                begun.append(runner.begin(plan))
            case Finish():
                with contextlib.suppress(SamplingFailed):
                    runner.finish(begun.popleft())
            case FreeMemory():
                runner.free_cache()


def follow_later_stage(runner: LaterStageRunner, link: RankLink) -> None:
    """As `follow`, of another stage than the first."""
    link.send(Loaded())
    while True:
        match link.receive():
            case StepPlan() as plan:
                runner.execute(plan)
            case FreeMemory():
                runner.free_cache()


def _end_with(fd: int) -> None:
    """Ends this process at once when the other end of the socket is closed: a step may wait for rank 0 in C++."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    poller.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
