"""Metrics of the engines: their latest snapshots, read at each scrape. An engine's counters restart at zero with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ...config.resolve.gpu import GpuUsage
from ...engine.api import Distribution, DraftCounts, EngineStats, StepLaunches, Work
from ...engine.client.engine_client import EngineState
from .process_usage import ProcessUsage
from .vllm_names import VllmNames

_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level, in vLLM's words
_NOTHING = Distribution((), 0, 0.0)
# A snapshot with everything that options add, for descriptions of all metrics.
ALL_STATS = EngineStats(
    block_lifetimes=_NOTHING,
    block_idle_times=_NOTHING,
    block_reuse_gaps=_NOTHING,
    drafts=DraftCounts(accepted=(0,)),
    work=Work(),
    launches=StepLaunches(),
    expert_balance=1.0,
)


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine at a scrape."""

    stats: EngineStats
    state: EngineState
    usage: ProcessUsage | None = None  # None: its processes are not on this machine, or there is no /proc
    sleep_level: int = 0


_ADAPTERS = "stoker_lora_requests_info"
_OF_ADAPTERS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")  # vLLM's labels
_LABELS = ("model_name", "engine")  # of an engine's metrics
# An engine and a GPU with everything that is described.
DESCRIBED_ENGINE = EngineSnapshot(ALL_STATS, EngineState.READY, ProcessUsage(0.0, 0))
DESCRIBED_GPU = GpuUsage("0", 0.0, 0, 1)
Engines = Callable[[], Mapping[int, EngineSnapshot]]  # the engines of the server, by the rank of the replica


class EngineCollector:
    """The snapshots of all engines as metrics."""

    def __init__(
        self, model: str, engines: Engines, block_size: int, max_model_len: int, vllm_names: VllmNames, max_loras: int
    ) -> None:
        """max_loras: adapters of a step; 0: none are served."""
        self._model, self._max_loras = model, max_loras
        self._max_model_len = max_model_len
        self._engines = engines
        self._block_size = block_size
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[Metric]:
        """Each family once, with samples of all engines."""
        found: dict[str, Metric] = {}
        for rank, engine in self._engines().items():
            labels = (self._model, str(rank))
            for family in _EngineFamilies(labels, self._block_size, self._max_model_len, self._vllm_names).of(engine):
                if family.name in found:
                    found[family.name].samples += family.samples
                else:
                    found[family.name] = family
            if self._max_loras:
                adapters = found.setdefault(_ADAPTERS, self._adapters())
                running, waiting = engine.stats.running_adapters, engine.stats.waiting_adapters
                values = (*labels, str(self._max_loras), ",".join(running), ",".join(waiting))
                assert isinstance(adapters, GaugeMetricFamily)
                adapters.add_metric(values, time.time())
        yield from found.values()

    def _adapters(self) -> GaugeMetricFamily:
        """Adapters of running and waiting requests, as labels: routers read them to choose a server."""
        self._vllm_names.declare(_ADAPTERS, ("lora_requests_info",))
        help_text = (
            "Time of the scrape, seconds since 1970; the labels are the maximum number of adapters in a step, and the "
            "names of the adapters that running and waiting requests use, joined by commas."
        )
        return GaugeMetricFamily(_ADAPTERS, help_text, labels=(*_LABELS, *_OF_ADAPTERS))

    def hidden(self) -> Iterator[Metric]:
        """Metrics that vLLM has hidden, and that no other metric replaces."""
        if not self._vllm_names.has_hidden:
            return
        for name, help_text, value in (
            ("num_requests_swapped", "Sequences swapped to the CPU: always 0.", lambda stats: 0.0),
            (
                "cpu_cache_usage_perc",
                "Share of a KV cache in CPU memory beside the device's: always 0.",
                lambda stats: 0.0,
            ),
            (
                "gpu_prefix_cache_hit_rate",
                "Share of the prompt tokens looked up in the prefix cache that were found, since the start.",
                lambda stats: stats.prefix_hits / max(1, stats.prefix_queries),
            ),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=_LABELS)
            for rank, engine in self._engines().items():
                family.add_metric((self._model, str(rank)), value(engine.stats))
            yield family


