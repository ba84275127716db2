"""DraftChain: a network drafts several tokens of each row, one after the other, in one call.

Python between two steps of the network would take longer than the step itself where a network is small. A CPU captures
the steps of a chain together with what samples their tokens, at the first chain of each shape.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from ..kernels.capture import Capture, CapturedGraph, NotCapturable, TooLarge
from ..kernels.sample_among import Choice, SampleAmong
from ..layers.step_input import StepInput
from ..step.plan import Int64

_MAX_STEPS = 256  # of all chains that are captured at one time; config/plan/estimate.py counts them


class Computed(NamedTuple):
    """What a network makes of a step of one token in each row."""

    logits: torch.Tensor  # [R, tokens of the vocabulary of the drafts]
    features: torch.Tensor | None  # [R, hidden_size] of the tokens after these


@dataclass(frozen=True, slots=True)
class Links:
    """What L steps of R rows are computed from, besides the tokens that they draft.

    views: the steps as each view of the blocks sees them. Columns that differ between steps have a first dimension of
        L; `token_ids` [R] are those of the first step.
    """

    views: tuple[StepInput, ...]
    features: torch.Tensor | None  # [R, hidden_size] for the first step
    choice: Choice
    keys: torch.Tensor  # [L, R, 2] int32 of noise.row_keys

    @property
    def shape(self) -> tuple[int, int]:
        length, num_rows = self.views[0].positions.shape
        return length, num_rows

    def tensors(self) -> Iterator[torch.Tensor]:
        """All but the tables of blocks."""
        first = self.views[0]
        yield from (first.token_ids, first.positions, first.context_lens, first.seq_slots)
        yield from (view.slot_mapping for view in self.views)
        yield from (*self.choice, self.keys)
        if self.features is not None:
            yield self.features


class Drafted(NamedTuple):
    token_ids: Int64  # [L, R]
    features: torch.Tensor | None  # [R, hidden_size] of what comes after these


@dataclass(slots=True)
class DraftChain:
    """
    compute: computes one step of the network, from the step for each view of the blocks and from its features.
    token_ids: [N] int32, the tokens of the logits.
    capture: None where no chain is captured.
    max_rows: of a chain that is captured.
    block_tables: [views, max_rows, blocks of the longest sequence] int32, from which captured chains read.
    max_model_len: tokens of the longest sequence.
    """

    compute: Callable[[Sequence[StepInput], torch.Tensor | None], Computed]
    sample_among: SampleAmong
    token_ids: torch.Tensor
    capture: Capture | None
    max_rows: int
    block_tables: torch.Tensor
    max_model_len: int
    num_captures: int = 0  # so far
    # by the shape, the one that was used last at the end
    _graphs: OrderedDict[tuple[int, int], tuple[Links, CapturedGraph]] = field(default_factory=OrderedDict)

    def forget(self) -> None:
        """Forget captured chains: the tensors that they read are replaced."""
        self._graphs.clear()

    def draft(self, links: Links) -> Drafted:
        if self.capture is None or links.shape[1] > self.max_rows:
            return _copied(*self._drafted(links))
        if (found := self._graphs.get(links.shape)) is None:
            return self._first(links, self.capture)
        self._graphs.move_to_end(links.shape)
        own, graph = found
        for into, values in zip(own.tensors(), links.tensors(), strict=True):
            into.copy_(values)
        self._fill_tables(links)
        graph.replay()
        return _copied(*graph.output)

    def _first(self, links: Links, capture: Capture) -> Drafted:
        rows = links.shape[1]
        first = links.views[0]
        shared = replace(
            first,
            token_ids=first.token_ids.clone(),
            positions=first.positions.clone(),
            context_lens=first.context_lens.clone(),
            seq_slots=first.seq_slots.clone(),
            query_start=first.query_start.clone(),
            max_context_len=self.max_model_len,  # the chain's own would be a constant of the captured graph
        )
        views = tuple(
            replace(shared, slot_mapping=view.slot_mapping.clone(), block_tables=table[:rows])
            for view, table in zip(links.views, self.block_tables, strict=True)
        )
        features = None if links.features is None else links.features.clone()
        choice = Choice(*(column.clone() for column in links.choice))
        own = Links(views, features, choice, links.keys.clone())
        self._fill_tables(links)
        try:
            graph = capture(lambda: self._drafted(own))
        except NotCapturable as error:
            if isinstance(error, TooLarge):
                self.max_rows = rows - 1
            else:
                self.capture = None
            return _copied(*(self._drafted(links) if error.output is None else error.output))
        self._graphs[links.shape] = own, graph
        self.num_captures += 1
        while sum(length for length, _ in self._graphs) > _MAX_STEPS:
            self._graphs.popitem(last=False)
        return _copied(*graph.output)

    def _fill_tables(self, links: Links) -> None:
        for view, table in zip(links.views, self.block_tables, strict=True):
            table[: len(view.block_tables), : view.block_tables.shape[1]].copy_(view.block_tables)

    def _drafted(self, links: Links) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """The tokens of each step, [R] int64 each, and the features after the last one."""
        token_ids, features = links.views[0].token_ids, links.features
        found: list[torch.Tensor] = []
        for index in range(links.shape[0]):
            steps = [
                replace(
                    view,
                    token_ids=token_ids,
                    positions=view.positions[index],
                    slot_mapping=view.slot_mapping[index],
                    context_lens=view.context_lens[index],
                )
                for view in links.views
            ]
            logits, features = self.compute(steps, features)
            token_ids = self.sample_among(logits, links.choice, links.keys[index], self.token_ids)
            found.append(token_ids)
        return found, features


def _copied(token_ids: Sequence[torch.Tensor], features: torch.Tensor | None) -> Drafted:
    """What a chain has drafted, which the next one would write over."""
    return Drafted(np.stack([each.numpy() for each in token_ids]), None if features is None else features.clone())
