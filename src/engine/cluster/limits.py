"""Times of the connections between nodes."""

from __future__ import annotations

from ...config.schema.parallel import ParallelConfig

ALIVE_S = 0.5  # between two Alive messages
SILENCE_S = 5.0  # without a message after which the other side is given up
LOADING_SILENCE_S = 60.0  # while weights are loaded: a thread may not run for seconds
JOIN_LIMIT_S = 600.0  # for all ranks to come, and for node 0 to be there
WAITING_LINE_S = 30.0  # between two lines of the log while one waits
OPERATION_LIMIT_S = 600.0  # for all ranks of a launcher to begin the same step


def silence_of(parallel: ParallelConfig, default: float = SILENCE_S) -> float:
    """The limit that is set, or the default one."""
    return parallel.cpu_distributed_timeout_seconds or default
