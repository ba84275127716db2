"""ModelDrafts: drafts tokens with a network of its own, before the model computes the rows that they are for.

The network has blocks with the same numbers as the model's, so a shared prefix is shared here too. What it has not
computed of a sequence yet is computed when drafts are asked for, or when more would not be remembered. A network that
goes on from what the model computes gets that of the last tokens from a ring for each slot, and that of a prompt in the
step that computes it.

A network that fails is not asked again: drafts are then any tokens, until the scheduler has heard of it.

A draft is sampled with the noise that the model's token at its place will be sampled with, so that the two are the same
token as often as their distributions allow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from ...model.drafts import REMEMBERED_TOKENS
from ..kernels import KernelSet
from ..kernels.noise import row_keys
from ..kernels.sample_among import Choice
from ..layers.step_input import StepInput
from ..models.draft_network import Hidden
from ..sampling.sampler import TokenSampler
from ..step.plan import Bool, Int32, StepPlan
from .decode_steps import DecodeSteps
from .draft_chain import Computed, DraftChain, Links
from .loaded_draft import LoadedDraft
from .slot_table import SlotTable
from .step_input import Int64

_CAPTURED_TOKENS = 32  # of a step of the network with several in a row
logger = logging.getLogger(__name__)


class ModelDrafts:
    def __init__(
        self,
        loaded: LoadedDraft,
        slots: SlotTable,
        sampler: TokenSampler,
        kernels: KernelSet,
        group: int,
        max_rows: int,
        max_step_tokens: int,
        announce: Callable[[StepPlan], None] = lambda _: None,
    ) -> None:
        """
        sampler: of the model's tokens.
        group: of layers of the model, all of whose blocks are kept while a sequence runs.
        max_rows: of a step of the network that is captured, where steps can be.
        max_step_tokens: of what a sequence lacks that is computed in one step.
        announce: sends a plan to the other processes of the model, with the drafts that it has got.
        """
        self._announce = announce
        self._network, self._cache, self._reader = loaded.network, loaded.cache, loaded.reader
        self._slots, self._sampler, self._group, self._most_tokens = slots, sampler, group, max_step_tokens
        self._shift = 1 if self._network.draft.reads_model else 0
        self._token_shift = 0 if self._network.draft.is_block else self._shift  # from a position to its token
        num_slots = len(slots.num_tokens)
        self._row_starts = torch.arange(num_slots + 1, dtype=torch.int32)
        every = torch.arange(self._network.num_tokens)
        self._ids = self._network.model_ids(every).to(torch.int32)
        self._sample_among = kernels.sample_among
        self._has_keys: Bool = np.zeros(loaded.cache.num_blocks, np.bool_)  # blocks all of whose tokens are computed
        self._num_done: Int64 = np.zeros(num_slots, np.int64)  # tokens that the network has computed
        self._num_kept: Int64 = np.zeros(num_slots, np.int64)  # tokens that the model has computed; rejected ones count
        self._num_blocks: Int64 = np.zeros(num_slots, np.int64)  # of each slot, in the last plan with its row
        self._is_known: Bool = np.zeros(num_slots, np.bool_)  # what it has not computed can be
        self._awaited: dict[int, Int64] = {}  # by new slots: blocks that rows before theirs compute
        self._ring: torch.Tensor | None = None
        if self._reader is not None:
            shape = (num_slots, REMEMBERED_TOKENS, self._reader.width)
            self._ring = torch.zeros(shape, dtype=loaded.dtype)
        self._steps = DecodeSteps(
            lambda views, received: self._computed(views, received, None),
            loaded.capture,
            max_rows,
            slots.token_ids.shape[1] - 1,
            slots.block_size,
            len(loaded.cache.groups.views),
            torch.device("cpu"),
            max_tokens_per_row=_CAPTURED_TOKENS,
            max_drafted=_CAPTURED_TOKENS,
        )
        max_blocks = -(-slots.token_ids.shape[1] // slots.block_size)
        tables = torch.zeros(len(loaded.cache.groups.views), max_rows, max_blocks, dtype=torch.int32)
        self._chain = DraftChain(
            lambda views, features: self._computed(views, None if features is None else (features, None), None),
            kernels.sample_among,
            self._ids,
            loaded.capture,
            max_rows,
            tables,
            slots.token_ids.shape[1] - 1,
        )
        self.seconds = 0.0  # since it was taken
        self.undrafted: list[int] = []  # slots of the last step whose drafts are no guesses
        self.undraftable: list[int] = []  # the ones that the network can never compute
        self.is_of_new_shape = False  # whether a step of the network was captured for the last step
        self.error = ""  # why nothing is drafted any more

    # ---- before a step

    def before(self, plan: StepPlan) -> None:
        """Draft for a plan that was applied. Raises what `announce` raises."""
        self.draft(plan)
        if plan.awaits_drafts:
            self._announce(replace(plan, drafts=self._drafts_of(plan)))

    def _drafts_of(self, plan: StepPlan) -> list[tuple[int, list[int]]]:
        table, rows = self._slots, plan.drafted_rows
        counts, slots = (plan.num_outputs[rows] - 1).tolist(), plan.slots[rows].tolist()
        starts = table.num_tokens[plan.slots[rows]].tolist()
        return [
            (slot, table.token_ids[slot, start : start + count].tolist())
            for slot, start, count in zip(slots, starts, counts, strict=True)
        ]

    @torch.inference_mode()
    def draft(self, plan: StepPlan) -> None:
        """Draft for the rows that have more outputs than the host has tokens for."""
        began = time.perf_counter()
        self.undrafted, self.undraftable, num_graphs = [], [], self._num_graphs
        is_wanted = plan.num_outputs > 1
        if plan.drafts:
            is_wanted &= ~np.isin(plan.slots, [slot for slot, _ in plan.drafts])
        self._fill(plan, is_wanted)
        self._ask(lambda: self._prepare(plan, is_wanted))
        self.is_of_new_shape = self._num_graphs > num_graphs
        self.seconds += time.perf_counter() - began

    def _ask(self, ask: Callable[[], object]) -> None:
        if self.error:
            return
        try:
            ask()
        except Exception as error:
            logger.error("drafts are switched off: what drafts has failed", exc_info=error)
            self.error = str(error) or type(error).__name__

    def _fill(self, plan: StepPlan, is_wanted: Bool) -> None:
        """Make the last token of each row its drafts, as long as nothing better is known."""
        table, rows = self._slots, np.flatnonzero(is_wanted)
        for slot, count in zip(plan.slots[rows].tolist(), (plan.num_outputs[rows] - 1).tolist(), strict=True):
            length = int(table.num_tokens[slot])
            table.token_ids[slot, length : length + count] = table.token_ids[slot, length - 1]

    def _prepare(self, plan: StepPlan, is_wanted: Bool) -> None:
        self._admit(plan)
        if self._ring is not None:
            pending = plan.num_computed - self._num_done[plan.slots]
            is_full = (pending > 0) & (pending + plan.num_tokens > REMEMBERED_TOKENS) & ~is_wanted
            if is_full.any():
                is_full &= (plan.num_outputs > 0) & ~self._is_prompt(plan) & self._is_known[plan.slots]
                self._extend(plan.slots[is_full])
        rows = np.flatnonzero(is_wanted)
        if len(rows):
            self._draft(plan.slots[rows].astype(np.int64), plan.num_outputs[rows] - 1)

    @torch.inference_mode()
    def release(self, slots: Sequence[int]) -> None:
        """Compute what is remembered of sequences that end: the next turn may continue from their blocks. Called before
        the plan that releases them is applied."""
        if self._ring is not None and len(slots):
            ended = np.array(slots, np.int64)
            num_known = np.minimum(self._slots.num_tokens[ended] - self._shift, self._num_kept[ended])
            lacks_some = num_known > self._num_done[ended]
            ended = ended[self._is_known[ended] & lacks_some]
            self._ask(lambda: self._extend(ended))
        self._is_known[list(slots)] = False

    def forget(self) -> None:
        """Forget captured steps, and what was computed: the weights that the network shares are replaced."""
        self._steps.forget()
        self._chain.forget()
        self._has_keys[:] = self._is_known[:] = False

    def after(self, plan: StepPlan) -> None:
        """Nothing is left to do: `keep` gets what the model has computed."""

    def _admit(self, plan: StepPlan) -> None:
        """What other sequences have left in the blocks of a sequence counts, as far as it is complete: of one that is
        admitted, or that goes on after what another has computed meanwhile."""
        size, admitted = self._slots.block_size, {admission.slot for admission in plan.admissions}
        table = self._slots
        for load in plan.loads:
            self._has_keys[load.block_ids[self._group]] = False
        extended = set(plan.block_slots.tolist())
        for slot, start in zip(plan.slots.tolist(), plan.num_computed.tolist(), strict=True):
            is_new = slot in admitted
            if not is_new and slot not in extended:
                continue
            blocks = table.block_ids[self._group, slot, : table.num_blocks[slot]].astype(np.int64)
            first = 0 if is_new else int(self._num_blocks[slot])
            self._num_blocks[slot] = len(blocks)
            self._has_keys[blocks[max(first, start // size) :]] = False
            if is_new:
                self._is_known[slot], self._num_done[slot], self._num_kept[slot] = True, 0, start
                self._awaited.pop(slot, None)
            if first >= start // size:  # no block of others is new to it
                continue
            missing = np.flatnonzero(~self._has_keys[blocks[: start // size]])
            if self._ring is None:
                self._num_done[slot] = max(self._num_done[slot], int(missing[0]) * size if len(missing) else start)
                continue
            # What the model has computed of the missing tokens is known only if a row before computes them now.
            self._num_done[slot] = start
            if len(missing):
                self._awaited[slot] = blocks[missing]

    def _is_prompt(self, plan: StepPlan) -> Bool:
        """[rows] Whether the token after some of a row's tokens is known."""
        found: Bool = (plan.num_outputs == 0) | ((plan.num_tokens > 1) & (plan.num_outputs <= 1))
        return found

    # ---- drafts

    def _draft(self, slots: Int64, counts: Int32) -> None:
        """counts: of drafts, of each slot. Sequences that cannot be computed keep what was filled in."""
        table, lengths = self._slots, self._slots.num_tokens[slots]
        is_ready = self._is_known[slots]
        self.undraftable = slots[~is_ready].tolist()
        if self._ring is not None:  # later stages may still compute the end of a prompt
            is_ready &= self._num_kept[slots] >= lengths - 1
        is_ready[is_ready] = self._catch_up(slots[is_ready])
        self.undrafted = slots[~is_ready].tolist()
        order = np.argsort(-counts, kind="stable")  # those with more drafts first, so that others end
        order = order[is_ready[order]]
        slots, counts, lengths = slots[order], counts[order], lengths[order]
        choice, seeds = self._choice(slots, lengths), table.sampling.seed[slots]
        if self._network.draft.mask_token_id is not None and len(slots):
            self._draft_at_once(slots, counts, choice, self._network.draft.mask_token_id)
            return
        computed = self._extend(slots)
        if computed is None:
            return
        token_ids = self._sample_among(computed.logits, choice, row_keys(seeds, lengths), self._ids)
        table.token_ids[slots, lengths] = token_ids.numpy()
        features, done = computed.features, 1
        while num_left := int((counts > done).sum()):
            slots, lengths, seeds = slots[:num_left], lengths[:num_left], seeds[:num_left]
            length = int(counts[num_left - 1]) - done
            places = lengths + done + np.arange(length)[:, None]  # of what is drafted
            links = Links(
                self._cache.views([self._steps_of_chain(slots, places - 1)]),
                None if features is None else features[:num_left],
                Choice(*(column[:num_left] for column in choice)),
                row_keys(np.broadcast_to(seeds, places.shape).reshape(-1), places.reshape(-1)).view(*places.shape, 2),
            )
            drafted = self._chain.draft(links)
            table.token_ids[slots, places] = drafted.token_ids
            features, done = drafted.features, done + length

    def _draft_at_once(self, slots: Int64, counts: Int32, choice: Choice, mask_token_id: int) -> None:
        """Compute the known tokens of each slot, and its mask in place of every draft but the last one."""
        table, lengths = self._slots, self._slots.num_tokens[slots]
        start, end = self._pending(slots)
        drafted = np.repeat(np.arange(len(slots)), counts)  # the row of each draft
        places = lengths[drafted] + _within(counts)
        table.token_ids[slots[drafted], places] = mask_token_id
        # In a block the last known token is before the masks; else its hidden state is joined with the first of them.
        num_known, is_block = end - start, self._network.draft.is_block
        totals = num_known + counts + (1 if is_block else -1)
        features = self._features_of(slots, start, end)
        if features is not None and (mask := self._network.mask_features) is not None:
            is_known = torch.from_numpy(_within(totals) < np.repeat(num_known, totals))
            with_masks = mask.repeat(len(is_known), 1)
            with_masks[is_known] = features
            features = with_masks
        rows = (np.cumsum(totals) - counts)[drafted] + _within(counts)
        step = self._step_input(slots, start, totals)
        if is_block:
            sees_all = np.where(_within(totals) < np.repeat(num_known, totals), 0, np.repeat(start + totals, totals))
            step = replace(step, visible=torch.from_numpy(sees_all.astype(np.int32)))
        computed = self._compute(step, features, torch.from_numpy(rows))
        keys = row_keys(table.sampling.seed[slots[drafted]], places)
        own = Choice(*(column[torch.from_numpy(drafted)] for column in choice))
        table.token_ids[slots[drafted], places] = self._sample_among(computed.logits, own, keys, self._ids).numpy()
        self._advance(slots, start, end)

    @property
    def _num_graphs(self) -> int:
        return self._steps.num_graphs + self._chain.num_captures

    def _catch_up(self, slots: Int64) -> Bool:
        """Compute one step's worth of what these slots lack, where that is more. Returns which of them lack little."""
        pending = self._slots.num_tokens[slots] - self._shift - self._num_done[slots]
        found: Bool = pending <= REMEMBERED_TOKENS
        late = np.flatnonzero(~found)[:1]
        if len(late):
            start = self._num_done[slots[late]]
            self._compute_chunk(slots[late], start, start + np.minimum(pending[late] - 1, self._most_tokens))
        return found

    def _extend(self, slots: Int64 | Int32) -> Computed | None:
        """Compute all known tokens of these slots. Returns what the network makes of the last one of each."""
        if not len(slots):
            return None
        slots = slots.astype(np.int64)
        return self._compute_chunk(slots, *self._pending(slots))

    def _pending(self, slots: Int64) -> tuple[Int64, Int64]:
        """The known tokens of each slot that are not computed: the first one, and the one after the last."""
        start, end = self._num_done[slots], self._slots.num_tokens[slots] - self._shift
        if self._ring is not None:
            end = np.minimum(end, self._num_kept[slots])
        # The last token is computed again where nothing is missing: what the network makes of it is needed.
        return np.minimum(start, end - 1), end

    def _compute_chunk(self, slots: Int64, start: Int64, end: Int64) -> Computed:
        """Known tokens of each slot that follow one another. Returns what the network makes of the last one of each."""
        computed = self._compute(self._step_input(slots, start, end - start), self._features_of(slots, start, end))
        self._advance(slots, start, end)
        return computed

    def _features_of(self, slots: Int64, start: Int64, end: Int64) -> torch.Tensor | None:
        """What the network gets of known tokens; None of one that gets nothing."""
        if self._ring is None:
            return None
        counts = end - start
        places = np.repeat(start, counts) + _within(counts)
        rows = torch.from_numpy(np.repeat(slots, counts)), torch.from_numpy(places % REMEMBERED_TOKENS)
        return self._network.features(self._ring[rows])

    def _compute(self, step: StepInput, features: torch.Tensor | None, rows: torch.Tensor | None = None) -> Computed:
        """Returns what the network makes of these tokens of the step: it is valid until the next call.

        rows: [N] int64, indices of the tokens; None for the last one of each row.
        """
        views = self._cache.views([step])
        received = None if features is None else (features, None)
        shape = self._steps.shape_of(views[0], received)
        if shape is not None and shape.tokens_per_row == 1:
            found: Computed = self._steps.compute(shape, views, received)
            return found
        last = step.query_start[1:].to(torch.int64) - 1 if rows is None else rows
        if shape is None:
            return self._computed(views, received, last)
        logits, fed = self._steps.compute(shape, views, received)
        return Computed(logits[last], None if fed is None else fed[last])

    def _computed(self, views: Sequence[StepInput], received: Hidden | None, rows: torch.Tensor | None) -> Computed:
        network, features = self._network, None if received is None else received[0]
        hidden = network.forward(self._cache.by_layer(views), self._cache.layers, features, rows)
        return Computed(network.logits(hidden), network.next_features(hidden))

    def _step_input(self, slots: Int64, start: Int64, counts: Int64) -> StepInput:
        """A step of this number of tokens of each slot, from these positions on."""
        table, size = self._slots, self._slots.block_size
        longest_row, contexts = int(counts.max()), start + counts
        longest = int(contexts.max())
        query_start, row_slots, positions = self._row_starts[: len(slots) + 1], slots, start
        if longest_row > 1:
            query_start = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
            row_slots, positions = np.repeat(slots, counts), np.repeat(start, counts) + _within(counts)
        blocks, within = np.divmod(positions, size)
        of_group = table.block_ids[self._group]
        return StepInput(
            token_ids=torch.from_numpy(table.tokens_at(row_slots, positions + self._token_shift).astype(np.int64)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(of_group[row_slots, blocks].astype(np.int64) * size + within),
            query_start=query_start,
            context_lens=torch.from_numpy(contexts.astype(np.int32)),
            block_tables=torch.from_numpy(of_group[slots, : -(-longest // size)]),
            max_query_len=longest_row,
            max_context_len=longest,
            seq_slots=torch.from_numpy(slots.astype(np.int32)),
        )

    def _steps_of_chain(self, slots: Int64, places: Int64) -> StepInput:
        """Steps of one token of each slot, see Links. places: [L, R] of the tokens, in the sequences."""
        last = self._step_input(slots, places[-1] - self._shift, np.ones(len(slots), np.int64))
        positions = places - self._shift
        blocks, within = np.divmod(positions, self._slots.block_size)
        block_ids = self._slots.block_ids[self._group][slots, blocks].astype(np.int64)
        return replace(
            last,
            token_ids=torch.from_numpy(self._slots.tokens_at(slots, places[0]).astype(np.int64)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(block_ids * self._slots.block_size + within),
            context_lens=torch.from_numpy((positions + 1).astype(np.int32)),
        )

    def _choice(self, slots: Int64, lengths: Int64) -> Choice:
        """How the model's tokens are sampled, as far as drafts follow. Biases and forbidden tokens are left out, and
        where the sampler keeps something of each token the most probable one is drafted."""
        table = self._slots.sampling
        takes_best = table.is_greedy[slots] | self._sampler.needs_order(slots.astype(np.int32))
        columns = np.where(takes_best, np.float32(0), table.temperature[slots]), table.min_p[slots], table.top_p[slots]
        return Choice(*map(torch.from_numpy, (*columns, table.top_k[slots].astype(np.int32))))

    # ---- what the model has computed

    def keep(self, plan: StepPlan, kept: torch.Tensor) -> None:
        """Take what the model has computed of all tokens of the step, before they are sampled. kept: [T, width]."""
        began = time.perf_counter()
        self._ask(lambda: self._keep(plan, kept))
        self.seconds += time.perf_counter() - began

    def _keep(self, plan: StepPlan, kept: torch.Tensor) -> None:
        assert self._ring is not None
        if self._awaited or len(kept) > len(plan.slots) or not plan.num_outputs.all():
            self._keep_prompts(plan, kept)
        self._num_kept[plan.slots] = plan.num_computed + plan.num_tokens
        if len(kept) == len(plan.slots):  # steady decode: rows are tokens
            self._put(plan.slots, plan.num_computed, kept)
            return
        rows = np.arange(len(plan.slots)).repeat(plan.num_tokens)
        within = _within(plan.num_tokens)
        last = within >= plan.num_tokens[rows] - REMEMBERED_TOKENS
        self._put(
            plan.slots[rows[last]],
            (plan.num_computed[rows] + within)[last],
            kept if last.all() else kept[torch.from_numpy(last)],
        )

    def _put(self, slots: Int32, positions: Int32, kept: torch.Tensor) -> None:
        """Put what the model has computed of tokens into the ring. slots, positions: [N] of each token."""
        assert self._ring is not None
        places = slots.astype(np.int64) * REMEMBERED_TOKENS + positions % REMEMBERED_TOKENS
        self._ring.view(-1, self._ring.shape[2]).index_copy_(0, torch.from_numpy(places), kept)

    def _keep_prompts(self, plan: StepPlan, kept: torch.Tensor) -> None:
        """The network computes the tokens of prompts, and what new sequences have waited for is computed now."""
        ends = np.cumsum(plan.num_tokens)
        is_prompt = self._is_prompt(plan)
        for row in np.flatnonzero(is_prompt | np.isin(plan.slots, list(self._awaited))).tolist():
            slot = int(plan.slots[row])
            if (awaited := self._awaited.pop(slot, None)) is not None:
                self._is_known[slot] = bool(self._has_keys[awaited].all())
            if is_prompt[row] and self._is_known[slot]:
                of_row = kept[int(ends[row]) - int(plan.num_tokens[row]) : int(ends[row])]
                self._compute_prompt(slot, int(plan.num_computed[row]), of_row)

    def _compute_prompt(self, slot: int, start: int, kept: torch.Tensor) -> None:
        """Tokens of a prompt, and those before them that are pending, as far as the token after each is known."""
        assert self._ring is not None
        first = int(self._num_done[slot])
        end = min(start + len(kept), int(self._slots.num_tokens[slot]) - self._shift)
        if end <= first:
            return
        pending = self._ring[slot, torch.arange(first, start) % REMEMBERED_TOKENS]
        features = self._network.features(torch.cat([pending, kept[max(0, first - start) : end - start]]))
        slots, count = np.array([slot], np.int64), np.array([end - first], np.int64)
        views = self._cache.views([self._step_input(slots, np.array([first], np.int64), count)])
        nothing = torch.empty(0, dtype=torch.int64)
        self._network.forward(self._cache.by_layer(views), self._cache.layers, features, nothing)
        self._advance(slots, np.array([first]), np.array([end]))

    def _advance(self, slots: Int64, start: Int64, end: Int64) -> None:
        """These tokens are computed now."""
        self._num_done[slots] = end
        size, table = self._slots.block_size, self._slots.block_ids[self._group]
        first, last = start // size, end // size
        for slot, begin, stop in zip(slots.tolist(), first.tolist(), last.tolist(), strict=True):
            self._has_keys[table[slot, begin:stop]] = True


def _within(counts: Int64 | Int32) -> Int64:
    """The place of each element within its run, for runs of these lengths."""
    starts: Int64 = np.cumsum(counts, dtype=np.int64) - counts
    found: Int64 = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    return found
