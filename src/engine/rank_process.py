"""A process that computes a part of a model: `python -m stoker.engine.rank_process --rank N --socket FD`.

It loads its part of the weights, then computes the steps that rank 0 sends. It ends when rank 0 does, also in the
middle of a step, and reports to rank 0 why it fails. With `--joins` the socket is that of the process that has started
it, and it connects to rank 0 over the network.
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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..config import Resolved
from ..config.exit_codes import EXIT_FAILED, EXIT_INVALID_CONFIGURATION
from ..logs import configure_logging
from .core import StepPlan
from .loop.engine_core import Sleeper
from .memory.shared_memory import SharedMemory
from .nodes.joining import JoinRefused
from .nodes.rank_link import (
    Call,
    Capture,
    DeviceStep,
    Failed,
    Finish,
    FreeMemory,
    Loaded,
    RankLink,
    Returned,
    Start,
    TakeMemory,
)
from .parallel.connect import ADDRESS, group_of, stage_link
from .parallel.gloo import Meeting
from .parallel.stages import StageLink
from .ranks.following_sampler import FollowingSampler, SamplingFailed
from .ranks.place import Place, joined
from .runner.model_runner import ModelRunner
from .runner.rank_loading import RankLoading
from .runner.rank_transfer import rank_transfer
from .runner.stages import BegunStep, FirstStageRunner, LaterStageRunner
from .starts.startup import exit_code_of
from .worker import Workplace, worker_class

if TYPE_CHECKING:
    from .runner.cuda.following_runner import FollowingDeviceRunner

AnyRunner = ModelRunner | LaterStageRunner
Answer = Callable[[Call], Returned]
Follow = Callable[[RankLink, Answer], None]
RunnerT = TypeVar("RunnerT", bound=ModelRunner)
logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stoker.engine.rank_process", description=__doc__)
    for name in ("--rank", "--socket"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--memory", "--before", "--after"):  # where there are several ranks of a stage, and several stages
        parser.add_argument(name, type=int)
    parser.add_argument("--joins", action="store_true")
    given = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with rank 0, which may have answers to finish
        signal.signal(number, signal.SIG_IGN)
    starter = RankLink(socket.socket(fileno=given.socket))
    threading.Thread(target=_end_with, args=(starter.fileno(),), name="starter-watch", daemon=True).start()
    links = [starter]  # to which a failure is reported
    try:
        start = starter.receive()
        assert isinstance(start, Start), start
        resolved = Resolved.model_validate_json(start.resolved)
        configure_logging(resolved.server)
        memory = None if given.memory is None else SharedMemory(given.memory, resolved.parallel.tensor_parallel_size)
        if given.joins:
            place = joined(resolved, given.rank, memory)
            links.append(place.link)
        else:
            meeting = Meeting(ADDRESS, start.port, ADDRESS, group_of(given.rank, resolved))
            place = Place(given.rank, resolved, starter, memory, meeting, _inherited(given.before, given.after))
        compute(place, lambda: starter.send(Loaded()) if given.joins else None)
    except EOFError:
        return 0
    except Exception as error:
        code = EXIT_INVALID_CONFIGURATION if isinstance(error, JoinRefused) else exit_code_of(error)
        if code == EXIT_FAILED:  # else the message says all
            logger.critical("rank %d of the model ends", given.rank, exc_info=error)
        else:
            logger.critical("rank %d of the model ends: %s", given.rank, error)
        for link in links:
            with contextlib.suppress(OSError):
                link.send(
                    Failed(str(error) if isinstance(error, JoinRefused) else f"{type(error).__name__}: {error}", code)
                )
        return code
    return 0


def compute(place: Place, loaded: Callable[[], None] = lambda: None) -> None:
    """Loads a rank's part of the model, and computes. loaded: called when it is. Raises EOFError when rank 0 has
    ended."""
    resolved, link = place.resolved, place.link
    if place.stages is None and resolved.device.device == "cuda":
        device_runner = following_device_runner(resolved, link, place.loading)
        loaded()
        follow_on_device(device_runner, link)
        return
    kind = worker_class(resolved.parallel)
    runner: AnyRunner
    follows: Follow
    if place.stages is None:
        only: ModelRunner = following_runner(resolved, link, place.loading)
        runner, follows = only, partial(follow, only)
    else:
        ring = stage_link(resolved, *place.stages)
        runner, follows = runner_of_stage(resolved, place.stage, link, ring, place.loading)
    model = runner.rank_model(place.rank % resolved.parallel.tensor_parallel_size)
    answer = Workplace(kind, resolved.parallel, place.rank, model).answer
    gc.collect()
    gc.freeze()
    loaded()
    follows(link, answer)


def _inherited(before: int | None, after: int | None) -> tuple[socket.socket, socket.socket] | None:
    if before is None or after is None:
        return None
    return socket.socket(fileno=before), socket.socket(fileno=after)


def runner_of_stage(
    resolved: Resolved, stage: int, link: RankLink, ring: StageLink, loading: RankLoading
) -> tuple[AnyRunner, Follow]:
    """Loads a part of a stage. Returns its runner, and what computes its steps."""
    if not stage:
        first = following_runner(resolved, link, loading, partial(FirstStageRunner, ring))
        return first, partial(follow_first_stage, first)
    later = LaterStageRunner(resolved, stage, ring, loading.stage(stage), captures_steps=loading.captures_steps)
    return later, partial(follow_later_stage, later)


def following_runner(
    resolved: Resolved,
    link: RankLink,
    loading: RankLoading,
    runner: Callable[..., RunnerT] = ModelRunner,  # type: ignore[assignment]
) -> RunnerT:
    """The runner of another rank than 0 of the first stage, with its part of the weights."""
    how: dict[str, Any] = {"load": loading.first, "captures_steps": loading.captures_steps}
    if resolved.stores_blocks:
        how["transfer_of"] = rank_transfer(resolved)
    return runner(resolved, sampler_of=lambda _: FollowingSampler(link), **how)


def following_device_runner(resolved: Resolved, link: RankLink, loading: RankLoading) -> FollowingDeviceRunner:
    """As following_runner, for steps that are launched on a GPU of its own."""
    from .runner.cuda.following_runner import FollowingDeviceRunner  # triton, which CPUs do not need

    return FollowingDeviceRunner(resolved, loading.first, lambda _: FollowingSampler(link))


def follow_on_device(runner: FollowingDeviceRunner, link: RankLink) -> None:
    """As `follow`, of steps on a GPU of its own."""
    from .runner.cuda.buckets import StepShape

    gc.collect()
    gc.freeze()
    link.send(Loaded())
    while True:
        match link.receive():
            case DeviceStep(plan, shape, again):
                with contextlib.suppress(SamplingFailed):
                    runner.launch(plan, None if shape is None else StepShape(*shape), again.astype(np.int64))
            case Capture():
                runner.capture_next()
            case FreeMemory() | TakeMemory() as message:
                link.send(change_memory(runner, message))


def change_memory(runner: Sleeper, message: FreeMemory | TakeMemory) -> Returned:
    try:
        runner.free_memory() if isinstance(message, FreeMemory) else runner.take_memory()
    except MemoryError as error:
        return Returned(b"", str(error))
    return Returned(b"")


def no_worker(call: Call) -> Returned:
    return Returned(b"", "this rank has no worker")


def follow(runner: ModelRunner, link: RankLink, answer: Answer = no_worker) -> None:
    """Computes what rank 0 sends. Raises EOFError when rank 0 has ended.

    answer: calls a method of the worker.
    """
    link.send(Loaded())
    while True:
        match link.receive():
            case StepPlan() as plan:
                with contextlib.suppress(SamplingFailed):
                    runner.execute(plan)
            case FreeMemory() | TakeMemory() as message:
                link.send(change_memory(runner, message))
            case Call() as call:
                link.send(answer(call))


def follow_first_stage(runner: FirstStageRunner, link: RankLink, answer: Answer = no_worker) -> None:
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
            case FreeMemory() | TakeMemory() as message:
                link.send(change_memory(runner, message))
            case Call() as call:
                link.send(answer(call))


def follow_later_stage(runner: LaterStageRunner, link: RankLink, answer: Answer = no_worker) -> None:
    """As `follow`, of another stage than the first."""
    link.send(Loaded())
    while True:
        match link.receive():
            case StepPlan() as plan:
                runner.execute(plan)
            case FreeMemory() | TakeMemory() as message:
                link.send(change_memory(runner, message))
            case Call() as call:
                link.send(answer(call))


def _end_with(fd: int) -> None:
    """Ends this process at once when the other end of the socket is closed: a step may wait for rank 0 in C++."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    poller.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
