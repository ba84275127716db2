"""`load_runner` loads a model and composes a Runner of it; the functions here choose the parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...config import Resolved
from ..collectives.stages import StageLink
from ..kernels.cpu.library import CpuLibrary
from ..models.decoder import LaterStage
from ..sampling.sampling_table import SamplingTable
from ..step.plan import StepPlan
from ..structured.grammars import Grammars
from .adapters import AdapterLoads, adapter_features, adapters_of
from .block_transfer import TransferOf
from .body import HostBody
from .copies import BlockCopies, ExpertMoves, StateCopies, StepCopy
from .drafted_row import DraftedRow
from .drafting_head import DraftingHead, DraftingInputs
from .earlier_ids import features_of
from .expert_balancer import expert_balancer
from .heads import Head, MakeHead, PassOnHead, RingHead
from .inputs import HostInputs, MakeInputs, ReceivedInputs
from .loaded_model import LoadedModel, load_on_cpu, with_library
from .materials import Launched, Materials
from .measure import PhaseClock
from .model_drafts import ModelDrafts
from .rejected_drafts import RejectedDrafts
from .runner import Parts, Runner
from .sample_head import LOGIT_ROWS, SampleHead, sample
from .self_test import self_test
from .slot_table import SlotTable
from .token_types import token_type_features

logger = logging.getLogger(__name__)
Load = Callable[[Resolved, PhaseClock], LoadedModel]
PartsOf = Callable[[Materials], Parts]


def host_parts(
    head: MakeHead | None = None,
    transfer_of: TransferOf | None = None,
    inputs: MakeInputs = HostInputs,
    announce: Callable[[StepPlan], None] = lambda _: None,
) -> PartsOf:
    """Parts of steps whose inputs the host prepares.

    Args:
        head: None samples, without logits processors.
        transfer_of: makes what copies blocks of the KV cache to a store and back; None if plans ask for none.
        announce: sends a plan with the drafts of a network to the other processes of the model.
    """
    make_head = head or sample()

    def make(made: Materials) -> Parts:
        head, own = make_head(made), inputs(made)
        copies = list(copies_of(made, transfer_of))
        rejected = rejected_drafts(made, own)
        if rejected is not None:
            copies.append(rejected)
        if made.loaded.draft is None:
            return Parts(own, HostBody(made, own, head, rejected), copies)
        head, drafts = with_drafts(made, head, announce)
        # The drafts come first: other processes wait for the plan, and copies may wait for them.
        return Parts(DraftingInputs(own, drafts), HostBody(made, own, head, rejected), [drafts, *copies])

    return make


def with_drafts(made: Materials, head: Head, announce: Callable[[StepPlan], None]) -> tuple[Head, ModelDrafts]:
    """A head that hands on what drafts begin with, and what drafts before each step. announce: as of `host_parts`."""
    draft, resolved = made.loaded.draft, made.resolved
    assert draft is not None
    inner = head.inner if isinstance(head, RingHead) else head
    assert isinstance(inner, SampleHead), "the process that samples has the network"
    group = resolved.cache_groups.windows.index(None)
    max_rows = min(resolved.scheduler.max_num_seqs, LOGIT_ROWS)
    most = resolved.scheduler.max_num_batched_tokens
    drafts = ModelDrafts(draft, made.slots, inner.sampler, made.loaded.kernels, group, max_rows, most, announce)
    drafting = DraftingHead(inner, drafts, draft.reader)
    return head.with_inner(drafting) if isinstance(head, RingHead) else drafting, drafts


def stage_parts(link: StageLink, stage: int) -> PartsOf:
    """Parts of another stage than the first. link: from the stage before, and to the next one."""

    def head(made: Materials) -> PassOnHead:
        resolved = made.resolved
        is_last = stage == resolved.num_stages - 1
        return PassOnHead(link, made.moves, sends_all=not is_last or resolved.drafts_from_states)

    return host_parts(head, inputs=partial(ReceivedInputs, link=link))


def rejected_drafts(made: Materials, inputs: HostInputs) -> RejectedDrafts | None:
    """What takes drafts back from recurrent states; None where there are no drafts, or no states."""
    has_drafts = made.resolved.speculative.method is not None
    return RejectedDrafts(made, inputs) if has_drafts and made.loaded.cache.states is not None else None


def copies_of(made: Materials, transfer_of: TransferOf | None = None) -> Sequence[StepCopy]:
    states = made.loaded.cache.states
    of_states = [] if states is None else [StateCopies(states)]
    of_adapters = [] if made.loaded.adapters is None else [AdapterLoads(made.loaded.adapters)]
    return [
        made.moves,
        *of_states,
        *of_adapters,
        BlockCopies(None if transfer_of is None else transfer_of(made.loaded)),
    ]


def load_runner(
    resolved: Resolved,
    parts_of: PartsOf | None = None,
    load: Load = load_on_cpu,
    *,
    grammars: Grammars | None = None,
    phase: Callable[[str], None] | None = None,
) -> Runner:
    """Load the part of a model that this process computes, and compose its runner.

    Args:
        parts_of: chooses the parts; None for those of one process that samples.
        load: loads weights and KV cache onto the device. Raises if that fails.
        grammars: None if no request has a constraint.
        phase: called with the name of each start-up phase when it begins.
    """
    phases, make = PhaseClock(phase), parts_of or host_parts()
    loaded = load(resolved, phases)
    loaded = replace(loaded, adapters=adapters_of(resolved, loaded))
    slots, launched = _slot_table(resolved, loaded, grammars), Launched()
    drafted_rows: dict[int, DraftedRow] = {}

    def parts(loaded: LoadedModel) -> tuple[Materials, Parts]:
        balancer = expert_balancer(resolved, loaded.model.loadables(), loaded.ranks)
        spec = resolved.model_spec
        features = (*features_of(spec), *token_type_features(spec), *adapter_features(loaded))
        made = Materials(resolved, loaded, slots, ExpertMoves(balancer), launched, features, drafted_rows)
        return made, make(made)

    runner = Runner(*parts(loaded), phases)
    if resolved.device.self_test and not isinstance(loaded.model, LaterStage):
        phases.start("self-test")
        runner.self_test = self_test(loaded.model, loaded.kernels, resolved.device.num_threads)
    phases.stop()
    if loaded.compilation is not None:
        loaded.compilation.when_loaded(partial(_switch_kernels, resolved, runner, parts))
    return runner


def _slot_table(resolved: Resolved, loaded: LoadedModel, grammars: Grammars | None) -> SlotTable:
    num_slots, model_len = resolved.scheduler.max_num_seqs, resolved.model.max_model_len
    eos_token_ids = resolved.model_files.eos_token_ids
    sampling = SamplingTable(num_slots, resolved.model_spec.vocab_size, eos_token_ids, grammars)
    heads = () if (pooling := resolved.model_spec.pooling) is None else pooling.heads
    return SlotTable(
        num_slots,
        model_len,
        resolved.cache.block_size,
        sampling,
        loaded.cache.groups.num_groups,
        whole_tasks=frozenset(head.task for head in heads if head.needs_all and not head.needs_first),
        first_tasks=frozenset(head.task for head in heads if head.needs_first),
    )


def _switch_kernels(
    resolved: Resolved, runner: Runner, parts: Callable[[LoadedModel], tuple[Materials, Parts]], library: CpuLibrary
) -> None:
    """Replaces torch's operations by a library, between two steps and in the thread that has compiled it.

    Requests go on: token ids, sampling parameters and the KV cache do not depend on the kernels. Weights are packed
    again, a layer at a time, and decode steps are captured again.
    """
    began = 0.0

    def make() -> tuple[Materials, Parts]:
        nonlocal began
        began = time.perf_counter()  # the step before has ended
        return parts(with_library(runner.loaded, resolved, library))

    runner.switch(make)
    logger.info(
        "kernels: C++ %s replaces torch; compiled in %.1f s, weights packed in %.2f s",
        library.level.name,
        library.compile_seconds or 0.0,
        time.perf_counter() - began,
    )