class _EngineFamilies:
    """The metrics of one engine."""

    def __init__(self, labels: tuple[str, str], block_size: int, max_model_len: int, vllm_names: VllmNames) -> None:
        """labels: values of _LABELS."""
        self._labels = labels
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._vllm_names = vllm_names

    def of(self, engine: EngineSnapshot) -> Iterator[Metric]:
        yield from self._sequences(engine.stats)
        yield from self._cache(engine.stats)
        yield from self._steps(engine.stats)
        yield from self._states(engine)
        yield from self._usage(engine.usage)

    def _sequences(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge(
            "num_requests_running",
            "Sequences in the running batch.",
            stats.num_running,
            vllm=("num_requests_running",),
        )
        yield self._gauge(
            "num_requests_waiting",
            "Sequences waiting in the queue.",
            stats.num_waiting,
            vllm=("num_requests_waiting",),
        )
        waiting = {"capacity": stats.num_waiting - stats.num_deferred, "deferred": stats.num_deferred}
        yield self._labelled_gauge(
            "num_requests_waiting_by_reason",
            "Sequences waiting in the queue, by reason: capacity (for a place in the batch, or KV blocks), deferred "
            "(for a grammar, or for blocks that are read).",
            "reason",
            waiting,
        )
        yield self._count(
            "preemptions",
            "Preemptions: a sequence gave its blocks back to make room and was run again later.",
            stats.num_preemptions,
            vllm=("num_preemptions",),
        )
        yield self._distribution(
            "request_preemptions",
            "Preemptions of each sequence that has ended.",
            stats.request_preemptions,
            "request_num_preemptions",
        )

    def _cache(self, stats: EngineStats) -> Iterator[Metric]:
        used = stats.num_blocks - stats.num_free_blocks
        yield self._gauge(
            "kv_cache_usage_ratio",
            "Share of KV cache blocks in use, 0 to 1.",
            used / max(1, stats.num_blocks),
            vllm=("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        )
        yield self._cache_config(stats.num_blocks)
        yield self._gauge("kv_cache_blocks", "Number of KV cache blocks.", stats.num_blocks)
        yield self._count(
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queries,
            vllm=("prefix_cache_queries", "gpu_prefix_cache_queries"),
        )
        yield self._count(
            "prefix_cache_hits",
            "Prompt tokens found in the prefix cache.",
            stats.prefix_hits,
            vllm=("prefix_cache_hits", "gpu_prefix_cache_hits"),
        )
        yield self._count(
            "external_prefix_cache_queries",
            "Prompt tokens looked up in host memory, files and other engines, after those in the prefix cache.",
            stats.store_queries,
            vllm=("external_prefix_cache_queries",),
        )
        yield self._count(
            "external_prefix_cache_hits",
            "Prompt tokens whose KV blocks were read from there: a part of prefix_cache_hits.",
            stats.store_hits,
            vllm=("external_prefix_cache_hits",),
        )
        yield self._count(
            "kv_store_failures",
            "Reads and writes of KV blocks there that have failed. The tokens are computed.",
            stats.store_failures,
        )
        yield from self._block_times(stats)

    def _steps(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._count("engine_steps", "Steps the engine has executed.", stats.num_steps)
        yield self._count("engine_step_seconds", "Time the engine has spent in steps.", stats.step_time_s)
        yield self._step_tokens(stats)
        yield self._distribution(
            "engine_iteration_tokens",
            "Tokens of a step: those that it computes, and the first token of each answer that begins in it.",
            stats.iteration_tokens,
            "iteration_tokens_total",
        )
        yield from self._drafts(stats)
        yield from self._work(stats)
        yield from self._launches(stats)
        if stats.expert_balance is not None:
            yield self._gauge(
                "expert_balancedness",
                "Mean load of the processes that share the experts, divided by the largest, in the last window before "
                "experts moved; of a pipeline, of the stage where it is smallest.",
                stats.expert_balance,
            )

    def _states(self, engine: EngineSnapshot) -> Iterator[Metric]:
        yield self._labelled_gauge(
            "engine_sleep_state",
            "1 for the current one: awake; weights_offloaded (level 1: what only steps need is free); discard_all "
            "(level 2: all memory is).",
            "sleep_state",
            {name: float(level == engine.sleep_level) for level, name in enumerate(_SLEEP_STATES)},
        )
        state = GaugeMetricFamily(
            "stoker_engine_state",
            "1 for the current state of the engine, 0 for the others.",
            labels=(*_LABELS, "state"),
        )
        for one in EngineState:
            state.add_metric((*self._labels, one.value), float(one is engine.state))
        yield state

    def _usage(self, usage: ProcessUsage | None) -> Iterator[Metric]:
        if usage is None:
            return
        yield self._count(
            "engine_process_cpu_seconds",
            "CPU time of the engine's processes on this machine, of user and system.",
            usage.cpu_s,
        )
        yield self._gauge(
            "engine_process_resident_memory_bytes",
            "Resident memory of the engine's processes on this machine. Pages that they share are counted in each.",
            usage.resident_bytes,
        )

    def _step_tokens(self, stats: EngineStats) -> Metric:
        help_text = "Tokens that a step computes: of prompts, and one per sequence that generates."
        family = HistogramMetricFamily("stoker_engine_step_tokens", help_text, labels=_LABELS)
        buckets = [*((str(float(limit)), count) for limit, count in stats.step_tokens), ("+Inf", stats.num_steps)]
        family.add_metric(self._labels, buckets, stats.num_step_tokens)
        return family

    def _drafts(self, stats: EngineStats) -> Iterator[Metric]:
        if (drafts := stats.drafts) is None:
            return
        accepted = sum(drafts.accepted)
        for name, what, value in (
            ("drafts", "Drafts that were verified, each of one or more tokens.", drafts.drafts),
            ("draft_tokens", "Tokens of these drafts.", drafts.tokens),
            ("accepted_draft_tokens", "Tokens of these drafts that became part of an answer.", accepted),
        ):
            vllm = "num_accepted_tokens" if name.startswith("accepted") else f"num_{name}"
            yield self._count(name, what, value, vllm=(f"spec_decode_{vllm}",))
        full = "stoker_accepted_draft_tokens_per_pos"
        self._vllm_names.declare(full, ("spec_decode_num_accepted_tokens_per_pos",))
        help_text = "Accepted tokens by their position in a draft, from 0."
        family = CounterMetricFamily(full, help_text, labels=(*_LABELS, "position"))
        for position, count in enumerate(drafts.accepted):
            family.add_metric((*self._labels, str(position)), count)
        yield family

    def _work(self, stats: EngineStats) -> Iterator[Metric]:
        if (work := stats.work) is None:
            return
        for name, what, value, vllm in (
            ("flops", "Operations of the steps", work.flops, "estimated_flops_per_gpu"),
            ("read_bytes", "Bytes that the steps read", work.read_bytes, "estimated_read_bytes_per_gpu"),
            ("written_bytes", "Bytes that the steps wrote", work.written_bytes, "estimated_write_bytes_per_gpu"),
        ):
            help_text = f"{what}, estimated from the description of the model."
            yield self._count(f"estimated_{name}", help_text, value, vllm=(vllm,))

    def _launches(self, stats: EngineStats) -> Iterator[Metric]:
        if (launches := stats.launches) is None:
            return
        help_text = "Steps by how they were launched: captured, kernel by kernel, or with the host's sampler."
        family = CounterMetricFamily("stoker_step_launches", help_text, labels=(*_LABELS, "mode"))
        for mode in ("captured", "kernels", "host"):
            family.add_metric((*self._labels, mode), getattr(launches, mode))
        yield family
        yield self._count("step_padding_rows", "Rows computed to fill captured steps.", launches.padding_rows)
        yield self._count("step_padding_tokens", "Tokens computed to fill captured steps.", launches.padding_tokens)

    def _block_times(self, stats: EngineStats) -> Iterator[Metric]:
        for name, times, help_text in (
            ("lifetime", stats.block_lifetimes, "Time from the allocation of a KV cache block to its eviction."),
            ("idle_before_evict", stats.block_idle_times, "Time from the last use of a block to its eviction."),
            ("reuse_gap", stats.block_reuse_gaps, "Time from the end of a block's use to its next one."),
        ):
            if times is None:
                continue
            full = f"stoker_kv_block_{name}_seconds"
            self._vllm_names.declare(full, (f"kv_block_{name}_seconds",))
            family = HistogramMetricFamily(full, f"{help_text} Of a sample of the blocks.", labels=_LABELS)
            buckets = [*((str(limit), count) for limit, count in times.buckets), ("+Inf", times.count)]
            family.add_metric(self._labels, buckets, times.total)
            yield family

    def _cache_config(self, num_blocks: int) -> Metric:
        num_tokens = num_blocks * self._block_size
        labels = {
            **dict(zip(_LABELS, self._labels, strict=True)),
            "block_size": str(self._block_size),
            "num_blocks": str(num_blocks),
            "kv_cache_size_tokens": str(num_tokens),
            "kv_cache_max_concurrency": f"{num_tokens / self._max_model_len:.2f}",
        }
        self._vllm_names.declare("stoker_cache_config_info", ("cache_config_info",))
        help_text = (
            "Always 1; the labels are the tokens of a KV cache block, the number of blocks, the tokens of all blocks, "
            "and how many sequences of `model.max_model_len` tokens they hold."
        )
        family = GaugeMetricFamily("stoker_cache_config_info", help_text, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), 1)
        return family

    def _distribution(self, name: str, help_text: str, found: Distribution, vllm: str) -> Metric:
        full = f"stoker_{name}"
        self._vllm_names.declare(full, (vllm,))
        family = HistogramMetricFamily(full, help_text, labels=_LABELS)
        buckets = [*((str(float(limit)), count) for limit, count in found.buckets), ("+Inf", found.count)]
        family.add_metric(self._labels, buckets, found.total)
        return family

    def _labelled_gauge(self, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Gauge with a label, which has the same name in vLLM."""
        self._vllm_names.declare(f"stoker_{name}", (name,))
        family = GaugeMetricFamily(f"stoker_{name}", help_text, labels=(*_LABELS, label))
        for value, number in values.items():
            family.add_metric((*self._labels, value), number)
        return family

    def _gauge(self, name: str, help_text: str, value: float, *, vllm: tuple[str, ...] = ()) -> Metric:
        self._vllm_names.declare(f"stoker_{name}", vllm)
        family = GaugeMetricFamily(f"stoker_{name}", help_text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _count(self, name: str, help_text: str, value: float, *, vllm: tuple[str, ...] = ()) -> Metric:
        self._vllm_names.declare(f"stoker_{name}", vllm)
        family = CounterMetricFamily(f"stoker_{name}", help_text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family


def gpu_families(model: str, gpus: list[GpuUsage]) -> Iterator[Metric]:
    if not gpus:
        return
    used = "Memory of the GPU in use, by all processes. Memory that the engine has reserved for its KV cache is in use."
    for name, help_text, values in (
        (
            "utilization_ratio",
            "Share of the time in which the GPU ran a kernel, 0 to 1.",
            [gpu.utilization for gpu in gpus],
        ),
        ("memory_used_bytes", used, [gpu.used_bytes for gpu in gpus]),
        ("memory_total_bytes", "Memory of the GPU that programs can use.", [gpu.total_bytes for gpu in gpus]),
    ):
        family = GaugeMetricFamily(f"stoker_gpu_{name}", help_text, labels=("model_name", "gpu"))
        for gpu, value in zip(gpus, values, strict=True):
            if value is not None:
                family.add_metric((model, gpu.gpu), value)
        yield family
