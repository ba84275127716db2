"""SharedExperts: the replicas of one machine that share the experts of a model, as one of them sees them.

Each has its own tokens, and all take part in every step: one without tokens computes its experts for the others. A
step begins with the number of tokens of each; a replica that waits for messages is woken by its doorbell.
"""

from __future__ import annotations

import time

import torch

from ..host.neighbours import Neighbours
from ..kernels import KernelSet
from ..kernels.exchange import Choice, Exchange, ExchangeClosed

CAPTURED_ROWS = (
    128  # for each replica, up to which the rows of a step are a power of two: captured steps have few sizes
)
_JOIN_POLL_S = 0.01


class SharedExperts:
    def __init__(self, exchange: Exchange, neighbours: Neighbours) -> None:
        self.rank, self.size = neighbours.rank, neighbours.size
        self._exchange, self._memory = exchange, neighbours.memory
        self._others = [bell for rank, bell in enumerate(neighbours.doorbells) if rank != self.rank]
        self._counts = torch.zeros(self.size, dtype=torch.int64)  # captured steps read it
        self.num_rows = 0  # that the experts of this step get, with those of padding
        self._is_captured = False

    @classmethod
    def of(cls, kernels: KernelSet, neighbours: Neighbours) -> SharedExperts:
        """Raises OSError if the kernels cannot exchange."""
        if kernels.exchange is None:
            raise OSError("replicas share experts with kernels in C++, which this machine cannot compile or load")
        return cls(kernels.exchange, neighbours)

    @property
    def table(self) -> dict[str, str]:
        """A row of the start-up table."""
        return {"experts": f"shared by {self.size} replicas of this machine, through shared memory"}

    @property
    def is_waited_for(self) -> bool:
        """Whether others have begun a step, in which this replica must take part. Only between its own steps."""
        return any(self._memory.has_more(self.rank, other) for other in range(self.size) if other != self.rank)

    def join(self) -> None:
        """Waits for all, without occupying a core: some load longer than others. Raises ExchangeClosed."""
        self._exchange.announce_tokens(self._memory, self.rank, self.size, 0)
        while any(self._memory.has_more(other, self.rank) for other in range(self.size)):
            if self._memory.is_closed:
                raise ExchangeClosed
            time.sleep(_JOIN_POLL_S)
        self._exchange.await_tokens(self._memory, self.rank, self.size, self._counts)

    def begin(self, num_tokens: int) -> None:
        """Begins a step with `num_tokens` of this replica, and waits for the others. Raises ExchangeClosed."""
        self._exchange.announce_tokens(self._memory, self.rank, self.size, num_tokens)
        for doorbell in self._others:
            doorbell.ring()
        self._exchange.await_tokens(self._memory, self.rank, self.size, self._counts)
        total = int(self._counts.sum())
        self._is_captured = 0 < total <= CAPTURED_ROWS * self.size
        self.num_rows = 1 << (total - 1).bit_length() if self._is_captured else total

    @property
    def graph_rows(self) -> int | None:
        """Number of rows on which a captured graph of this step depends; None if there are too many to capture."""
        return self.num_rows if self._is_captured else None

    @property
    def is_closed(self) -> bool:
        return self._memory.is_closed

    def close(self) -> None:
        """Close the exchange: no step can follow, in any replica, and calls that wait raise ExchangeClosed."""
        self._memory.close_exchange()

    def gather(self, own: Choice) -> Choice:
        """The tokens of all replicas, `num_rows` of them. Rows of padding have no experts."""
        return self._exchange.gather_tokens(self._memory, self.rank, self._counts, own, self.num_rows)

    def sum(
        self, x: torch.Tensor, num_tokens: int, base: torch.Tensor | None, base_gate: torch.Tensor | None
    ) -> torch.Tensor:
        """x: [num_rows, W], what the experts of this replica add to the outputs of the tokens of all. Returns
        [num_tokens, W], the outputs of this replica's tokens. base, base_gate: of these, as of experts_reference."""
        return self._exchange.sum_of_tokens(self._memory, self.rank, self._counts, x, num_tokens, base, base_gate)
