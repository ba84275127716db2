"""Loads weights and KV cache onto a CUDA device, with as many blocks as fit into its memory."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from ....config import Resolved, read_machine_spec
from ....config.cpu_features import NoKernels, choose_level, this_cpu, wanted_level
from ....config.cpu_library import LibrarySpec
from ...collectives import Ranks
from ...collectives.agreement import Agree
from ...kernels import KernelSet, select_kernels
from ...kernels.cpu.library import load_library
from ...kernels.exchange import Exchange
from ...kernels.gpu.kernels import gpu_kernels
from ...kernels.gpu.launch import is_interpreted
from ...layers.loading import Loadable
from ...layers.step_input import StepInput
from ...models.decoder import Decoder, LaterStage
from ...models.model import Model
from ...models.registry import make_later_stage
from ..earlier_ids import with_earlier_ids
from ..kv_cache import KVCache
from ..kv_scales import set_kv_scales
from ..loaded_model import LoadedModel, RanksOf, kv_cache_of, load_model, states_of
from ..loading import load_weights
from ..measure import PhaseClock
from ..sleeping_memory import CudaReservation, HostReservation, SleepingMemory
from ..state_cache import Zeros
from ..weight_storages import weights_in
from .memory_budget import DeviceMemory, blocks_that_fit, out_of_memory
from .streamed_layers import LayerStreaming
from .weight_arena import CudaLanes, OneQueue

logger = logging.getLogger(__name__)

Part = TypeVar("Part")
Step = Callable[[torch.Tensor, StepInput], None]  # computes it, and the logits of these rows if it is that stage


def torch_device() -> torch.device:
    """The CUDA device; the CPU where kernels run in Triton's interpreter. Raises OSError if torch has neither."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if is_interpreted():
        return torch.device("cpu")
    built = "was built without CUDA" if torch.version.cuda is None else "finds no usable device"
    raise OSError(f"device.device is cuda, but the installed torch {torch.__version__} {built}")


def load_on_device(
    resolved: Resolved, phases: PhaseClock, *, ranks_of: RanksOf | None = None, agree: Agree | None = None
) -> LoadedModel:
    """The model, or its first stage.

    ranks_of: makes the ranks that compute it together, each on a GPU; None if only this one computes it.
    agree: on the number of blocks, if there are other ranks or stages.

    Raises ModelFilesError for weights that do not fit the model, MemoryError, OSError where there is no device."""
    device, kernels, ranks = _start(resolved, phases, ranks_of)
    sleeping = _sleeping(resolved, device, leads=ranks is None or not ranks.rank)
    planned = resolved.memory

    def weights() -> Model:
        model = _model(resolved, phases, device, kernels, ranks)
        if sleeping is not None and planned.weight_offload is None:
            sleeping.keep(weights_in(model.loadables()))
        return model

    model = _allocated("the weights", planned.weights_bytes, weights)
    phases.start("kv cache")
    on_device: Zeros = partial(torch.zeros, device=device)
    zeros = on_device if sleeping is None else sleeping.zeros
    states = _allocated("the recurrent states", planned.state_bytes, lambda: states_of(resolved, zeros))

    set_kv_scales(model, resolved, device, states)

    def loaded(num_blocks: int, zeros: Zeros) -> LoadedModel:
        num_bytes = num_blocks * planned.kv_block_bytes
        cache = _allocated("the KV cache", num_bytes, lambda: kv_cache_of(resolved, num_blocks, states, zeros=zeros))
        return LoadedModel(device, kernels, model, cache, ranks=ranks, sleeping=sleeping)

    def largest_step(one_block: LoadedModel, rows: torch.Tensor, step: StepInput) -> None:
        cache, model = one_block.cache, one_block.whole
        steps = cache.by_layer(cache.views([step] * cache.groups.num_groups))
        model.logits(*model.forward(steps, cache.layers, rows))

    num_blocks = _num_blocks(resolved, device, lambda: partial(largest_step, loaded(1, on_device)), agree, sleeping)
    return loaded(num_blocks, zeros)


def load_later_stage_on_device(
    resolved: Resolved, phases: PhaseClock, *, stage: int, ranks_of: RanksOf | None, agree: Agree
) -> LoadedModel:
    """Load another stage than the first. See load_on_device."""
    device, kernels, ranks = _start(resolved, phases, ranks_of)
    sleeping = _sleeping(resolved, device, leads=False)
    phases.start("weights")

    def load() -> LaterStage:
        layers = make_later_stage(resolved, stage, kernels, device, ranks)
        load_weights(layers, resolved, ranks=ranks)
        if sleeping is not None:
            sleeping.keep(weights_in(layers.loadables()))
        return layers

    planned = resolved.memory
    layers = _allocated("the weights", planned.weights_bytes, load)
    phases.start("kv cache")
    on_device: Zeros = partial(torch.zeros, device=device)
    zeros = on_device if sleeping is None else sleeping.zeros
    states = _allocated("the recurrent states", planned.state_bytes, lambda: states_of(resolved, zeros, stage))

    def cache_of(num_blocks: int, zeros: Zeros) -> KVCache:
        num_bytes = num_blocks * planned.kv_block_bytes
        make = partial(kv_cache_of, resolved, num_blocks, states, zeros=zeros, stage=stage)
        return _allocated("the KV cache", num_bytes, make)

    def largest_step(cache: KVCache, rows: torch.Tensor, step: StepInput) -> None:
        steps = cache.by_layer(cache.views([step] * cache.groups.num_groups))
        size = len(step.token_ids), resolved.model_spec.stream_width
        hidden = torch.zeros(size, dtype=getattr(torch, resolved.model.dtype), device=device)
        residual = torch.zeros_like(hidden) if resolved.model_spec.has_residual else None
        layers.forward(hidden, residual, steps, cache.layers, rows)

    num_blocks = _num_blocks(resolved, device, lambda: partial(largest_step, cache_of(1, on_device)), agree, sleeping)
    return LoadedModel(device, kernels, layers, cache_of(num_blocks, zeros), ranks=ranks, sleeping=sleeping)


