"""A process that computes a part of a model: `python -m stoker.engine.rank_process --rank N --socket FD --memory FD`.

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
from collections.abc import Sequence

import torch

from ..config import Resolved
from ..logs import configure_logging
from .api import TokenLogprobs
from .core import StepPlan
from .kernels import KernelSet
from .kernels.exchange import SharedMemory
from .parallel import Ranks
from .parallel.connect import connect
from .rank_link import Failed, Loaded, RankLink, Start, Tokens
from .runner.loaded_model import LoadedModel, RanksOf, load_on_cpu
from .runner.measure import PhaseClock
from .runner.model_runner import ModelRunner
from .sampling.sampler import Int64, Sampled
from .sampling.sampling_table import Slots
from .startup import exit_code_of

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
    for name in ("--rank", "--socket", "--memory"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with rank 0, which may have answers to finish
        signal.signal(number, signal.SIG_IGN)
    link = RankLink(socket.socket(fileno=given.socket))
    threading.Thread(target=_end_with, args=(link.fileno(),), name="rank-0-watch", daemon=True).start()
    try:
        _compute(link, given.rank, given.memory)
    except EOFError:
        return 0
    except Exception as error:
        logger.critical("rank %d of the model ends", given.rank, exc_info=error)
        with contextlib.suppress(OSError):
            link.send(Failed(f"{type(error).__name__}: {error}", exit_code_of(error)))
        return exit_code_of(error)
    return 0


def _compute(link: RankLink, rank: int, memory_fd: int) -> None:
    """Raises EOFError when rank 0 has ended."""
    start = link.receive()
    assert isinstance(start, Start), start
    resolved = Resolved.model_validate_json(start.resolved)
    configure_logging(resolved.server)
    size = resolved.parallel.tensor_parallel_size
    memory = SharedMemory(memory_fd, size)

    def ranks_of(kernels: KernelSet) -> Ranks:
        return connect(kernels, memory, start.port, rank, size, uses_gloo=resolved.parallel.disable_custom_all_reduce)

    runner = following_runner(resolved, link, ranks_of)
    gc.collect()
    gc.freeze()
    follow(runner, link)


def following_runner(resolved: Resolved, link: RankLink, ranks_of: RanksOf) -> ModelRunner:
    """The runner of another rank than 0, with its part of the weights."""

    def load(resolved: Resolved, phases: PhaseClock) -> LoadedModel:
        return load_on_cpu(resolved, phases, ranks_of=ranks_of)

    return ModelRunner(resolved, load=load, sampler_of=lambda _: FollowingSampler(link))


def follow(runner: ModelRunner, link: RankLink) -> None:
    """Computes what rank 0 sends. Raises EOFError when rank 0 has ended."""
    link.send(Loaded())
    while True:
        plan = link.receive()
        assert isinstance(plan, StepPlan), plan
        with contextlib.suppress(SamplingFailed):
            runner.execute(plan)


def _end_with(fd: int) -> None:
    """Ends this process at once when the other end of the socket is closed: a step may wait for rank 0 in C++."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    poller.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
