"""A process that computes a part of a model: `python -m stoker.engine.rank_process --rank N --socket FD`.

It loads its part of the weights, then computes the steps that rank 0 sends. It ends when rank 0 does, also in the
middle of a step, and reports to rank 0 why it fails. With `--joins` the socket leads to the process that has started
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

import numpy as np

from ..config import Resolved
from ..config.exit_codes import EXIT_FAILED, EXIT_INVALID_CONFIGURATION
from ..logs import configure_logging
from .cluster.joining import JoinRefused
from .collectives.connect import ADDRESS, group_of, stage_link
from .collectives.gloo import Meeting
from .collectives.stages import StageLink
from .executor.build import exit_code_of
from .host.shared_memory import SharedMemory
from .loop.executor import Sleeper
from .ranks import heads
from .ranks.adapters_of_ranks import FollowingAdapters
from .ranks.following_sampler import SamplingFailed
from .ranks.place import Place, joined
from .runner.heads import around
from .runner.load_runner import host_parts, load_runner, stage_parts
from .runner.rank_loading import RankLoading
from .runner.rank_transfer import rank_transfer
from .runner.runner import Runner
from .runner.step_shape import StepShape
from .step import StepPlan
from .transport.messages import FreeMemory, TakeMemory
from .transport.rank_link import RankLink
from .transport.rank_messages import Call, Capture, DeviceStep, Failed, Finish, Loaded, Returned, Start
from .worker import Workplace, worker_class

Answer = Callable[[Call], Returned]
logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stoker.engine.rank_process", description=__doc__)
    for name in ("--rank", "--socket"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--memory", "--before", "--after"):  # where there are several ranks of a stage, and several stages
        parser.add_argument(name, type=int)
    parser.add_argument("--joins", action="store_true")
    given = parser.parse_args(argv)
    # It ends with rank 0, which may have answers to finish.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    starter = RankLink(socket.socket(fileno=given.socket))
    threading.Thread(target=_end_with, args=(starter.fileno(),), name="starter-watch", daemon=True).start()
    links = [starter]  # to which a failure is reported
    try:
        start = starter.receive()
        assert isinstance(start, Start), start
        resolved = Resolved.model_validate_json(start.resolved)
        configure_logging(resolved.server)
        memory = None if given.memory is None else SharedMemory(given.memory, resolved.topology.group_size)
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
    if resolved.launches_on_device:
        follow_on_device(resolved, link, place.loading, loaded)
        return
    kind = worker_class(resolved.parallel)
    ring = None if place.stages is None else stage_link(resolved, *place.stages)
    runner = load_rank(resolved, place.stage, link, ring, place.loading)
    model = runner.rank_model(resolved.topology.rank_in_group(place.rank))
    answer = Workplace(kind, resolved.parallel, place.rank, model).answer
    gc.collect()
    gc.freeze()
    loaded()
    follow(runner, link, answer, awaits_finish=ring is not None and not place.stage)


def _inherited(before: int | None, after: int | None) -> tuple[socket.socket, socket.socket] | None:
    if before is None or after is None:
        return None
    return socket.socket(fileno=before), socket.socket(fileno=after)


def load_rank(resolved: Resolved, stage: int, link: RankLink, ring: StageLink | None, loading: RankLoading) -> Runner:
    """The runner of another rank than 0, with its part of the weights. ring: None if there is only one stage."""
    if stage:
        assert ring is not None, "a stage has neighbours"
        return load_runner(resolved, stage_parts(ring, stage), loading.stage(stage))
    head = heads.follow(link) if ring is None else around(ring, heads.follow(link))
    transfer_of = rank_transfer(resolved) if resolved.stores_blocks else None
    return load_runner(resolved, host_parts(head, transfer_of), loading.first)


def follow_on_device(
    resolved: Resolved, link: RankLink, loading: RankLoading, loaded: Callable[[], None] = lambda: None
) -> None:
    """Follow rank 0 as `follow` does, with steps on the rank's own GPU. loaded: called when it has its weights."""
    from .runner.cuda.device_heads import Choice, LeaderChoice  # triton, which CPUs do not need
    from .runner.cuda.device_parts import following_parts

    leader = LeaderChoice()
    runner = load_runner(resolved, following_parts(leader, heads.follow(link)), loading.first)
    loaded()
    gc.collect()
    gc.freeze()
    link.send(Loaded())
    while True:
        match link.receive():
            case DeviceStep(plan, shape, again):
                leader.next = Choice(None if shape is None else StepShape(*shape), again.astype(np.int64))
                with contextlib.suppress(SamplingFailed):
                    runner.execute(plan)
            case Capture():
                runner.idle()
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


def follow(runner: Runner, link: RankLink, answer: Answer = no_worker, *, awaits_finish: bool = False) -> None:
    """Computes what rank 0 sends. Raises EOFError when rank 0 has ended.

    answer: calls a method of the worker. awaits_finish: rank 0 says when a step ends. It does to the first of several
    stages.
    """
    if (adapters := runner.loaded.adapters) is not None:
        FollowingAdapters(adapters, link)
    link.send(Loaded())
    begun: deque[Callable[[], object]] = deque()
    while True:
        match link.receive():
            case StepPlan() as plan:
                begun.append(runner.launch(plan))
                if not awaits_finish:
                    _end(begun.popleft())
            case Finish():
                _end(begun.popleft())
            case FreeMemory() | TakeMemory() as message:
                link.send(change_memory(runner, message))
            case Call() as call:
                link.send(answer(call))


def _end(finish: Callable[[], object]) -> None:
    with contextlib.suppress(SamplingFailed):
        finish()


def _end_with(fd: int) -> None:
    """Ends this process at once when the other end of the socket is closed: a step may wait for rank 0 in C++."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    poller.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