def _start(
    resolved: Resolved, phases: PhaseClock, ranks_of: RanksOf | None
) -> tuple[torch.device, KernelSet, Ranks | None]:
    phases.start("kernels")
    device = torch_device()
    kernels = _kernels(resolved, device)
    kernels.set_num_threads(resolved.device.num_threads)
    if ranks_of is None:
        return device, kernels, None
    if device.type == "cpu":
        kernels = replace(kernels, exchange=_exchange_on_cpu(resolved))
    return device, kernels, ranks_of(kernels)


def _sleeping(resolved: Resolved, device: torch.device, *, leads: bool) -> SleepingMemory | None:
    """Make the memory that sleeps; None without sleep mode. leads: the other ranks and stages sleep after this process,
    and only if it can."""
    if not resolved.model.enable_sleep_mode:
        return None
    reserve = HostReservation if device.type == "cpu" else partial(CudaReservation, device=device)
    num_sharers = resolved.topology.num_ranks if leads else 1
    return SleepingMemory(reserve, lambda: read_machine_spec().available_memory_bytes, num_sharers)


def _num_blocks(
    resolved: Resolved,
    device: torch.device,
    largest: Callable[[], Step],
    agree: Agree | None,
    sleeping: SleepingMemory | None,
) -> int:
    """The number that fits, on all ranks. largest: makes what computes the largest step, with a cache of one block."""
    number = resolved.num_kv_blocks
    if device.type == "cuda":
        held = 0 if sleeping is None else sleeping.num_bytes
        number = blocks_that_fit(resolved, _memory(resolved, device, largest(), held))
    return number if agree is None else agree(number)


def _exchange_on_cpu(resolved: Resolved) -> Exchange | None:
    """The exchange of the kernels for CPUs, for ranks whose kernels are interpreted. None if no kernel has this
    dtype."""
    dtype = getattr(torch, resolved.model.dtype)
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        level, _ = choose_level(wanted_level(), this_cpu())
        return Exchange(load_library(LibrarySpec(level)), dtype)
    except NoKernels:
        return None


def _model(
    resolved: Resolved, phases: PhaseClock, device: torch.device, kernels: KernelSet, ranks: Ranks | None
) -> Model:
    offload = resolved.memory.weight_offload
    if offload is None:
        return load_model(resolved, phases, device, kernels, ranks=ranks)
    moved: list[LayerStreaming] = []

    def watch(model: Model) -> Callable[[Loadable], None]:
        assert isinstance(model, Decoder), "the layers of other models are not moved"
        moved.append(LayerStreaming(model, offload.layers))
        return moved[0].loaded

    model = load_model(resolved, phases, device, kernels, watch, ranks)
    lanes = CudaLanes(device, len(offload.layers)) if device.type == "cuda" else OneQueue()
    arena = moved[0].start(offload.num_places, lanes)
    mib = 1 << 20
    logger.info("weights of %d layers, %d MiB, are in host memory", len(offload.layers), arena.host_bytes // mib)
    return model


def _kernels(resolved: Resolved, device: torch.device) -> KernelSet:
    if resolved.model.batch_invariant:  # in Triton's kernels the order of a row's sums depends on the batch
        dtype = getattr(torch, resolved.model.dtype)
        return select_kernels("cuda", dtype, resolved.model_spec.head_dims, batch_invariant=True)
    return gpu_kernels(device, max_rows=resolved.scheduler.max_num_seqs)


def _allocated(what: str, num_bytes: int, allocate: Callable[[], Part]) -> Part:
    try:
        return allocate()
    except torch.OutOfMemoryError as error:
        raise out_of_memory(what, num_bytes) from error


def _memory(resolved: Resolved, device: torch.device, step: Step, held: int) -> DeviceMemory:
    """Measures memory by running the largest step once. step: with a cache of one block. held: outside of torch."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        _largest_step(resolved, device, step)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        tokens = resolved.scheduler.max_num_batched_tokens
        states = " and states" * resolved.model_spec.has_states
        raise out_of_memory(f"a step of {tokens} tokens in addition to the weights{states}", before + held) from error
    peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, before + held, peak)


def _largest_step(resolved: Resolved, device: torch.device, compute: Step) -> None:
    """All tokens in one row, and the logits of the maximum number of rows. Writes no keys and values, and no state.

    Block tables are those of real steps: kernels allocate memory by their width.
    """
    num_tokens, num_rows = resolved.scheduler.max_num_batched_tokens, resolved.scheduler.max_num_seqs
    model_len = min(num_tokens, resolved.model.max_model_len)

    def column(count: int, value: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full((count,), value, dtype=dtype, device=device)

    starts, lengths = column(num_rows + 1, model_len), column(num_rows, 0)
    starts[0], lengths[0] = 0, model_len
    max_blocks = -(-resolved.model.max_model_len // resolved.cache.block_size)
    step = StepInput(
        token_ids=column(num_tokens, 0, torch.int64),
        positions=column(num_tokens, 0, torch.int64),
        slot_mapping=column(num_tokens, -1, torch.int64),
        query_start=starts,
        context_lens=lengths,
        block_tables=column(num_rows * max_blocks, 0).view(num_rows, max_blocks),
        max_query_len=model_len,
        max_context_len=resolved.model.max_model_len,
        seq_slots=column(num_rows, -1),
    )
    step = with_earlier_ids(step, resolved.model_spec, step.token_ids[None])
    with torch.inference_mode():
        compute(column(num_rows, 0, torch.int64), step)
