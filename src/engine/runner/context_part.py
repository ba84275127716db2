"""ContextPart: the tokens of each sequence that one of several ranks keeps, with decode context parallel.

Runs of consecutive positions go to the ranks in turn. A block has the same positions on all ranks, and on each of them
room for its part of these: all ranks have the block tables of the one scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..layers.step_input import StepInput


@dataclass(frozen=True, slots=True)
class ContextPart:
    index: int  # of this rank, among `count`
    count: int
    run: int  # consecutive positions that one rank keeps
    block_size: int  # positions; a multiple of count * run

    def __post_init__(self) -> None:
        if self.block_size % (self.count * self.run):
            raise ValueError(f"blocks of {self.block_size} tokens, of {self.count} ranks with {self.run} each in turn")

    def __str__(self) -> str:
        return (
            f"{self.run} of {self.count * self.run} consecutive tokens; {self.count - 1} other processes keep the rest"
        )

    @property
    def slots(self) -> int:
        """Number of slots of a block on this rank."""
        return self.block_size // self.count

    def num_kept(self, lengths: torch.Tensor) -> torch.Tensor:
        """Number of tokens that this rank keeps, of the first `lengths` tokens of a sequence."""
        turn = self.count * self.run
        rest = (lengths % turn - self.index * self.run).clamp(0, self.run)
        return torch.div(lengths, turn, rounding_mode="floor") * self.run + rest

    def of(self, step: StepInput) -> StepInput:
        """The step as this rank sees it. Slots of tokens that other ranks keep are -1."""
        turn, positions = self.count * self.run, step.positions
        block = torch.div(step.slot_mapping, self.block_size, rounding_mode="floor")
        before = torch.div(positions % self.block_size, turn, rounding_mode="floor") * self.run
        slots = block * self.slots + before + positions % self.run
        is_own = torch.div(positions % turn, self.run, rounding_mode="floor") == self.index
        return replace(
            step,
            slot_mapping=slots.where(is_own, -1),
            context_lens=self.num_kept(step.context_lens),
            visible=self.num_kept(positions + 1).to(torch.int32),
        )
