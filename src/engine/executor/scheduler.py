"""The scheduler that a deployment declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...config import Resolved
from ...config.schema.observability import STEP_TOKENS
from ...model.spec import ModelSpec
from ...model.step_costs import StepCosts, step_costs
from ..core import Scheduler, SchedulerInterface, SchedulerSettings
from ..core.adapter_slots import AdapterSettings
from ..core.block_store import BlockStore
from ..core.drafter import Drafter
from ..core.interface import MEMBERS
from ..core.settings import NO_LIMIT, DraftSettings, PoolingSettings
from ..loop.adapter_reader import AdapterReader
from ..lora.settings import LoraSettings
from ..plugins import import_class, make, named_by
from ..runner.cuda.buckets import mixed_buckets
from ..spec_decode.network_drafts import NetworkDrafts
from ..spec_decode.prompt_lookup import PromptLookup
from ..spec_decode.step_times import DraftTimes

MakeScheduler = Callable[[int], SchedulerInterface]  # of a number of blocks, of all groups of layers together


def scheduler_maker(
    resolved: Resolved,
    store: BlockStore | None,
    drafting: DraftSettings | None = None,
    adapters: AdapterSettings | None = None,
) -> MakeScheduler:
    """The class is imported now, and instantiated when the number of blocks is known."""
    settings, path = scheduler_settings(resolved, store, drafting, adapters), resolved.scheduler.scheduler_cls
    if path == "auto":
        return lambda num_blocks: Scheduler(replace(settings, num_blocks=num_blocks))
    found = import_class(path, MEMBERS)

    def make_named(num_blocks: int) -> SchedulerInterface:
        with named_by("scheduler.scheduler_cls"):
            named: SchedulerInterface = make(path, found, replace(settings, num_blocks=num_blocks))
        return named

    return make_named


def adapter_settings(resolved: Resolved, reader: AdapterReader) -> AdapterSettings | None:
    """What the scheduler needs for adapters; None without them. reader: gets its store when the model is loaded."""
    settings = LoraSettings.of(resolved)
    return None if settings is None else AdapterSettings(settings.max_loras, reader)


def draft_settings(resolved: Resolved, times: DraftTimes) -> DraftSettings | None:
    """What the scheduler needs for drafts; None without a method. times: as far as they are known."""
    own, max_model_len = resolved.speculative, resolved.model.max_model_len
    if own.method is None:
        return None
    num_slots, max_tokens = resolved.scheduler.max_num_seqs, own.num_speculative_tokens
    drafter: Drafter
    reader: PromptLookup | None = None
    if own.method == "ngram":
        shortest, longest = own.prompt_lookup_min, own.prompt_lookup_max
        limits = {"max_tokens": max_tokens, "shortest": shortest, "longest": longest}
        limits |= {"past_tokens": own.past_output_tokens}
        drafter = reader = PromptLookup(num_slots, max_model_len, times.steps, **limits)
    else:
        files = resolved.model_files.draft
        most = None if files is None else files.draft.most_drafts
        max_tokens = max_tokens if most is None else min(max_tokens, most)
        drafter = NetworkDrafts(num_slots, times.steps, times.drafts, max_tokens=max_tokens)
    draft = resolved.model_files.draft
    longest = max_model_len if draft is None or draft.max_length is None else draft.max_length
    return DraftSettings(
        drafter=drafter,
        reader=reader,
        max_model_len=min(max_model_len, own.max_model_len or max_model_len, longest),
        max_num_waiting=NO_LIMIT if own.disable_by_batch_size is None else own.disable_by_batch_size,
        in_order=resolved.topology.num_ranks == 1,
    )


def scheduler_settings(
    resolved: Resolved,
    store: BlockStore | None = None,
    drafting: DraftSettings | None = None,
    adapters: AdapterSettings | None = None,
) -> SchedulerSettings:
    """store: keeps blocks outside the KV cache."""
    scheduler, cache = resolved.scheduler, resolved.cache
    spec = resolved.model_spec
    has_prefixes = (resolved.num_kept_states > 0 or not spec.has_states) and spec.is_causal
    return SchedulerSettings(
        num_blocks=resolved.num_kv_blocks * resolved.cache_groups.num_groups,
        windows=resolved.cache_groups.windows,
        block_size=cache.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=resolved.model.max_model_len,
        max_prefill_share=scheduler.max_prefill_share,
        step_sizes=mixed_buckets(scheduler.max_num_batched_tokens) if scheduler.cuda_graph_sizes else (),
        enable_prefix_caching=cache.enable_prefix_caching and has_prefixes,
        num_kept_states=resolved.num_kept_states,
        retention_interval=max(1, cache.prefix_cache_retention_interval),
        prefix_caching_hash_algo=cache.prefix_caching_hash_algo,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        max_num_partial_prefills=scheduler.max_num_partial_prefills,
        max_long_partial_prefills=scheduler.max_long_partial_prefills,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        scheduling_policy=scheduler.scheduling_policy,
        max_queued_requests=scheduler.max_queued_requests,
        max_queued_tokens=scheduler.max_queued_tokens,
        eos_token_ids=resolved.model_files.eos_token_ids,
        seed=resolved.model.seed,
        store=store,
        costs=_costs(resolved) if resolved.observability.enable_mfu_metrics else None,
        block_metrics_sample=resolved.observability.block_metrics_sample,
        records_block_events=resolved.kv_events.is_publishing,
        drafting=drafting,
        adapters=adapters,
        pooling=_pooling(spec),
        num_stages=resolved.num_stages if scheduler.async_scheduling else 1,  # else one step is in flight
        step_token_limits=resolved.observability.buckets("iteration_tokens", STEP_TOKENS),
    )


def _pooling(spec: ModelSpec) -> PoolingSettings:
    heads = () if spec.pooling is None else spec.pooling.heads
    return PoolingSettings({head.task: head.needs_all or not spec.is_causal for head in heads}, spec.generates)


def _costs(resolved: Resolved) -> StepCosts:
    model, cache = resolved.model, resolved.cache
    return step_costs(resolved.model_spec, model.dtype, cache.kv_cache_dtype, resolved.memory.weights_bytes)
